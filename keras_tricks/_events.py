"""TensorBoard event files, written by a thread of their own, without TensorFlow."""

import io
import itertools
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_tricks import host
from keras_tricks._files import check_writable

_BUCKETS = 30  # as many as TensorBoard's own writer makes
_file_number = itertools.count()


class Events:
    """An event file in a directory, as TensorBoard 2.21 shows it.

    Each event is on its way to the disk before the next is looked at, so that a running
    TensorBoard shows it and a killed process loses none that the thread had seen. After
    construction writing never raises an `OSError`: on a full disk events are left out, the file
    stays readable, and it goes on when there is room again.

    Args:
        directory: Where the file shall be, created where missing. One instance, one file.

    Attributes:
        error: The first `OSError` while writing, None as long as there was none.

    Raises:
        OSError: If no file can be created in `directory`.
        ValueError: If `directory` is the address of a remote store.

    Example:
        >>> events = Events("run/validation")
        >>> events.scalar("evaluation_loss_vs_iterations", 0.25, step=100)
        >>> events.close()
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        folder = check_writable(directory, name="log_dir")
        self._file = _EventFile(folder)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        # A daemon, since a `fit` that raised must not keep the process alive. The thread holds
        # no reference to this object: when that is forgotten, or the interpreter ends, the
        # finalizer lets the thread finish what is queued.
        self._thread = threading.Thread(
            target=_write_all,
            args=(self._queue, self._file),
            name="keras_tricks-events",
            daemon=True,
        )
        self._thread.start()
        self._finish = weakref.finalize(self, _stop, self._queue, self._thread)

    @property
    def error(self) -> OSError | None:
        """The first failure to write, None as long as there was none."""
        return self._file.error

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Adds a point to a curve.

        Args:
            tag: The name of the curve.
            value: The point, stored as float32. NaN and infinities are kept.
            step: The place on the x axis.
        """
        number = float(value)
        self._add(tag, step, lambda: _scalar_parts(number))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Adds a text.

        Args:
            tag: The name of the text.
            markdown: The text.
            step: The place on the x axis.
        """
        encoded = str(markdown).encode()
        self._add(tag, step, lambda: _text_parts(encoded))

    def histogram(self, tag: str, values: Any, step: int) -> None:
        """Adds a distribution.

        Args:
            tag: The name of the distribution.
            values: An array-like of any shape. It is copied; values that are not finite are left
                out. None left gives an empty histogram.
            step: The place on the x axis.
        """
        copy = np.array(values, dtype=np.float64).ravel()
        self._add(tag, step, lambda: _histogram_parts(copy))

    def flush(self) -> None:
        """Waits until all that was added so far has been handed to the system."""
        if self._finish.alive:
            done = threading.Event()
            self._queue.put(done)
            while not done.wait(1.0) and self._thread.is_alive():
                pass

    def close(self) -> None:
        """Writes what is left, closes the file and ends the thread; again does nothing."""
        self._finish()

    def _add(self, tag: str, step: int, parts: Callable[[], tuple[str, Any]]) -> None:
        """Queues an event of this moment."""
        if not self._finish.alive:
            raise ValueError(
                f"`{tag}` cannot be added to an event file that is closed. Open a new `Events`."
            )
        moment, number = time.time(), int(step)
        self._queue.put(lambda: _event(moment, number, tag, *parts()))


_Item = Callable[[], bytes] | threading.Event | None
"""What waits in the queue: an event to be made, a mark to be reached, or None for the end."""


def _write_all(items: "queue.SimpleQueue[_Item]", file: "_EventFile") -> None:
    """The thread: writes until the end is reached."""
    while (item := items.get()) is not None:
        if isinstance(item, threading.Event):
            item.set()
        else:
            file.append(item())
    file.close()


def _stop(items: "queue.SimpleQueue[_Item]", thread: threading.Thread) -> None:
    """Lets the thread write what is left and waits for it."""
    items.put(None)
    if thread is not threading.current_thread():  # the garbage collector runs on any thread
        thread.join()


class _EventFile:
    """Records at the end of a file, each one whole or not there.

    Not TensorBoard's `EventFileWriter`: that one loads TensorFlow wherever it is installed,
    takes up to two minutes to show an event, and leaves half a record on a full disk, after which
    nothing in the file can be read.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        # TensorBoard reads the files of a directory in the order of their names.
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
            f".{os.getpid()}.{next(_file_number):06d}"
        )
        self.error: OSError | None = None
        self._size = 0
        self._torn = False
        # Without a buffer of Python's: what is written has left this process.
        self._raw = (folder / name).open("xb", buffering=0)
        self.append(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if self.error is not None:
            self._raw.close()
            raise self.error

    def append(self, event: bytes) -> None:
        """Adds a record, or leaves the file as it was and reports the first time why."""
        if self._torn:
            return
        record = _record(event)
        try:
            written = 0
            while written < len(record):  # the system may take a part
                written += self._raw.write(record[written:])
            self._size += written
        except OSError as error:
            self._cut()
            if self.error is None:
                self.error = error
                host.say(
                    f"Events: {self._raw.name} cannot be written ({error.strerror}); TensorBoard "
                    "will lack what falls into this time. Training goes on. Make room on the disk."
                )

    def _cut(self) -> None:
        """Removes what was written of a record."""
        try:
            self._raw.truncate(self._size)
            self._raw.seek(self._size)
        except OSError:  # the disk itself is gone; what stands before the tear can be read
            self._torn = True

    def close(self) -> None:
        """Closes the file."""
        self._raw.close()


def _record(event: bytes) -> bytes:
    """The event in TensorFlow's record format: length, data, and the check sum of each."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    RecordWriter(out).write(event)
    return out.getvalue()


def _event(moment: float, step: int, tag: str, plugin: str, tensor: Any) -> bytes:
    """An event with one value, shown by the dashboard of `plugin`."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
    return Event(wall_time=moment, step=step, summary=Summary(value=[value])).SerializeToString()


def _scalar_parts(number: float) -> tuple[str, Any]:
    from tensorboard.util.tensor_util import make_tensor_proto

    with np.errstate(over="ignore"):  # beyond float32 is infinite to TensorBoard
        return "scalars", make_tensor_proto(np.float32(number))


def _text_parts(encoded: bytes) -> tuple[str, Any]:
    from tensorboard.util.tensor_util import make_tensor_proto

    return "text", make_tensor_proto(encoded, dtype=np.object_)


def _histogram_parts(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[str, Any]:
    from tensorboard.util.tensor_util import make_tensor_proto

    return "histograms", make_tensor_proto(buckets(values), dtype=np.float64)


def buckets(
    values: np.ndarray[Any, np.dtype[np.float64]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Counts values in buckets of one width.

    Args:
        values: Of any shape; those that are not finite are left out.

    Returns:
        Left edge, right edge and count of each bucket, shape `[30, 3]`; all zero without values.
        The last bucket includes its right edge. Where all values are equal, so are all edges, and
        the last bucket has the count: the form of TensorBoard's own writer.
    """
    finite = values[np.isfinite(values)]
    result = np.zeros((_BUCKETS, 3))
    if finite.size == 0:
        return result
    low, high = finite.min(), finite.max()
    # Divided before the difference, which may be beyond the largest float.
    width = high / _BUCKETS - low / _BUCKETS
    if width == 0:
        result[:, :2] = low
        result[-1, 2] = finite.size
        return result
    places = (finite / _BUCKETS - low / _BUCKETS) / width * _BUCKETS
    share = np.arange(_BUCKETS + 1) / _BUCKETS
    edges = low * (1 - share) + high * share
    result[:, 0], result[:, 1] = edges[:-1], edges[1:]
    result[:, 2] = np.bincount(np.minimum(places.astype(int), _BUCKETS - 1), minlength=_BUCKETS)
    return result
