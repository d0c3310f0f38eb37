"""Replay and guard on TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tricks._backend._guard_tensorflow import TensorFlowGuard

TWO_PASSES = False
Guard = TensorFlowGuard


def concrete(tensor: Any) -> bool:
    """Whether the tensor has a value that can be read now."""
    return isinstance(tensor, np.ndarray) or (
        tf.is_tensor(tensor)
        and hasattr(tensor, "numpy")
        and not isinstance(tensor, tf.SparseTensor | tf.RaggedTensor)
    )


def probed(tensor: Any, note: Callable[[Any], None]) -> Any:
    """The same tensor, whose gradient is shown to `note` when it arrives."""
    if not tensor.dtype.is_floating:
        return tensor

    @tf.custom_gradient
    def probe(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            note(upstream)
            return upstream

        return tf.identity(value), gradient

    return probe(tensor)


def loss_and_gradients(
    compute: Callable[[list[Any]], tuple[Any, Any]], values: list[Any]
) -> tuple[Any, list[Any]]:
    """Runs `compute(values)`, whose result is a loss and what else is wanted, and its gradients."""
    values = [tf.identity(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss, extra = compute(values)
    gradients = tape.gradient(loss, values)
    return extra, [None if g is None else tf.convert_to_tensor(g) for g in gradients]


no_gradients = contextlib.nullcontext


def training_mode(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Keras passes the mode as an argument."""
    del model
    return contextlib.nullcontext()


def whole(batch: Any) -> Any:
    """A batch over all replicas, with None in the place of empty optionals."""

    def joined(leaf: Any) -> Any:
        if isinstance(leaf, tf.distribute.DistributedValues):
            return tf.concat([tf.convert_to_tensor(part) for part in leaf.values], axis=0)
        return None if isinstance(leaf, tf.experimental.Optional) else leaf

    return keras.tree.map_structure(joined, batch)
