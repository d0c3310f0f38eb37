"""Weights, optimizer and seeds back into a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import keras_private
from keras_tricks._backend.saving import Saver
from keras_tricks._backend.snapshot import Snapshot


def load_into(model: keras.Model, path: Path) -> None:
    """Loads weights and optimizer state from a file of Keras.

    Raises:
        ValueError: If the model has no weights yet, or others than the file.
    """
    _prepare(model)
    model.load_weights(path)


def load_new(path: Path) -> keras.Model:
    """The model in a `.keras` file, in Keras's safe mode."""
    return keras.models.load_model(path)


def load_mean(model: keras.Model, paths: Sequence[Path]) -> None:
    """Assigns the mean of several files' weights, taken in float64; nothing else is changed.

    What is not a number with a fraction, such as a counter, is taken from the first file.
    """
    _prepare(model)
    weights = {id(variable): variable for variable in model.weights}
    before = [(variable, _value(variable)) for variable in Saver(model).variables]
    sums: list[np.ndarray] = []
    firsts: list[np.ndarray] = []
    try:
        for path in paths:
            model.load_weights(path)
            values = [_value(variable) for variable in weights.values()]
            firsts = firsts or values
            wide = [value.astype("float64") for value in values]
            sums = [a + b for a, b in zip(sums, wide, strict=True)] if sums else wide
    finally:
        for variable, value in before:
            variable.assign(value)
    for variable, total, first in zip(weights.values(), sums, firsts, strict=True):
        whole = first.dtype.kind in "biu"
        variable.assign(first if whole else (total / len(paths)).astype(first.dtype))


def seeds_in(model: keras.Model, snapshot: Snapshot) -> list[dict[str, Any]]:
    """The states of the seed generators, in which no file of Keras has a place."""
    return [
        {"path": str(state.path), "state": snapshot.array(state).ravel().tolist()}
        for state in keras_private.seed_states(model)
    ]


def set_seeds(model: keras.Model, seeds: Sequence[Any]) -> bool:
    """Puts the states of seed generators back, by their order; whether they fit the model."""
    states = keras_private.seed_states(model)
    values = [seed.get("state") if isinstance(seed, dict) else None for seed in seeds]
    if len(states) != len(values):
        return False
    arrays = [np.asarray(value, "int64") for value in values]
    if any(a.shape != tuple(s.shape) for a, s in zip(arrays, states, strict=True)):
        return False
    for state, array in zip(states, arrays, strict=True):
        state.assign(array.astype(state.dtype))
    return True


def _prepare(model: keras.Model) -> None:
    """Creates the variables that a file is read into."""
    if not model.built:
        raise ValueError(
            "`model` has no weights yet. Call it once on a batch, or leave `model` out to get the "
            "model from the file."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with _backend.strategy_scope(model):
            optimizer.build(model.trainable_variables)


def _value(variable: keras.Variable) -> np.ndarray:
    array: np.ndarray = np.array(keras.ops.convert_to_numpy(_backend.read(variable)))
    return array
