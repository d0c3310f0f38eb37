"""How HDF5 writes a file, and a zip archive made around it, so that it is written once."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from keras_tricks.host import Quiet

ROOM = 512
"""Bytes before the content, for its header."""

_PIECE_BYTES = 1 << 24
_READ_BYTES = 1 << 20
_PADDING = 0xD935
"""Kind of an extra field that says nothing; Android's tools align members by it."""


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


@contextlib.contextmanager
def around(path: Path, name: str, quiet: Quiet) -> Iterator[zipfile.ZipFile]:
    """Turns a file with `ROOM` bytes free at its beginning into an archive of the rest.

    To write it once more, as `ZipFile.write` does, would take as long as everything else.

    Args:
        path: The file.
        name: The name that its content gets in the archive.
        quiet: Runs what takes long.

    Yields:
        The archive, for further members.
    """
    with path.open("r+b") as file:
        info = zipfile.ZipInfo(name, time.localtime()[:6])
        info.header_offset, info.external_attr = 0, 0o600 << 16
        info.file_size = info.compress_size = path.stat().st_size - ROOM
        info.CRC = _crc32(path, info.file_size, quiet)
        large = info.file_size >= zipfile.ZIP64_LIMIT
        free = ROOM - len(info.FileHeader(zip64=large))
        info.extra = struct.pack("<HH", _PADDING, free - 4).ljust(free, b"\0")
        file.write(info.FileHeader(zip64=large))
        info.extra = b""
        file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file, "w") as archive:
            archive.filelist.append(info)
            archive.NameToInfo[name] = info
            yield archive


def _crc32(path: Path, size: int, quiet: Quiet) -> int:
    """The checksum of the `size` bytes after the room."""
    value = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        file.seek(ROOM)

        def piece() -> int:
            checksum, left = value, _PIECE_BYTES
            while left > 0 and (count := file.readinto(buffer)):
                checksum = zlib.crc32(buffer[:count], checksum)
                left -= count
            return checksum

        for _ in range(0, size, _PIECE_BYTES):
            value = quiet(piece)
    return value
