"""The JAX half of the seam."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tricks._backend import keras_private, passes
from keras_tricks._backend.runner import Data, Runner, cut, take_rows

STOP = (StopIteration,)


def mesh_rows(distribution: Any) -> int:
    """Devices along the batch dimension of a distribution's mesh."""
    mesh = distribution.device_mesh
    return int(dict(zip(mesh.axis_names, mesh.shape, strict=True))[distribution.batch_dim_name])


class JaxRunner(Runner):
    """Two jitted functions that donate nothing, so that a failure leaves the model whole.

    A jitted function has one shape. The rows of a ragged batch are therefore added one by
    one in a loop of variable length, compiled once, instead of once for each tail.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self.distribution = keras.distribution.distribution()
        self.multiple_of = mesh_rows(self.distribution) if self.distribution else 1
        self.jits = bool(model.jit_compile) and not model.run_eagerly
        self.adds_by_rows = self.jits
        self._make()

    def _make(self) -> None:
        jit: Callable[..., Any] = jax.jit if self.jits else lambda function: function
        self._forward = jit(self._forward_pass)
        self._whole = jit(self._update_pass)
        self._rows = jit(self._row_loop)
        self._step = jit(self._step_pass)
        self._results = jit(lambda metrics: Runner.results(self, metrics))

    def _weights(self) -> tuple[list[Any], list[Any]]:
        model = self.model
        return (
            [v.value for v in model.trainable_variables],
            [v.value for v in model.non_trainable_variables],
        )

    def _mapping(self, weights: tuple[list[Any], list[Any]]) -> list[tuple[Any, Any]]:
        """Everything the model reads; a jitted function would freeze what it is not given."""
        model = self.model
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        return list(zip(variables, [*weights[0], *weights[1]], strict=True))

    def _forward_pass(self, weights: Any, carried: list[Any], x: Any) -> Any:
        mapping = [*self._mapping(weights), *zip(self.carried, carried, strict=True)]
        output = passes.forward_pass(self.model, x, mapping, self.carried, self.facts).parts()
        return self._replicated(output) if self.jits else output

    def _replicated(self, structure: Any) -> Any:
        """Gathers the outputs: rows are cut and counted on whole batches."""
        if self.distribution is None:
            return structure
        mesh = self.distribution.device_mesh.backend_mesh
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.tree_util.tree_map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, everywhere), structure
        )

    def _update_pass(
        self, weights: Any, metrics: list[Any], data: Data, forward: Any
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        rows = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None).shape[0]
        new, numbers, logs = passes.update_pass(
            self.model,
            data,
            passes.Forward(*forward),
            self._mapping(weights),
            (self.metrics, metrics),
            rows,
            self.facts,
        )
        return new, jnp.stack(numbers), logs

    def _row_loop(
        self, weights: Any, metrics: list[Any], data: Data, forward: Any, low: Any, high: Any
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        def one(index: Any, values: list[Any]) -> tuple[list[Any], Any, dict[str, Any]]:
            def row(leaf: Any) -> Any:
                return None if leaf is None else jax.lax.dynamic_slice_in_dim(leaf, index, 1, 0)

            y_pred, masks, losses, carried = forward
            cut_forward = (
                keras.tree.map_structure(row, y_pred),
                [row(mask) for mask in masks],
                losses,
                carried,
            )
            return self._update_pass(
                weights, values, keras.tree.map_structure(row, data), cut_forward
            )

        def body(index: Any, state: Any) -> Any:
            values, numbers, _ = state
            new, added, logs = one(index, values)
            return new, numbers + added, logs

        _, numbers, logs = jax.eval_shape(one, low, metrics)
        start = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), (numbers, logs))
        new, sums, last = jax.lax.fori_loop(low, high, body, (metrics, *start))
        # The last entry is a mean over rows, the others are sums.
        return new, sums.at[-1].divide(jnp.maximum(high - low, 1)), last

    def _step_pass(self, weights: Any, carried: list[Any], metrics: list[Any], data: Data) -> Any:
        adapter = _Stateless(self, weights)
        return adapter.step(carried, metrics, data)

    def forward(self, carried: list[Any], x: Any, *, spread: bool) -> passes.Forward:
        x = self._place(x, spread=spread)
        forward = passes.Forward(*self._forward(self._weights(), carried, x))
        if self.carry_assigned():
            self._make()
            values = [v.value for v in self.carried[len(carried) :]]
            return self.forward([*carried, *values], x, spread=spread)
        return forward

    def update(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        rows = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None).shape[0]
        if span != (0, rows):
            data, forward = take_rows(data, *span), cut(forward, *span)
        new, numbers, logs = self._whole(self._weights(), metrics, data, forward.parts())
        return new, numbers, logs

    def update_by_rows(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        if not self.adds_by_rows:
            return self.update(metrics, data, forward, span)
        low, high = (jnp.asarray(edge, "int32") for edge in span)
        new, numbers, logs = self._rows(self._weights(), metrics, data, forward.parts(), low, high)
        return new, numbers, logs

    def test_step(
        self, carried: list[Any], metrics: list[Any], data: Data
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        new_carried, new_metrics, logs = self._step(
            self._weights(), carried, metrics, self._place(data, spread=True)
        )
        return new_carried, new_metrics, logs

    def results(self, metrics: list[Any]) -> dict[str, Any]:
        results: dict[str, Any] = self._results(metrics)
        return results

    def place(self, data: Any) -> Any:
        return self._place(data, spread=False)

    def _place(self, data: Any, *, spread: bool) -> Any:
        """Host arrays on the devices: rows spread over the mesh, or whole on each."""
        if self.distribution is None:
            return keras.tree.map_structure(
                lambda leaf: None if leaf is None else jax.device_put(leaf), data
            )
        mesh = self.distribution.device_mesh.backend_mesh
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

        def put(leaf: Any) -> Any:
            if leaf is None:
                return None
            layout = everywhere
            if spread and leaf.shape[0] % self.multiple_of == 0:
                layout = self.distribution.get_data_layout(leaf.shape).backend_layout
            return jax.device_put(leaf, layout)

        return keras.tree.map_structure(put, data)


class _Stateless:
    """A user's JAX `test_step(state, data)`, whose state is the list of all variables."""

    def __init__(self, runner: JaxRunner, weights: tuple[list[Any], list[Any]]) -> None:
        self.runner = runner
        self.weights = weights

    def step(self, carried: list[Any], metrics: list[Any], data: Data) -> Any:
        model = self.runner.model
        current = {id(v): value for v, value in zip(self.runner.carried, carried, strict=True)}
        frozen = [
            current.get(id(v), value)
            for v, value in zip(model.non_trainable_variables, self.weights[1], strict=True)
        ]
        logs, (_, frozen, metrics) = model.test_step((self.weights[0], frozen, metrics), data)
        keras_private.clear_losses(model)
        after = {
            id(v): value for v, value in zip(model.non_trainable_variables, frozen, strict=True)
        }
        new = [
            after.get(id(v), value) for v, value in zip(self.runner.carried, carried, strict=True)
        ]
        return new, list(metrics), dict(logs)


@contextlib.contextmanager
def undisturbed(model: keras.Model) -> Iterator[None]:
    """Nothing to put back: a jitted function cannot change the model."""
    del model
    yield


def random_state() -> None:
    """JAX has no generator that belongs to the process."""


def own_random_state(training: None) -> None:
    """Nor has a reader one."""
    del training


def set_random_state(state: None) -> None:
    """Nothing to put back."""
    del state


def outside_strategy(function: Callable[[], Any]) -> Any:
    """JAX has no strategy scopes."""
    return function()


def read(variable: keras.Variable) -> Any:
    """A variable's value, whole."""
    return variable.value


def sync(model: keras.Model) -> None:
    """Attaches the running `fit`'s state to the model, where it is not until the epoch ends."""
    model.jax_state_sync()


def is_chief() -> bool:
    """Whether this process is the one that writes."""
    return bool(jax.process_index() == 0)


def peak_device_bytes() -> tuple[int, int] | None:
    """Peak and limit of the first device, None where it does not tell."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" not in stats:
        return None
    return int(stats["peak_bytes_in_use"]), int(stats.get("bytes_limit", 0))


class _Counted:
    """The batches of one execution: counts them, times them, ends after `allowed`."""

    def __init__(self, iterator: Any, tap: Any, allowed: int) -> None:
        self.iterator = iterator
        self.tap = tap
        self.allowed = allowed
        self.count = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        if self.count >= self.allowed:
            raise StopIteration
        self.tap.waiting()
        batch = next(self.iterator)
        self.tap.received(batch)
        self.count += 1
        return batch


def tapped(
    inner: Callable[..., Any], tap: Any, steps_per_execution: int, *, eager: bool
) -> Callable[..., Any]:
    """Wraps `train_function(state, iterator)`: see `_backend.install_tap`."""
    del eager

    def train_function(state: Any, iterator: Any) -> Any:
        if not tap.active:
            return inner(state, iterator)
        size = steps_per_execution
        skip = tap.to_skip(size)
        if skip:
            tap.skipped([next(iterator) for _ in range(skip)])
            size -= skip
            if size == 0 or tap.epoch_over():
                return tap.last_logs, state
        allowed = tap.before(size)
        if allowed == 0:
            return tap.last_logs, state
        if tap.peek is not None:
            first = next(iterator)
            tap.publish(state)
            tap.before_first(first)
            iterator = itertools.chain([first], iterator)
        batches = _Counted(iterator, tap, allowed)
        logs, state = (tap.guarded or inner)(state, batches)
        tap.publish(state)
        tap.after(batches.count, logs)
        return logs, state

    return train_function


def publish(model: keras.Model, state: Any) -> None:
    """Makes the state of the step that just ended the one that `jax_state_sync` attaches.

    Keras does so itself, but only after the train function has returned.
    """
    trainable, non_trainable, optimizer, metrics = state
    model._jax_state = {
        "trainable_variables": trainable,
        "non_trainable_variables": non_trainable,
        "optimizer_variables": optimizer,
        "metrics_variables": metrics,
    }
    model._jax_state_synced = False


def latest_rows(batch: Any) -> int:
    """Rows of a batch, over all devices."""
    leaf = next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)
    return int(leaf.shape[0])


def build(model: keras.Model, batch: Data) -> None:
    """Creates what an evaluation reads."""
    if not keras_private.is_built(model):
        keras_private.build(model, batch)


def strategy_scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """JAX has no strategies."""
    del model
    return contextlib.nullcontext()


def host_views(variables: list[keras.Variable]) -> list[np.ndarray] | None:
    """Arrays that share the memory of variables on the CPU; None if any is elsewhere."""
    values = [variable.value for variable in variables]
    if not all(device.platform == "cpu" for value in values for device in value.devices()):
        return None
    return [_host_view(value) for value in values]


def _host_view(value: Any) -> np.ndarray:
    # What `np.asarray` gives is kept by the array, whose memory the next step can then not take
    # over: it would have to get as much anew. That of several devices or of bfloat16 is a copy.
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(value)


@jax.jit
def _copied(values: list[Any]) -> list[Any]:
    return [jnp.copy(value) for value in values]


def device_copies(variables: list[keras.Variable]) -> list[Any] | None:
    """Copies on the devices, None where they have no room for them.

    The next step takes over the buffers of the values themselves.
    """
    places: dict[Any, list[int]] = {}
    copies = [variable.value for variable in variables]
    for index, value in enumerate(copies):
        places.setdefault(frozenset(value.sharding.device_set), []).append(index)
    try:
        for devices, indices in places.items():
            group = [copies[index] for index in indices]
            if not all(_has_room(device, group) for device in devices):
                return None
            # One call for all that lies on the same devices: one compilation, none later.
            for index, value in zip(indices, _copied(group), strict=True):
                copies[index] = value
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    return copies


def _has_room(device: Any, values: list[Any]) -> bool:
    """Whether a device that tells it has room for copies of these values."""
    stats = device.memory_stats() or {}
    if not stats.get("bytes_limit"):
        return True
    free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return bool(free > 1.1 * sum(value.nbytes for value in values))


def to_host(value: Any) -> np.ndarray:
    """A value as an array of its own."""
    return np.array(value)


RUNNER = JaxRunner
