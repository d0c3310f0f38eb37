"""The TensorFlow half of the seam."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Private: TensorFlow shows no other way to the generator of the seeds of its eager operations.
from tensorflow.python.eager import context as eager_context

from keras_tricks._backend import keras_private, passes
from keras_tricks._backend.runner import Data, Runner, cut, stepped, take_rows

STOP = (StopIteration, tf.errors.OutOfRangeError)


def replicas(model: keras.Model) -> int:
    """Devices over which the model's strategy spreads a batch."""
    return int(model.distribute_strategy.num_replicas_in_sync)


class TensorFlowRunner(Runner):
    """Forward pass compiled as the model is; losses and metrics in a graph without XLA.

    XLA would compile the second part again for each number of rows.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self.multiple_of = replicas(model)
        self._forward: Any = None
        self._spread: Any = None
        self._make()

    def _make(self) -> None:
        """Builds the functions; they trace at their first call."""
        eager = self.model.run_eagerly
        jit = bool(self.model.jit_compile)

        def graph(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            plain = tf.autograph.experimental.do_not_convert(function)
            return plain if eager else tf.function(plain, reduce_retracing=True, **options)

        self._forward = graph(self._forward_pass, jit_compile=jit)
        self._spread = graph(self._spread_pass)
        self._update = graph(self._update_pass)
        self._step = graph(self._step_pass, jit_compile=jit)

    def _forward_pass(self, carried: list[Any], x: Any) -> Any:
        mapping = keras_private.regularized(self.model)
        mapping += zip(self.carried, carried, strict=True)
        return passes.forward_pass(self.model, x, mapping, self.carried, self.facts).parts()

    def _spread_pass(self, carried: list[Any], x: Any) -> Any:
        strategy = self.model.distribute_strategy
        outputs = strategy.run(self._forward_pass, args=(carried, x))
        y_pred, masks, losses, values = outputs

        def joined(value: Any) -> Any:
            if value is None:
                return None
            return tf.concat(strategy.experimental_local_results(value), axis=0)

        def first(value: Any) -> Any:
            return strategy.experimental_local_results(value)[0]

        return (
            keras.tree.map_structure(joined, y_pred),
            [joined(mask) for mask in masks],
            [first(loss) for loss in losses],
            [first(value) for value in values],
        )

    def _update_pass(
        self, metrics: list[Any], data: Data, forward: Any, low: Any, high: Any
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        whole = passes.Forward(*forward)
        new, numbers, logs = passes.update_pass(
            self.model,
            take_rows(data, low, high),
            cut(whole, low, high),
            keras_private.regularized(self.model),
            (self.metrics, metrics),
            high - low,
            self.facts,
        )
        return new, tf.stack(numbers), logs

    def _step_pass(self, carried: list[Any], metrics: list[Any], data: Data) -> Any:
        return stepped(self, carried, metrics, data)

    def forward(self, carried: list[Any], x: Any, *, spread: bool) -> passes.Forward:
        if spread and self.multiple_of > 1:
            output = self._spread(carried, self._shards(x))
        else:
            output = self._forward(carried, x)
        forward = passes.Forward(*output)
        if self.carry_assigned():
            # Only tracing shows what the forward pass assigns; trace again with it carried.
            self._make()
            values = [read(v) for v in self.carried[len(carried) :]]
            return self.forward([*carried, *values], x, spread=spread)
        return forward

    def read(self, variable: keras.Variable) -> Any:
        return read(variable)

    def _shards(self, x: Any) -> Any:
        """An equal share of the rows for each replica."""
        strategy = self.model.distribute_strategy

        def share(leaf: Any) -> Any:
            if leaf is None:
                return None
            rows = leaf.shape[0] // self.multiple_of

            def part(context: Any) -> Any:
                index = context.replica_id_in_sync_group
                return leaf[index * rows : (index + 1) * rows]

            return strategy.experimental_distribute_values_from_function(part)

        return keras.tree.map_structure(share, x)

    def update(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        low, high = (tf.constant(edge, tf.int32) for edge in span)
        new, numbers, logs = self._update(metrics, data, forward.parts(), low, high)
        return new, numbers, logs

    def test_step(
        self, carried: list[Any], metrics: list[Any], data: Data
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        new_carried, new_metrics, logs = self._step(carried, metrics, data)
        return new_carried, new_metrics, logs


@contextlib.contextmanager
def undisturbed(model: keras.Model) -> Iterator[None]:
    """Nothing to put back: Keras's random state lives in variables, which nobody assigns."""
    del model
    yield


def random_state() -> random.Random | None:
    """What eager random operations without a seed draw theirs from, None without a global one."""
    generator: random.Random | None = getattr(eager_context.context(), "_rng", None)
    return generator


def own_random_state(training: random.Random | None) -> random.Random | None:
    """What a reader of evaluation data begins with: seeds that the training does not meet.

    TensorFlow keeps an operation by its seed and goes on where it stopped, so that a seed
    which the reader has used would not give the training the same numbers.
    """
    if training is None:
        return None
    own = random.Random()
    own.setstate(training.getstate())
    own.seed(own.random())
    return own


def set_random_state(state: random.Random | None) -> None:
    """Sets what `random_state` gave."""
    if state is not None:
        eager_context.context()._rng = state


def global_seed() -> int | None:
    """The seed that the user gave to TensorFlow, None without one."""
    seed: int | None = eager_context.global_seed()
    return seed


def with_seed(seed: int, function: Callable[[], Any]) -> Any:
    """Runs `function` under a global seed, and puts the user's back."""
    context = eager_context.context()
    before = context._seed, getattr(context, "_rng", None)
    tf.random.set_seed(seed)
    try:
        return function()
    finally:
        context._seed, context._rng = before


def outside_strategy(function: Callable[[], Any]) -> Any:
    """Runs `function` where no `tf.distribute` scope is active.

    Inside one, Keras divides every loss by the number of replicas, for a sum over replicas
    that an evaluation outside `strategy.run` does not make. A scope belongs to its thread.
    """
    if not tf.distribute.has_strategy():
        return function()
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body, name="keras_tricks-evaluation")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def read(variable: keras.Variable) -> Any:
    """A variable's value over all replicas: metrics add up, statistics are averaged.

    Outside a strategy's scope, a variable that each replica keeps for itself cannot be read
    like any other.
    """
    value = variable.value
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    parts = [tf.convert_to_tensor(part) for part in value.values]
    aggregation = getattr(value, "aggregation", tf.VariableAggregation.NONE)
    if len(parts) == 1 or aggregation in (
        tf.VariableAggregation.NONE,
        tf.VariableAggregation.ONLY_FIRST_REPLICA,
    ):
        return parts[0]
    synced = getattr(value, "synchronization", None) is not tf.VariableSynchronization.ON_READ
    if synced:
        return parts[0]
    total = tf.add_n(parts)
    mean = aggregation is tf.VariableAggregation.MEAN
    return total / tf.cast(len(parts), total.dtype) if mean else total


def sync(model: keras.Model) -> None:
    """TensorFlow's variables are always current."""
    del model


def is_chief() -> bool:
    """Whether this process is the one that writes."""
    resolver = tf.distribute.get_strategy().cluster_resolver
    if resolver is None or not resolver.cluster_spec().as_dict():
        return True
    return resolver.task_type in ("chief", None) or (
        resolver.task_type == "worker"
        and resolver.task_id == 0
        and "chief" not in resolver.cluster_spec().jobs
    )


def peak_device_bytes() -> tuple[int, int] | None:
    """Peak and limit of the first GPU, None without one."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    peak = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return peak, 0


def _one_step(inner: Callable[..., Any], iterator: Any, eager: bool) -> Callable[[Any], Any]:
    """The step on a batch that was read outside, traced with the iterator's own shapes.

    Keras traces the step where it reads the iterator, whose batch dimension is usually
    unknown. Traced with a batch's own shape, TensorFlow folds the number of rows into the
    arithmetic and the weights differ in their last bit. Kept on `inner`, so that a second
    `fit` traces nothing.
    """
    if eager:
        return lambda batch: inner(iter((batch,)))
    spec = getattr(iterator, "element_spec", None)
    kept = getattr(inner, "keras_tricks_step", None)
    if kept is not None and kept[0] == spec:
        return kept[1]

    @tf.autograph.experimental.do_not_convert
    def step(batch: Any) -> Any:
        return inner(iter((batch,)))

    signature = None if spec is None else [spec]
    function = tf.function(step, input_signature=signature, reduce_retracing=spec is None or None)
    inner.keras_tricks_step = (spec, function)  # type: ignore[attr-defined]
    return function


def tapped(
    inner: Callable[..., Any], tap: Any, steps_per_execution: int, *, eager: bool
) -> Callable[..., Any]:
    """Wraps `train_function(iterator)`: see `_backend.install_tap`."""

    def train_function(iterator: Any) -> Any:
        if not tap.active:
            return inner(iterator)
        size = steps_per_execution
        skip = tap.to_skip(size)
        if skip:
            tap.skipped(_take(iterator, skip))
            size -= skip
            if size == 0 or tap.epoch_over():
                return tap.last_logs
        allowed = tap.before(size)
        if allowed == 0:
            return tap.last_logs
        function = tap.guarded or inner
        if steps_per_execution == 1:
            tap.waiting()
            batch = next(iterator)
            tap.received(batch)
            if tap.peek is not None:
                tap.before_first(batch)
            logs = _one_step(function, iterator, eager)(batch)
            tap.after(1, logs)
            return logs
        if allowed < steps_per_execution or tap.peek is not None or tap.wants_batch(allowed):
            # The loop inside the graph has a fixed length, and nobody sees its batches.
            batches = _take(iterator, allowed)
            tap.received(batches[-1])
            if tap.peek is not None:
                tap.before_first(batches[0])
            logs = function(iter(batches))
            tap.after(len(batches), logs)
            return logs
        tap.batch = None
        logs = function(iterator)
        tap.after(None, logs)
        return logs

    return train_function


def _take(iterator: Any, count: int) -> list[Any]:
    """Up to `count` batches; raises what the iterator raises when there is none."""
    batches = [next(iterator)]
    with contextlib.suppress(*STOP):
        while len(batches) < count:
            batches.append(next(iterator))
    return batches


def latest_rows(batch: Any) -> int:
    """Rows of a batch, over all replicas."""
    leaf = next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)
    if isinstance(leaf, tf.distribute.DistributedValues):
        return sum(int(part.shape[0]) for part in leaf.values)
    return int(leaf.shape[0])


def build(model: keras.Model, batch: Data) -> None:
    """Creates what an evaluation reads, under the model's own strategy."""
    if keras_private.is_built(model):
        return
    scope = contextlib.nullcontext()
    if replicas(model) > 1 and not tf.distribute.has_strategy():
        scope = model.distribute_strategy.scope()
    with scope:
        keras_private.build(model, batch)


def strategy_scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Where variables of the model are created."""
    if replicas(model) > 1 and not tf.distribute.has_strategy():
        return model.distribute_strategy.scope()
    return contextlib.nullcontext()


def host_views(variables: list[keras.Variable]) -> list[np.ndarray] | None:
    """Arrays that share the memory of variables on the CPU; None if any is elsewhere.

    TensorFlow gives a variable another buffer at its next assignment as long as one is shared.
    """
    values = [tf.convert_to_tensor(read(variable)) for variable in variables]
    if not all("CPU" in value.device for value in values):
        return None
    # A single number of a type that NumPy does not know is no array, and not worth sharing.
    return [np.asarray(value if value.shape.rank else value.numpy()) for value in values]


def device_copies(variables: list[keras.Variable]) -> list[Any] | None:
    """Values that share the buffers of variables; TensorFlow copies those that it then changes."""
    try:
        return [tf.identity(read(variable)) for variable in variables]
    except tf.errors.ResourceExhaustedError:
        return None


def to_host(value: Any) -> np.ndarray:
    """A value as an array of its own."""
    return np.array(tf.convert_to_tensor(value).numpy())


RUNNER = TensorFlowRunner
