"""The guard on TensorFlow, in the graph of the training step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from keras_tricks._backend.guarding import (
    FLAG,
    BaseGuard,
    Event,
    is_float,
    refreshed,
    state,
    with_train_step,
)


class TensorFlowGuard(BaseGuard):
    """Keeps the values from before a step and puts them back where the step is not finite.

    Where the loop over several steps runs inside the graph, nobody looks between them: variables
    of the guard's own keep which steps were rejected, and the first such batch.
    """

    def reset(self) -> None:
        if self._loop is not None:
            self._loop.reset()

    def make(self, model: keras.Model, base: Callable[..., Any]) -> Callable[..., Any]:
        size = int(model.steps_per_execution)
        # Under XLA a batch of any shape cannot be kept in one branch of a condition.
        keeps = not model.jit_compile and model.distribute_strategy.num_replicas_in_sync == 1
        self._loop = _Loop(size, self.hold, keeps) if size > 1 else None
        train_step = model.train_step

        @tf.autograph.experimental.do_not_convert
        def guarded(data: Any) -> Any:
            known = [_Part(variable) for variable in state(model)]
            before = [tf.identity(part.local) for part in known]
            logs = train_step(data)
            return self._select(model, known, before, logs, data)

        return with_train_step(model, guarded)

    def _select(
        self, model: keras.Model, known: list[_Part], before: list[Any], logs: Any, data: Any
    ) -> Any:
        names = list(logs)
        values = [tf.convert_to_tensor(logs[name]) for name in names]
        held = self._loop.begin() if self._loop is not None else tf.constant(False)

        def reject() -> list[Any]:
            for part, old in zip(known, before, strict=True):
                part.local.assign(old)
            fresh = refreshed(model, dict(zip(names, values, strict=True)))
            return [tf.cast(fresh[n], v.dtype) for n, v in zip(names, values, strict=True)]

        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            # All replicas must decide alike, and they can only talk outside of a condition.
            bad = tf.cast(_exactly(known, before, values), tf.float32)
            bad = context.all_reduce(tf.distribute.ReduceOp.SUM, bad) > 0
            new = tf.cond(bad | held, reject, lambda: values)
        else:
            total = tf.add_n([_sum(part.local) for part in known if part.is_float])
            total += tf.add_n([_sum(v) for v in values if v.dtype.is_floating] or [0.0])

            def look_again() -> list[Any]:
                # A sum may overflow where no number does.
                exactly = _exactly(known, before, values)
                return [exactly, *tf.cond(exactly | held, reject, lambda: values)]

            suspicious = ~tf.math.is_finite(total) | held
            bad, *new = tf.cond(suspicious, look_again, lambda: [tf.constant(False), *values])
        if self._loop is not None:
            self._loop.end(bad & ~held, data)
            return dict(zip(names, new, strict=True))
        # Keras adds up what its replicas return, which is not defined for truth values.
        return {**dict(zip(names, new, strict=True)), FLAG: tf.cast(bad, tf.float32)}

    def events(self, logs: dict[str, Any], batch: Any, count: int, *, wait: bool) -> list[Event]:
        if self._loop is not None:
            return self._loop.events(count)
        return [Event(0, batch)] if bool(logs.pop(FLAG, False)) else []


class _Part:
    """A variable, or the part of it that this replica has."""

    def __init__(self, variable: keras.Variable) -> None:
        self.is_float = is_float(variable)
        self.local = _local(variable.value)


def _local(value: Any) -> Any:
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    context = tf.distribute.get_replica_context()
    return value.values[int(tf.get_static_value(context.replica_id_in_sync_group))]


def _sum(tensor: Any) -> Any:
    return tf.cast(tf.reduce_sum(tensor), tf.float32)


def _exactly(known: list[_Part], before: list[Any], values: list[Any]) -> Any:
    """Whether something became not finite."""
    found = [
        tf.reduce_any(tf.math.is_finite(old) & ~tf.math.is_finite(tf.identity(part.local)))
        for part, old in zip(known, before, strict=True)
        if part.is_float
    ]
    found += [
        ~tf.reduce_all(tf.math.is_finite(value)) for value in values if value.dtype.is_floating
    ]
    return tf.reduce_any(tf.stack(found)) if found else tf.constant(False)


class _Loop:
    """What the steps of one execution leave for the time after it.

    Args:
        size: Steps of an execution.
        hold: Whether what comes after a rejected step is rejected too.
        keeps: Whether to keep the first rejected batch.
    """

    def __init__(self, size: int, hold: bool, keeps: bool) -> None:
        self._hold = hold
        self._keeps = keeps
        # One for each replica, which all run through the same steps.
        self._positions = [self._variable(lambda: 0) for _ in range(16)]
        self._rejected = self._variable(lambda: tf.zeros([size], tf.bool))
        self._held = self._variable(lambda: False)
        self._batch: tuple[Any, list[Any]] | None = None

    @staticmethod
    def _variable(initial: Callable[[], Any], **options: Any) -> Any:
        with tf.init_scope():
            return tf.Variable(initial(), trainable=False, **options)

    @property
    def _position(self) -> Any:
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else context.replica_id_in_sync_group
        return self._positions[int(tf.get_static_value(replica))]

    def reset(self) -> None:
        """Before a `fit`."""
        for position in self._positions:
            position.assign(0)
        self._rejected.assign(tf.zeros_like(self._rejected))
        self._held.assign(False)

    def begin(self) -> Any:
        """At the begin of a step: whether it comes after a rejected one that holds."""
        return tf.identity(self._held)

    def end(self, bad: Any, data: Any) -> None:
        """At its end: notes it, and its batch where it is the first."""
        first = bad & ~tf.reduce_any(self._rejected)
        here = tf.equal(tf.range(tf.shape(self._rejected)[0]), self._position)
        self._rejected.assign(self._rejected | (here & bad))
        if self._hold:
            self._held.assign(self._held | bad)
        self._position.assign_add(1)
        leaves = keras.tree.flatten(data)
        if not self._keeps or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
            return
        if self._batch is None:
            kept = [
                self._variable(
                    partial(tf.zeros, [0] * leaf.shape.rank, leaf.dtype),
                    shape=tf.TensorShape([None] * leaf.shape.rank),
                )
                for leaf in leaves
            ]
            self._batch = keras.tree.map_structure(lambda _: None, data), kept

        def keep() -> Any:
            for variable, leaf in zip(self._batch[1], leaves, strict=True):  # type: ignore[index]
                variable.assign(leaf)
            return tf.constant(True)

        tf.cond(first, keep, lambda: tf.constant(False))

    def events(self, count: int) -> list[Event]:
        """The rejected steps of the execution that just ended."""
        flags = self._rejected.numpy()
        for position in self._positions:
            position.assign(0)
        if not flags.any():
            return []
        self._rejected.assign(tf.zeros_like(self._rejected))
        data = [None] * len(flags)
        if self._batch is not None:
            structure, kept = self._batch
            data[0] = keras.tree.pack_sequence_as(
                structure, [tf.identity(variable) for variable in kept]
            )
        places = [int(place) for place in flags.nonzero()[0]]
        return [
            Event(count - 1 - place, data[i], went_on=not self._hold and place < count - 1)
            for i, place in enumerate(places)
        ]
