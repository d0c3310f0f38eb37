"""Everything that plain Keras changes in a model while it trains or evaluates it, put back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras

from keras_tricks import _backend
from keras_tricks._backend import keras_private

FUNCTIONS = ("train_function", "test_function", "predict_function")
# What `fit` and `evaluate` leave on the model; `history` is the last `fit`'s.
MARKS = ("history", "stop_training", "stop_evaluating", "_initial_epoch", "steps_per_execution")


def _errors() -> tuple[type[Exception], ...]:
    """What a backend raises at a batch that it cannot take."""
    if _backend.NAME == "tensorflow":
        import tensorflow as tf

        return (ValueError, RuntimeError, tf.errors.OpError)
    return (ValueError, RuntimeError)


ERRORS = _errors()


@contextlib.contextmanager
def kept_values(model: keras.Model) -> Iterator[None]:
    """Restores every variable of a built model bit for bit, also after an error.

    The copies stay on the variables' devices. Weights, optimizer, metrics, seeds, RNN states,
    and on PyTorch the mode of each module.
    """
    _backend.sync(model)
    copies = [(part, keras.ops.copy(_value(part))) for part in _parts(model)]
    modes = [(module, module.training) for module in _modules(model)]
    try:
        yield
    finally:
        for part, copy in copies:
            # JAX gives a variable's buffer to the next training step; the copy may serve again.
            part.assign(keras.ops.copy(copy))
        for module, training in modes:
            module.training = training
        if _backend.NAME == "jax":
            # A failure in the midst of `fit` leaves the state outside the variables.
            model._jax_state, model._jax_state_synced = None, True


@contextlib.contextmanager
def kept_functions(model: keras.Model) -> Iterator[None]:
    """Gives the model its own compiled functions back, and what `fit` notes on it.

    Meanwhile there is one step in an execution. A `fit` would go on with a function that was
    traced for our batches, and so differ in the last bit from one that traced its own.
    """
    names = (*FUNCTIONS, *MARKS)
    before = {name: getattr(model, name) for name in names if hasattr(model, name)}
    try:
        for name in FUNCTIONS:
            setattr(model, name, None)
        model.steps_per_execution = 1
        yield
    finally:
        for name in names:
            if name in before:
                setattr(model, name, before[name])
            elif hasattr(model, name):
                delattr(model, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps back TensorFlow's warnings about retracing, which short runs of many kinds cause."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _parts(model: keras.Model) -> list[Any]:
    """What can be assigned to: the variables, on replicas with values of their own each of them."""
    optimizer = getattr(model, "optimizer", None)
    variables = [
        *model.variables,
        *keras_private.metric_variables(model),
        *keras_private.seed_states(model),
        *keras_private.rnn_states(model),
        *(optimizer.variables if optimizer is not None else ()),
    ]
    single = {id(variable): variable for variable in variables}.values()
    return [part for variable in single for part in _replicated(variable)]


def _replicated(variable: keras.Variable) -> tuple[Any, ...]:
    if _backend.NAME != "tensorflow":
        return (variable,)
    import tensorflow as tf

    value = variable.value
    return (
        tuple(value.values) if isinstance(value, tf.distribute.DistributedValues) else (variable,)
    )


def _value(part: Any) -> Any:
    return part.value if isinstance(part, keras.Variable) else part


def _modules(model: keras.Model) -> list[Any]:
    return list(model.modules()) if _backend.NAME == "torch" else []
