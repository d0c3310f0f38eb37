"""All that a training step reads and changes, listed and put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import keras_private


def build_all(model: keras.Model, batch: Any) -> None:
    """Creates every variable of a model and its optimizer, as the first step would.

    Args:
        model: The model.
        batch: A batch, with values or without; None where the model is built already.
    """
    if batch is not None:
        _backend.build(model, batch)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with _backend.strategy_scope(model):
            optimizer.build(model.trainable_variables)


def lasting_variables(model: keras.Model) -> list[keras.Variable]:
    """Weights, optimizer, seeds and RNN states."""
    optimizer = getattr(model, "optimizer", None)
    metrics = {id(variable) for variable in keras_private.metric_variables(model)}
    found = {
        id(variable): variable
        for variable in (
            *model.variables,
            *(optimizer.variables if optimizer is not None else ()),
            *keras_private.seed_states(model),
            *keras_private.rnn_states(model),
        )
    }
    return [variable for key, variable in found.items() if key not in metrics]


def metric_variables(model: keras.Model) -> list[keras.Variable]:
    """The running sums of the metrics, which Keras sets to zero at the beginning of an epoch."""
    return keras_private.metric_variables(model)


def assign(variables: Sequence[keras.Variable], arrays: Sequence[np.ndarray]) -> None:
    """Gives variables their values back, bit for bit.

    Raises:
        ValueError: If there are others than the arrays.
    """
    shapes = [tuple(variable.shape) for variable in variables]
    saved = [array.shape for array in arrays]
    if shapes != saved:
        place = next((i for i, (a, b) in enumerate(zip(shapes, saved, strict=False)) if a != b), -1)
        what = f"{len(shapes)} variables, had {len(saved)}"
        if place >= 0:
            path, shape = variables[place].path, shapes[place]
            what = f"{path} of shape {shape}, had one of shape {saved[place]}"
        raise ValueError(f"`model` must be the run's: it has {what}.")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
