"""`kt.evaluate`: what `model.evaluate` would give on all examples in one batch."""

from __future__ import annotations

from typing import Any

import keras

from keras_tricks import host
from keras_tricks._arguments import checks_keywords
from keras_tricks._data import Batches
from keras_tricks._engine import engine_of

DEFAULT_BATCH_SIZE = 32


class Results(dict[str, Any]):
    """Results of an evaluation, a dict.

    Attributes:
        notes: What is not exact: the name of the metric, loss or layer, and a sentence.
    """

    notes: dict[str, str]


@checks_keywords
def evaluate(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
) -> Results:
    """Evaluates exactly, whatever the batch size, and leaves no trace in the model.

    Keys and values are those of `model.evaluate(..., return_dict=True)` on the same
    examples in one single batch; relative error at most 1e-5 in float32. A loss is a sum
    over a sum, so that padding, masks, sample weights and a ragged last batch weigh what
    they should. For the reduction `"sum"`, whose scale is the batch's, it is Keras's value
    at this batch size. A stateful RNN starts from reset states.

    Weights, metrics, RNN states, random state and train or eval mode are the same
    afterwards as before, also when the evaluation fails half-way.

    Args:
        model: A compiled model.
        x: Examples: arrays with `y`, `(x, y)`, `(x, y, sample_weight)`, a
            `tf.data.Dataset`, a `PyDataset`, a torch `DataLoader`, an iterable of batches.
        y: Targets, where `x` is arrays.
        sample_weight: Weights, where `x` is arrays; shape `[examples]` or per element.
        batch_size: Rows of a batch, 32 for arrays by default; re-batches datasets too.
        steps: Batches to use. For datasets the batches as they come, before re-batching.

    Returns:
        A dict with the attribute `notes`, which names what is not exact: *own tail* (depends
        on a whole batch) or *not decomposable* (one value for a batch). Each is also
        printed, once for each model.

    Raises:
        ValueError: If the data is empty, never ends and `steps` is None, or does not fit.
        TypeError: If `batch_size` or `steps` is not a number of the right kind.

    Example:
        >>> import numpy as np
        >>> x, y = np.arange(10.0)[:, None], np.zeros((10, 1))
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "relu")])
        >>> model.layers[0].set_weights([np.ones((1, 1)), np.zeros(1)])
        >>> model.compile(loss="mse")
        >>> keras_tricks.evaluate(model, x, y, batch_size=4)
        {'loss': 28.5}
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a keras.Model, got {type(model).__name__}. "
            "Pass `evaluate(model, x, y)`."
        )
    if not model.compiled:
        raise ValueError("`model` must be compiled. Call `model.compile(loss=...)` first.")
    batches = Batches(x, y, sample_weight, batch_size=batch_size, steps=steps, name="x", once=True)
    engine = engine_of(model)
    known = set(engine.notes)
    results = Results(engine.evaluate(batches, DEFAULT_BATCH_SIZE))
    results.notes = dict(engine.notes)
    for name in results.notes:
        if name not in known:
            host.say(f"kt.evaluate: {name!r} is {results.notes[name]}.")
    return results
