"""Files that are whole or not there: temporary name, flush to disk, rename."""

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

TEMPORARY_PREFIX = ".keras_tricks-"
"""How the name of a file begins while it is being written."""

_counter = itertools.count()


def write_atomically(
    path: str | os.PathLike[str],
    write: Callable[[Path], object],
    *,
    watch: Callable[[str], object] | None = None,
) -> None:
    """Puts a file in place so that a kill at any instant leaves the old one or the new one.

    Args:
        path: Where the file shall be. Its folder must exist.
        write: Is given the temporary path, in the same folder and with the same endings
            (Keras chooses the format by them), and writes the file there. Its result is not used.
        watch: Is told each phase as it begins: "write", "flush", "rename".

    Raises:
        OSError: If the file cannot be written; `path` is then as before and nothing is left.
    """
    path = Path(path)
    # The number sets threads of one process apart, the process id processes on one disk.
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}-{path.name}")
    phases: list[tuple[str, Callable[[], object]]] = [
        ("write", lambda: write(temporary)),
        ("flush", lambda: _flush_to_disk(temporary)),
        ("rename", lambda: temporary.replace(path)),
    ]
    try:
        for name, act in phases:
            if watch is not None:
                watch(name)
            act()
    finally:  # after the rename there is nothing to remove
        temporary.unlink(missing_ok=True)
    _flush_to_disk(path.parent)


def check_writable(directory: str | os.PathLike[str], *, name: str) -> Path:
    """Creates a directory where it is missing, and makes sure that files can be made in it.

    Args:
        directory: A local directory.
        name: The parameter it came from, for the message.

    Returns:
        The directory.

    Raises:
        OSError: If no file can be created there, of the kind that the system reported.
        ValueError: If it is the address of a remote store.
    """
    text = os.fspath(directory)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError(
            f"`{name}` must be a local directory, got {text!r}. "
            f"Mount the store and pass the path of the mount, or pass `{name}='run'`."
        )
    path = Path(text)
    # What the permissions say decides nothing for root, on a full disk or a read-only mount.
    probe = path / f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}-probe"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise OSError(
            error.errno,
            f"`{name}` must be a directory in which files can be created, got {text!r} "
            f"({error.strerror}). Pass one that is yours, for example `{name}='run'`.",
        ) from error
    return path


def _flush_to_disk(path: Path) -> None:
    """Waits until the file, or the names in a folder, have reached the disk."""
    if os.name == "nt" and path.is_dir():  # Windows has no handle for a folder
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
