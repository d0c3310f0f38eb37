"""Replay and guard on JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tricks._backend._guard_jax import JaxGuard

# Under `jax.grad` the values of the forward pass cannot be read.
TWO_PASSES = True
Guard = JaxGuard


def concrete(tensor: Any) -> bool:
    """Whether the tensor has a value that can be read now."""
    return isinstance(tensor, np.ndarray | jax.Array) and not isinstance(tensor, jax.core.Tracer)


def probed(tensor: Any, note: Callable[[Any], None]) -> Any:
    """The same tensor, whose gradient is shown to `note` when it arrives."""
    if not isinstance(tensor, jax.Array) or not jnp.issubdtype(tensor.dtype, jnp.floating):
        return tensor

    @jax.custom_vjp
    def probe(value: Any) -> Any:
        return value

    def forward(value: Any) -> tuple[Any, None]:
        return value, None

    def backward(_: None, upstream: Any) -> tuple[Any]:
        if not isinstance(upstream, jax.core.Tracer):  # inside a loop there is no value
            note(upstream)
        return (upstream,)

    probe.defvjp(forward, backward)
    return probe(tensor)


def loss_and_gradients(
    compute: Callable[[list[Any]], tuple[Any, Any]], values: list[Any]
) -> tuple[Any, list[Any]]:
    """Runs `compute(values)`, whose result is a loss and what else is wanted, and its gradients."""
    (_, extra), gradients = jax.value_and_grad(compute, has_aux=True)(values)
    return extra, list(gradients)


no_gradients = contextlib.nullcontext


def training_mode(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Keras passes the mode as an argument."""
    del model
    return contextlib.nullcontext()


def whole(batch: Any) -> Any:
    """A batch as one array on one device."""
    return keras.tree.map_structure(
        lambda leaf: (
            jnp.asarray(np.asarray(leaf))
            if isinstance(leaf, jax.Array) and len(leaf.devices()) > 1
            else leaf
        ),
        batch,
    )
