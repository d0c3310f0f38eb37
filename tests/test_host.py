"""The machine."""

import contextlib
import io
import os
import subprocess
import sys
import threading

import psutil
import pytest

from keras_tricks import host

GIB = 2**30


def limit_with(tmp_path, groups, files):
    """The limit that follows from real files in the form of Linux's."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    return host.memory_limit_bytes(cgroup_root=tmp_path, own_cgroups=tmp_path / "own")


MACHINE = psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/job/1\n", {"job/1/memory.max": f"{GIB}\n"}, GIB),
        ("0::/job/1\n", {"job/memory.max": f"{GIB}\n", "job/1/memory.max": "max\n"}, GIB),
        ("0::/job\n", {"job/memory.max": "max\n"}, MACHINE),
        ("0::/job\n", {"job/memory.max": f"{2**50}\n"}, MACHINE),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:cpu,memory:/j\n", {"memory/j/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:memory:/host/path\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        (
            "4:memory:/job\n2:cpu:/\n0::/\n",
            {"memory/job/memory.limit_in_bytes": f"{GIB}\n", "unified/memory.max": "max\n"},
            GIB,
        ),
        ("3:cpu:/job\n", {"memory/job/memory.limit_in_bytes": f"{GIB}\n"}, MACHINE),
        ("0::/a:b\n", {"a:b/memory.max": f"{GIB}\n"}, GIB),
        ("", {}, MACHINE),
    ],
)
def test_the_limit_is_the_smallest_that_holds(tmp_path, groups, files, limit):
    assert limit_with(tmp_path, groups, files) == limit


def test_without_control_groups_the_machine_is_the_limit(tmp_path):
    nowhere = tmp_path / "none"
    assert host.memory_limit_bytes(cgroup_root=nowhere, own_cgroups=nowhere) == MACHINE


def test_the_limit_here_is_positive_and_at_most_the_machine():
    assert 0 < host.memory_limit_bytes() <= MACHINE


def test_memory_of_the_process_counts_what_it_holds():
    before = host.process_bytes(children=False)
    block = bytearray(os.urandom(1)) * (64 * 2**20)
    grown = host.process_bytes(children=False) - before
    assert grown == pytest.approx(len(block), rel=0.1)


HOLDER = "block = bytearray(b'x') * (64 * 2**20); print('ready', flush=True); input()"


def test_memory_of_a_child_is_counted_while_it_lives():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        share = host.process_bytes() - host.process_bytes(children=False)
        child.communicate("\n")
    assert share >= 64 * 2**20
    assert host.process_bytes() - host.process_bytes(children=False) < 32 * 2**20


def test_stacks_name_each_thread_and_where_it_waits():
    release, waiting = threading.Event(), threading.Event()

    def wait_for_a_batch():
        waiting.set()
        release.wait()

    thread = threading.Thread(target=wait_for_a_batch, name="feeder")
    thread.start()
    waiting.wait()
    stacks = host.thread_stacks()
    release.set()
    thread.join()
    assert stacks.startswith("Thread MainThread")
    assert "thread_stacks" in stacks.split("Thread feeder")[0]
    assert "in wait_for_a_batch" in stacks.split("Thread feeder")[1]


def test_a_line_is_said(capsys):
    host.say("StepEvaluation: step 5: fact.")
    assert capsys.readouterr().out == "StepEvaluation: step 5: fact.\n"


def test_saying_to_a_closed_stream_is_harmless():
    stream = io.StringIO()
    stream.close()
    with contextlib.redirect_stdout(stream):
        host.say("lost")


def test_saying_to_no_stream_is_harmless():
    with contextlib.redirect_stdout(None):
        host.say("lost")


def test_saying_to_a_pipe_without_reader_is_harmless():
    reader, writer = os.pipe()
    os.close(reader)
    stream = io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
    with contextlib.redirect_stdout(stream):
        host.say("lost")
    stream.detach().close()


def test_a_character_that_the_stream_lacks_is_replaced():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with contextlib.redirect_stdout(stream):
        host.say("growth \u2192 full")
    assert raw.getvalue() == b"growth ? full\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_on_a_terminal_the_line_replaces_the_progress_bar():
    reader, writer = os.openpty()
    with io.TextIOWrapper(io.FileIO(writer, "w")) as terminal, contextlib.redirect_stdout(terminal):
        terminal.write("12/100 \u2501\u2501")
        host.say("fact.")
        shown = os.read(reader, 1000)
    os.close(reader)
    assert shown.decode().endswith("\u2501\u2501\r\x1b[Kfact.\r\n")


def test_the_clock_does_not_run_backwards():
    ticks = [host.clock() for _ in range(100)]
    assert ticks == sorted(ticks)
