"""The files of a directory of checkpoints: what is there, whose it is, and whether it is whole.

Nothing is changed here.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_tricks._files import TEMPORARY_PREFIX
from keras_tricks._index import FILE_NAME, Index, Record, loads, record_of, rule_of
from keras_tricks.host import Sink

INDEX = "checkpoints.json"
MARK = "keras_tricks"
"""What a file of ours bears where its format has room for a remark."""

_SEEDS_NAME = re.compile(r"(step-\d{8,}(?:-\d+)?)\.seeds\.json")
_CHUNK_BYTES = 1 << 20
_STALE_SECONDS = 3600.0


def read(directory: Path) -> tuple[Index, list[str]]:
    """Reads an index and compares it with the files, without changing either.

    Returns:
        What is there, and a sentence for each thing that is not as it should be.

    Raises:
        OSError: If the directory or the index cannot be read.
        ValueError: If the index was written by a later version of this package.
    """
    names = {path.name for path in directory.iterdir()}
    index, messages = Index(), []
    if INDEX in names:
        text = (directory / INDEX).read_text(encoding="utf-8", errors="replace")
        try:
            index, complaints = loads(text)
        except ValueError as error:
            raise ValueError(f"{directory / INDEX} cannot be read: {error}") from error
        messages = [f"{INDEX} {complaint}" for complaint in complaints]
    listed = {record.file for record in index.records} | set(index.deleting)
    index, lost = without_lost(directory, index)
    strays = {}
    for name in sorted(names - listed):
        if FILE_NAME.fullmatch(name):
            description = description_of(directory / name)
            if description is not None:
                strays[name] = description
    index, taken = _with_strays(directory, index, strays)
    if taken and (messages or INDEX not in names):
        gone = f"{INDEX} is gone; " if INDEX not in names else ""
        messages.append(f"{gone}{taken} checkpoints were found by their own description")
    return index, [*messages, *lost]


def seeds_of(directory: Path, record: Record) -> list[Any] | None:
    """What was stored beside a checkpoint, None if nothing was."""
    assert record.file is not None
    states = _read_json(directory / seeds_name(record.file)).get("seeds")
    return states if isinstance(states, list) else None


def damage(directory: Path, record: Record) -> str | None:
    """What is wrong with the file of a checkpoint, None if it is as it was written."""
    assert record.file is not None
    path = directory / record.file
    lost = _loss(path, record)
    if lost is None and not _checksums_hold(path, record.crc32):
        return f"{record.file} is damaged: its content does not have its checksum"
    return lost


def _checksums_hold(path: Path, crc32: str | None) -> bool:
    """Whether a file has the content it was written with."""
    try:
        if crc32 not in (None, crc32_of(path)):
            return False
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError):
        return False
    return True


def crc32_of(path: Path) -> str:
    """The checksum of a file, eight hexadecimal digits.

    Of an archive only its directory is taken, at the end, which holds the checksums of the rest.
    """
    value, buffer, start = 0, memoryview(bytearray(_CHUNK_BYTES)), 0
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            start = archive.start_dir
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while count := file.readinto(buffer):
            value = zlib.crc32(buffer[:count], value)
    return f"{value:08x}"


def leftovers(directory: Path) -> list[Path]:
    """Files of saves that were interrupted, unless their process may still run."""
    found = []
    for path in directory.iterdir():
        seeds = _SEEDS_NAME.fullmatch(path.name)
        if path.name.startswith(TEMPORARY_PREFIX):
            if not _in_use(path):
                found.append(path)
        elif seeds is not None:
            files = [directory / f"{seeds[1]}{suffix}" for suffix in (".keras", ".weights.h5")]
            if not any(file.exists() for file in files) and MARK in _read_json(path):
                found.append(path)
    return found


def is_ours(path: Path, run: str) -> bool:
    """Whether a checkpoint says of itself that it belongs to this run."""
    description = description_of(path)
    return description is not None and description.get("run") == run


def description_of(path: Path) -> dict[str, Any] | None:
    """What a checkpoint of ours says of itself, None for any other file."""
    if path.is_symlink():
        return None
    try:
        if path.suffix == ".h5":
            import h5py  # 30 ms, and only here

            with h5py.File(path, "r") as file:
                text = str(file.attrs[MARK])
        else:
            with zipfile.ZipFile(path) as archive:
                text = archive.comment.decode("ascii")
        data = json.loads(text)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    return data if isinstance(data, dict) and MARK in data else None


def describe(path: Path, text: str) -> None:
    """Puts the description where Keras, zip and HDF5 have room for a remark."""
    if path.suffix == ".h5":
        import h5py

        with Sink(path, new=False) as sink, h5py.File(sink, "r+") as file:
            file.attrs[MARK] = text
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = text.encode("ascii")


def without_lost(directory: Path, index: Index) -> tuple[Index, list[str]]:
    """The index without files that are gone or changed, and a sentence for each."""
    records, messages = [], []
    for record in index.records:
        lost = None if record.file is None else _loss(directory / record.file, record)
        if lost is not None:
            messages.append(lost)
        records.append(record if lost is None else record.without_file(lost))
    return replace(index, records=tuple(records)) if messages else index, messages


def _loss(path: Path, record: Record) -> str | None:
    """What a look at a file's name and size shows."""
    if path.is_symlink():
        return f"{path.name} is a link, which is not followed"
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"{path.name} is gone"
    if record.size_bytes is not None and size != record.size_bytes:
        return f"{path.name} is damaged: it has {size} bytes instead of {record.size_bytes}"
    return None


def _with_strays(
    directory: Path, index: Index, strays: Mapping[str, dict[str, Any]]
) -> tuple[Index, int]:
    """Takes up checkpoints of this run that the index does not list, and how many."""
    if not strays:
        return index, 0
    newest = max(strays, key=lambda name: (directory / name).stat().st_mtime_ns)
    run = index.run or str(strays[newest].get("run", ""))
    taken = 0
    for name, description in strays.items():
        if description.get("run") != run:
            continue
        try:
            record = record_of(description.get("evaluation"))
        except ValueError:
            continue
        size = (directory / name).stat().st_size
        index = _placed(index, replace(record, file=name, size_bytes=size, crc32=None))
        if index.rule is None:
            index = replace(index, rule=rule_of(description))
        if not index.directions:
            index = replace(index, directions=description.get("directions") or {})
        taken += 1
    return replace(index, run=run), taken


def _placed(index: Index, record: Record) -> Index:
    """The index with a checkpoint in its place among the steps."""
    records = [
        known
        for known in index.records
        if known.file is not None or (known.step, known.by_fit) != (record.step, record.by_fit)
    ]
    later = (place for place, known in enumerate(records) if known.step > record.step)
    place = next(later, len(records))
    return replace(index, records=(*records[:place], record, *records[place:]))


def seeds_name(name: str) -> str:
    """The name of the file beside a checkpoint."""
    return re.sub(r"\.keras$|\.weights\.h5$", ".seeds.json", name)


def _read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty if there is none to read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _in_use(path: Path) -> bool:
    """Whether another process may still be writing a temporary file."""
    match = re.match(rf"{re.escape(TEMPORARY_PREFIX)}(\d+)-", path.name)
    if match is None:
        return True
    pid = int(match[1])
    if pid == os.getpid():
        return False
    try:
        if os.name != "nt":  # where the call would end the process
            os.kill(pid, 0)
        age_seconds = time.time() - path.stat().st_mtime
    except PermissionError:
        return True
    except OSError:
        return False
    # The number of a dead process is given out again; no save rests for an hour.
    return age_seconds < _STALE_SECONDS
