"""The machine: clock, memory of the process and of its container, stacks, lines of output."""

import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Self, TypeVar

import psutil

T = TypeVar("T")

_CLEAR_LINE = "\r\x1b[K"


def clock() -> float:
    """Returns seconds from an arbitrary start, which never run backwards."""
    return time.perf_counter()


def say(line: str) -> None:
    """Writes a line to standard output at once, and never fails.

    A report on a training run must not end the run: a stream that is closed, gone, or cannot
    show a character costs the line or the character.

    Args:
        line: The text, without the line break at its end.
    """
    stream = sys.stdout
    if stream is None:  # pythonw, and daemons that gave up their terminal
        return
    try:
        # On a terminal the cursor may stand at the end of Keras's progress bar, which draws
        # itself again at its next update. One write: two threads never share a line.
        text = f"{_CLEAR_LINE if stream.isatty() else ''}{line}\n"
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, errors="replace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):  # a pipe without a reader; a closed stream
        return


def process_bytes(*, children: bool = True) -> int:
    """Memory of this process, by default with the data workers that it started.

    Args:
        children: Whether to add the processes below this one. Pages that a child shares with
            others (a forked worker shares nearly all) are not counted again.

    Returns:
        Resident bytes of this process, plus the bytes that each child has for itself alone.
    """
    process = psutil.Process()
    total = process.memory_info().rss
    if children:
        total += sum(_own_bytes(child) for child in process.children(recursive=True))
    return int(total)


def _own_bytes(process: psutil.Process) -> int:
    """Bytes that only `process` has; 0 when it has just ended."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:  # ZombieProcess is one of these
        return 0
    except psutil.AccessDenied:  # changed its user: only the resident size is public
        pass
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def peak_process_bytes() -> int:
    """The most memory that this process has had, with what its data workers have now.

    Returns:
        Resident bytes since the process began.
    """
    if os.name == "nt":
        peak = int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return peak + process_bytes() - process_bytes(children=False)


def memory_limit_bytes(
    *,
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    own_cgroups: Path = Path("/proc/self/cgroup"),
) -> int:
    """The memory that this process may use before the system ends it.

    Args:
        cgroup_root: Where the control groups are mounted.
        own_cgroups: The file that names the groups of this process.

    Returns:
        Bytes: the machine's memory or the limit of the container (control groups version 1
        or 2, any ancestor), whichever is smaller.
    """
    limits = [int(psutil.virtual_memory().total)]
    try:
        lines = own_cgroups.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return limits[0]
    for file in _limit_files(cgroup_root, lines):
        try:
            text = file.read_text(encoding="utf-8").strip()
        except OSError:  # that group limits nothing, or its folder belongs to the host's tree
            continue
        if text.isdecimal():  # version 2 says "max" for no limit, version 1 a number near 2**63
            limits.append(int(text))
    return min(limits)


def _limit_files(root: Path, lines: list[str]) -> Iterator[Path]:
    """The files that can limit this process, from `/proc/self/cgroup`'s `id:controllers:path`."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            mounts, name = [root, root / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            mounts, name = [root / "memory", root / controllers], "memory.limit_in_bytes"
        else:
            continue
        # A group inherits the limits of all groups above it. In a container the path can be
        # the host's, of which only the root is visible: that is then the container's own.
        group = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for ancestor in (group, *group.parents):
                yield mount / ancestor / name


def process_started(pid: int) -> float | None:
    """When a process of this machine began, seconds of the clock on the wall.

    Returns:
        None if there is no such process, or it has ended and only waits to be noticed.
    """
    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else float(process.create_time())
    except (psutil.NoSuchProcess, ValueError, TypeError):
        return None


def thread_stacks() -> str:
    """Where every Python thread of this process is at this moment.

    Returns:
        A paragraph for each thread, the main thread first: its name, then its calls, the
        innermost last. Native code shows as the Python line that called it.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, item[0]))  # noqa: SLF001
    return "\n".join(
        f"Thread {names.get(ident, 'not started by Python')} ({ident}):\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in frames
    )


class Quiet:
    """Runs calls one by one in a thread that yields the processors to all others.

    A thread cannot get its priority back, so it is not the caller's own. Nothing that holds the
    GIL for long belongs there: others would wait for a thread that nobody lets run.

    Attributes:
        hurry: Whether somebody waits for the caller, which then runs its calls itself.
    """

    def __init__(self) -> None:
        self.hurry = False
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1, "keras_tricks-quiet", _give_way)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._pool is not None
        self._pool.shutdown()
        self._pool = None

    def __call__(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises."""
        if self.hurry or self._pool is None:
            return function()
        return self._pool.submit(function).result()


def _give_way() -> None:
    """Takes the lowest priority for this thread. Elsewhere it would be that of the process."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class Sink(io.RawIOBase):
    """What HDF5 writes into: a file from its byte `room` on, whose faults are told afterwards.

    HDF5 1.14 ends the process with a segmentation fault when it cannot write what it still holds
    as a file is closed, on a full disk for instance. So nothing fails here: after the first fault
    all is dropped.

    Args:
        path: The file.
        room: Bytes that stay free before the content.
        new: Whether it begins empty.

    Attributes:
        error: The first fault, None if there was none.
    """

    def __init__(self, path: Path, *, room: int = 0, new: bool = True) -> None:
        super().__init__()
        self.error: OSError | None = None
        self._room = room
        self._place = 0
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_TRUNC if new else 0)
        self._file = os.open(path, flags, 0o666)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place}
        start = base[whence] if whence in base else os.fstat(self._file).st_size - self._room
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        os.lseek(self._file, self._room + self._place, os.SEEK_SET)
        content = os.read(self._file, len(buffer))
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        count, written = len(content), 0
        try:
            os.lseek(self._file, self._room + self._place, os.SEEK_SET)
            while written < count and self.error is None:
                written += os.write(self._file, content[written:])
        except OSError as error:
            self.error = error
        self._place += count
        return count

    def truncate(self, size: int | None = None) -> int:
        size = self._place if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._file, self._room + size)
        except OSError as error:
            self.error = error
        return size

    def close(self) -> None:
        """Closes the file.

        Raises:
            OSError: If a part of the content could not be written.
        """
        if not self.closed:
            super().close()
            os.close(self._file)
            if self.error is not None:
                raise self.error
