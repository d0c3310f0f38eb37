"""Numbered directories, one for each run, and what is found in them again."""

import os
import shlex
import subprocess
from pathlib import Path

from keras_tricks._files import check_writable

REPORT = "report.md"
LOGDIR_COMMAND = "tensorboard --logdir"


def claim(run_dir: str | os.PathLike[str], *, name: str) -> Path:
    """Makes the next numbered directory, `run/001`, `run/002`, for this process alone.

    Args:
        run_dir: The directory of all runs; made where it is missing.
        name: The parameter it came from, for the message.

    Raises:
        OSError: If nothing can be made there.
        ValueError: If it is the address of a remote store.
    """
    parent = check_writable(run_dir, name=name).absolute()
    while True:
        directory = following(parent)
        try:
            directory.mkdir()
        except FileExistsError:  # another process was faster
            continue
        return directory


def following(parent: Path) -> Path:
    """The directory after the last numbered one; it is not made."""
    return parent / f"{max(_numbered(parent), default=0) + 1:03d}"


def newest_with(parent: Path, folder: str) -> Path | None:
    """The last numbered directory in which there is such a folder, None if there is none."""
    runs = _numbered(parent) if parent.is_dir() else {}
    holding = (runs[n] for n in sorted(runs, reverse=True) if (runs[n] / folder).is_dir())
    return next(holding, None)


def newest(path: Path, *names: str) -> Path | None:
    """A file of a run, or of the newest of several that has it; None if there is none.

    Args:
        path: The file, the directory of a run (`run/001`), or that of all runs (`run`).
        names: Where the file may be in the directory of a run.
    """
    if path.is_file():
        return path
    numbered = _numbered(path) if path.is_dir() else {}
    runs = [path, *(numbered[number] for number in sorted(numbered, reverse=True))]
    files = (run / name for run in runs for name in names)
    return next((file for file in files if file.is_file()), None)


def tensorboard_line(run_dir: Path) -> str:
    """The command that shows all runs, as it works in the working directory."""
    words = [*LOGDIR_COMMAND.split(), shown(run_dir)]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def shown(path: Path) -> str:
    """A path as short as it still works from the working directory."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _numbered(parent: Path) -> dict[int, Path]:
    paths = (path for path in parent.iterdir() if len(path.name) >= 3 and path.name.isdecimal())
    return {int(path.name): path for path in paths}
