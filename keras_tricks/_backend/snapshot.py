"""The state of a model at one instant, to be read by another thread while training goes on."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend

_PIECE_BYTES = 1 << 23
_THREADS = min(4, os.cpu_count() or 1)
"""One thread does not use the memory's full speed, and a few do."""


class Snapshot:
    """Copies of variables: on their device until `to_host`, or on the host at once.

    Args:
        variables: What to copy.
        copy: Whether the variables go on changing; else their values are only held.
        instead_of: An earlier one of the same variables that nobody reads any more. Its memory is
            taken over, since to get as much of it again takes longer than to fill it.
    """

    def __init__(
        self,
        variables: Iterable[keras.Variable],
        *,
        copy: bool = True,
        instead_of: Snapshot | None = None,
    ) -> None:
        self._variables = list(variables)
        self._arrays: list[np.ndarray] = []
        self._on_device: list[Any] = []
        views = _backend.host_views(self._variables)
        if views is not None:
            spare = instead_of._arrays if instead_of is not None else []
            self._arrays = copied(views, spare) if copy else views
            return
        if copy:
            copies = _backend.device_copies(self._variables)
        else:
            copies = [_backend.read(variable) for variable in self._variables]
        if copies is None:  # no room on the device
            self._arrays = [_backend.to_host(_backend.read(v)) for v in self._variables]
        else:
            self._on_device = copies

    def to_host(self) -> None:
        """Moves the copies off the device, one by one."""
        self._on_device.reverse()
        while self._on_device:
            self._arrays.append(_backend.to_host(self._on_device.pop()))
        self._places = {id(v): place for place, v in enumerate(self._variables)}

    def array(self, variable: keras.Variable) -> np.ndarray:
        """The variable's value, not copied once more.

        Raises:
            RuntimeError: If it is not in the snapshot, so that only a later value could be had.
        """
        place = self._places.get(id(variable))
        if place is None:
            return self._unlisted(variable)
        return self._arrays[place]

    def not_finite(self, variables: Iterable[keras.Variable]) -> str | None:
        """Path of the first of the variables that is not finite, None if all are."""
        for variable in variables:
            if not all_finite(self.array(variable)):
                return str(variable.path)
        return None

    def _unlisted(self, variable: keras.Variable) -> np.ndarray:
        raise RuntimeError(
            f"the variable {variable.path!r} is read when the model is saved, but no layer, "
            "optimizer or metric lists it. Pass `background=False`: training then waits for "
            "each save"
        )


class Live(Snapshot):
    """The variables themselves, for a save during which nothing trains."""

    def _unlisted(self, variable: keras.Variable) -> np.ndarray:
        array: np.ndarray = _backend.to_host(_backend.read(variable))
        return array


def copied(arrays: list[np.ndarray], spare: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
    """Copies of arrays of any shape and type, made by several threads where it pays.

    Args:
        arrays: What to copy.
        spare: Arrays to write into where they are of the same shapes and types.
    """
    pairs = itertools.zip_longest(arrays, spare[: len(arrays)])
    copies = [other if _like(other, array) else np.empty_like(array) for array, other in pairs]
    pieces = _pieces(copies, arrays)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            np.copyto(*piece)

    large = sum(array.nbytes for array in arrays) > 2 * _PIECE_BYTES
    threads = [threading.Thread(target=work) for _ in range(_THREADS - 1 if large else 0)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    return copies


def _like(other: np.ndarray | None, array: np.ndarray) -> bool:
    if other is None:
        return False
    return (other.shape, other.dtype, other.strides) == (array.shape, array.dtype, array.strides)


def _pieces(
    copies: list[np.ndarray], arrays: list[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Parts of about equal size, each with its source."""
    for copy, array in zip(copies, arrays, strict=True):
        if array.nbytes <= _PIECE_BYTES or not array.flags.c_contiguous:
            yield copy, array
            continue
        step = _PIECE_BYTES // array.itemsize
        to, source = copy.reshape(-1), array.reshape(-1)
        for start in range(0, array.size, step):
            yield to[start : start + step], source[start : start + step]


def all_finite(array: np.ndarray) -> bool:
    """Whether no number of an array is NaN or infinite; True for what is no float."""
    if array.dtype.kind in "biuSUO":
        return True
    flat = array.reshape(-1)
    step = _PIECE_BYTES // max(array.itemsize, 1)
    wide = np.float64 if array.dtype == np.float64 else np.float32
    for start in range(0, flat.size, step):
        with np.errstate(all="ignore"):
            # The sum is not finite if one number is not; only if it is, each has to be looked at.
            numbers = flat[start : start + step].astype(wide, copy=False)
            if not np.isfinite(np.add.reduce(numbers)) and not np.isfinite(numbers).all():
                return False
    return True
