"""Files that are whole or not there, and tables."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tricks._files import check_writable, write_atomically
from keras_tricks._table import table


def test_the_new_content_is_in_place(tmp_path):
    path = tmp_path / "checkpoints.json"
    path.write_text("old")
    write_atomically(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_writer_sees_the_folder_and_the_ending(tmp_path):
    seen = []

    def write(temporary):
        seen.append(temporary)
        temporary.touch()

    write_atomically(str(tmp_path / "step-1.weights.h5"), write)
    assert seen[0].parent == tmp_path
    assert seen[0].name.endswith(".weights.h5")
    assert seen[0].name != "step-1.weights.h5"


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# Loaded without the package, whose import takes seconds and would add nothing here.
KILLED = """
import importlib.util, json, os, signal, sys
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
def write(temporary):
    temporary.write_text('{"half":')
    os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(sys.argv[2], write)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_kill_in_the_middle_leaves_the_old_file_readable(tmp_path):
    path = tmp_path / "index.json"
    write_atomically(path, lambda temporary: temporary.write_text('{"best": 3}'))
    module = sys.modules[write_atomically.__module__].__file__
    killed = subprocess.run([sys.executable, "-c", KILLED, module, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert json.loads(path.read_text()) == {"best": 3}


def test_a_missing_directory_is_created(tmp_path):
    folder = check_writable(tmp_path / "run" / "train", name="log_dir")
    assert folder == tmp_path / "run" / "train"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("below", [".", "train"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path, below):
    file = tmp_path / "run"
    file.touch()
    with pytest.raises(OSError, match=r"`log_dir` must be a directory .*run.* Pass"):
        check_writable(file / below, name="log_dir")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_directory_that_takes_no_files_is_named_also_for_root():
    with pytest.raises(OSError, match=r"`directory` .* got '/proc/self' .* Pass"):
        check_writable("/proc/self", name="directory")


def test_a_remote_address_is_refused():
    with pytest.raises(ValueError, match=r"`log_dir` must be a local directory, got 'gs://b/run'"):
        check_writable("gs://b/run", name="log_dir")


def test_a_table_is_plain_and_keeps_brackets():
    text = table([["conv [3, 3]", 0.123456, None], ["dense", 12, 7]], ["layer", "ms", "calls"])
    heading, _, first, second = text.splitlines()
    assert heading.split() == ["layer", "ms", "calls"]
    assert first.split() == ["conv", "[3,", "3]", "0.1235"]
    assert second.split() == ["dense", "12", "7"]
    assert first.index("0.1235") + len("0.1235") == second.index("12") + len("12")
    assert "\x1b" not in text


def test_a_table_loses_nothing_of_a_long_cell():
    text = table([["x" * 150, 1]], ["layer", "ms"], width=60, title="By time")
    assert text.splitlines()[0] == "By time"
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("x") == 150
