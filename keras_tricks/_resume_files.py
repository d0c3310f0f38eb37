"""The files from which an interrupted `fit` goes on: each is whole, or not taken.

Plain files alone: no backend is imported and no model known.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_tricks._files import TEMPORARY_PREFIX, write_atomically

FORMAT = 1

_NAME = re.compile(r"resume-(\d{6,})-step-(\d{8,})\.npz")
_FACTS = "facts.json"
_ARRAY = "array"
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class Saved:
    """What a file holds.

    Attributes:
        number: Its place among all saves of the directory; the newest has the highest.
        facts: Everything but the variables.
        arrays: The variables' values.
    """

    number: int
    facts: dict[str, Any]
    arrays: list[np.ndarray]


def saves(directory: Path) -> list[Path]:
    """The files of a directory, newest first."""
    if not directory.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    numbered = [(int(match[1]), path) for match, path in found if match is not None]
    return [path for _, path in sorted(numbered, reverse=True)]


def newest(directory: Path) -> tuple[Saved | None, list[str]]:
    """The newest file that is whole, and a sentence for each that is not.

    Raises:
        ValueError: If it was written by a later version of this package.
    """
    messages: list[str] = []
    for path in saves(directory):
        try:
            return read(path), messages
        except (OSError, KeyError, EOFError, zipfile.BadZipFile, json.JSONDecodeError) as error:
            messages.append(f"{path.name} is damaged ({error}), and the one before it is taken")
    return None, messages


def read(path: Path) -> Saved:
    """Reads a file, every byte of which is checked."""
    with zipfile.ZipFile(path) as archive:
        facts = json.loads(archive.read(_FACTS))
        if facts["format"] > FORMAT:
            raise ValueError(
                f"{path} has format {facts['format']}, written by a later version of "
                f"keras_tricks; this one reads format {FORMAT}. Update keras_tricks."
            )
        arrays = [_read(archive, place, kind) for place, kind in enumerate(facts.pop("arrays"))]
    count = facts.pop("variables")
    match = _NAME.fullmatch(path.name)
    number = int(match[1]) if match is not None else 0
    return Saved(number, _unpacked(facts, arrays), arrays[:count])


def write(
    directory: Path,
    saved: Saved,
    *,
    keep: int,
    quiet: Callable[[Callable[[], Any]], Any],
) -> Path:
    """Writes a file, then deletes those that it makes needless.

    Args:
        directory: Where.
        saved: What; arrays may stand anywhere in its facts.
        keep: How many files stay.
        quiet: Runs what takes long.

    Raises:
        OSError: If it could not be written; the others are then still there.
    """
    arrays = list(saved.arrays)
    facts = _packed(saved.facts, arrays)
    facts |= {
        "format": FORMAT,
        "variables": len(saved.arrays),
        "arrays": [[array.dtype.name, list(array.shape)] for array in arrays],
    }
    path = directory / f"resume-{saved.number:06d}-step-{saved.facts['run']['step']:08d}.npz"

    def content(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as archive:
            for place, array in enumerate(arrays):
                _write(archive, place, array, quiet)
            archive.writestr(_FACTS, json.dumps(facts))

    write_atomically(path, content)
    for old in saves(directory)[keep:]:
        old.unlink(missing_ok=True)
    return path


def tidy(directory: Path) -> None:
    """Removes what interrupted saves left; nobody else may be writing."""
    for path in directory.glob(f"{TEMPORARY_PREFIX}*-resume-*"):
        path.unlink(missing_ok=True)


def _entry(place: int) -> str:
    return f"{place:05d}.npy"


def _write(
    archive: zipfile.ZipFile, place: int, array: np.ndarray, quiet: Callable[..., Any]
) -> None:
    """Writes an array as `np.load` reads it; of a type that NumPy lacks, its bytes."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    plain = array.dtype.kind in "biufc"
    kind = (array.dtype.str, array.shape) if plain else ("|u1", flat.shape)
    shown = {"descr": kind[0], "fortran_order": False, "shape": kind[1]}
    with archive.open(_entry(place), "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, shown)
        for start in range(0, flat.size, _PIECE_BYTES):
            quiet(lambda start=start: file.write(flat[start : start + _PIECE_BYTES].data))


def _read(archive: zipfile.ZipFile, place: int, kind: Sequence[Any]) -> np.ndarray:
    name, shape = kind
    with archive.open(_entry(place)) as file:
        array = np.lib.format.read_array(file)
        if file.read(1):  # to the very end, where the checksum is compared
            raise EOFError(f"{_entry(place)} is longer than it says")
    if array.dtype.name != name:
        import ml_dtypes  # bfloat16 and its kin, a dependency of Keras

        array = array.view(np.dtype(getattr(ml_dtypes, name)))
    return array.reshape(shape)


def _packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """The value with each array put among the others, and its place noted."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: _packed(entry, arrays) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(entry, arrays) for entry in value]
    return value


def _unpacked(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {name: _unpacked(entry, arrays) for name, entry in value.items()}
    if isinstance(value, list):
        return [_unpacked(entry, arrays) for entry in value]
    return value
