"""`kt.print_tensors`: every tensor of one step, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_tricks import _backend, host
from keras_tricks._arguments import checks_keywords
from keras_tricks._backend import keras_private
from keras_tricks._backend.replay import replay
from keras_tricks._run import steps_consumed
from keras_tricks._tensor_look import check_layers, plain_report
from keras_tricks._tensor_report import TensorReport


@checks_keywords
def print_tensors(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    layers: str | Sequence[str] | None = None,
) -> TensorReport:
    """Prints shape and statistics of every tensor of one training step, without training.

    Forward pass, loss and gradients of the batch are run eagerly, as a training step would, and
    every layer's output is seen. Weights, optimizer, metrics, RNN states and random state are as
    before. The same seeds give the same table.

    Args:
        model: The model. One that was not built is built.
        x: Inputs of one batch, `[batch, ...]`, as `fit` takes them; several as list or dict.
        y: Targets of the batch. None, or a model that was not compiled: outputs and weights alone.
        layers: Names of layers, or a regular expression that matches a whole name. None: all.

    Returns:
        The report: `rows`, `diagnosis`, and `compare(other)`.

    Raises:
        TypeError: If `model` is no model, or `layers` of the wrong type.
        ValueError: If `layers` names no layer.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="out")])
        >>> report = keras_tricks.print_tensors(model, np.ones((4, 2)), layers="nothing|out")
        ... # doctest: +ELLIPSIS
        step 0: asked for.
        ...
        >>> report.rows[0].shape
        (4, 1)
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model, got {type(model).__name__}.")
    layers = check_layers(layers)
    _backend.sync(model)
    _build(model, x, y)
    trace = replay(model, (x, y, None))
    report = plain_report(steps_consumed(model), "asked for", trace, layers)
    for line in str(report).splitlines():
        host.say(line)
    return report


def _build(model: keras.Model, x: Any, y: Any) -> None:
    if model.compiled and y is not None:
        _backend.build(model, (x, y, None))
    elif not all(layer.built for layer in keras_private.flatten_layers(model)):
        model(
            keras.tree.map_structure(
                lambda leaf: keras.KerasTensor(
                    tuple(leaf.shape), keras.backend.standardize_dtype(leaf.dtype)
                ),
                x,
            )
        )
