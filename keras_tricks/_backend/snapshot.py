"""The state of a model at one instant, to be read by another thread while training goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend

_SMALL_BYTES = 1 << 20
_CHECKED_AT_ONCE = 1 << 22


class Snapshot:
    """Copies of variables, on their device until `to_host`.

    Args:
        variables: What to copy.
        copy: Whether the variables go on changing; else their values are only held.

    Attributes:
        on_host: Whether the device had no room, so that the copies are on the host at once.
    """

    def __init__(self, variables: Iterable[keras.Variable], *, copy: bool = True) -> None:
        self._variables = list(variables)
        self._written: dict[int, Any] = {}
        values, self.on_host = _backend.copies(self._variables, copy=copy)
        self._values = {id(v): value for v, value in zip(self._variables, values, strict=True)}

    def to_host(self) -> None:
        """Moves the copies off the device, one by one."""
        if not self.on_host:
            for key in self._values:
                self._values[key] = _backend.to_host(self._values[key])
            self.on_host = True

    def value(self, variable: keras.Variable) -> Any:
        """The variable's value as a tensor of the backend, on the host.

        Raises:
            RuntimeError: If it was not copied, so that only a later value could be had.
        """
        dataset = self._written.get(id(variable))
        if dataset is not None:
            return keras.ops.convert_to_tensor(_read_back(dataset), dtype=variable.dtype)
        if id(variable) not in self._values:
            raise RuntimeError(
                f"the variable {variable.path!r} is read when the model is saved, but no layer, "
                "optimizer or metric lists it. Pass `background=False`: training then waits for "
                "each save"
            )
        return self._values[id(variable)]

    def array(self, variable: keras.Variable) -> np.ndarray:
        """The variable's value, shared with the copy where that can be."""
        return _backend.as_array(self.value(variable))

    def written(self, variable: keras.Variable, dataset: Any) -> None:
        """Lets a large copy go, now that it can be read from the file.

        Memory so shrinks before the optimizer's state is written, of which Keras makes copies.
        """
        copied = self._values.get(id(variable))
        if copied is not None and _backend.as_array(copied).nbytes >= _SMALL_BYTES:
            self._written[id(variable)] = dataset
            del self._values[id(variable)]

    def not_finite(self, variables: Iterable[keras.Variable]) -> str | None:
        """Path of the first of the variables that is not finite, None if all are."""
        for variable in variables:
            if id(variable) in self._values and not all_finite(self.array(variable)):
                return str(variable.path)
        return None


class Live(Snapshot):
    """The variables themselves, for a save during which nothing trains."""

    def value(self, variable: keras.Variable) -> Any:
        if id(variable) in self._values or id(variable) in self._written:
            return super().value(variable)
        return _backend.read(variable)


def all_finite(array: np.ndarray) -> bool:
    """Whether no number of an array is NaN or infinite; True for what is no float."""
    if array.dtype.kind in "biuSUO":
        return True
    flat = array.reshape(-1)
    wide = np.float64 if array.dtype == np.float64 else np.float32
    for start in range(0, flat.size, _CHECKED_AT_ONCE):
        part = flat[start : start + _CHECKED_AT_ONCE]
        with np.errstate(all="ignore"):
            # The sum is not finite if one number is not; only if it is, each has to be looked at.
            numbers = part.astype(wide, copy=False)
            if not np.isfinite(np.add.reduce(numbers)) and not np.isfinite(numbers).all():
                return False
    return True


def _read_back(dataset: Any) -> np.ndarray:
    array = np.asarray(dataset)
    if dataset.attrs.get("dtype") == "bfloat16":
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array
