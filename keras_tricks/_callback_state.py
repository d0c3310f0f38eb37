"""What a Keras callback remembers, such as `EarlyStopping` its patience."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np

_SKIPPED = ("params", "_model", "validation_data")

KERAS_OWN = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)
"""Callbacks whose counts and best values decide when training stops or what is saved."""


def state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Its attributes that are numbers, words, arrays or structures of them; no arguments."""
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in _SKIPPED and name not in _arguments(callback) and _holds(value)
    }


def put_back(callback: keras.callbacks.Callback, state: dict[str, Any]) -> None:
    """Sets the attributes that `state_of` gave, after `on_train_begin` has reset them."""
    for name, value in state.items():
        if name in vars(callback) and _holds(vars(callback)[name]):
            now = getattr(callback, name)
            setattr(callback, name, tuple(value) if isinstance(now, tuple) else value)


def _arguments(callback: keras.callbacks.Callback) -> set[str]:
    """What the user chose: it comes from the script again."""
    found: set[str] = set()
    for kind in type(callback).__mro__:
        if "__init__" in vars(kind):
            found |= set(inspect.signature(vars(kind)["__init__"]).parameters)
    return found


def _holds(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, str, np.ndarray, np.generic)):
        return not isinstance(value, np.ndarray) or value.dtype.kind != "O"
    if isinstance(value, (list, tuple)):
        return all(_holds(entry) for entry in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _holds(v) for k, v in value.items())
    return False
