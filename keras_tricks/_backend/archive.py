"""A zip archive made around a file that is already there, so that it is written once."""

from __future__ import annotations

import contextlib
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
