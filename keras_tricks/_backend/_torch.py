"""The PyTorch half of the seam."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import ml_dtypes
import numpy as np
import torch

from keras_tricks._backend import keras_private, passes
from keras_tricks._backend.runner import Data, Runner, cut, stepped, take_rows

STOP = (StopIteration,)


class TorchRunner(Runner):
    """Runs eagerly: PyTorch needs no compilation, so that any number of rows will do."""

    def forward(self, carried: list[Any], x: Any, *, spread: bool) -> passes.Forward:
        del spread
        mapping = keras_private.regularized(self.model)
        mapping += zip(self.carried, carried, strict=True)
        with torch.no_grad():
            forward = passes.forward_pass(
                self.model, self.place(x), mapping, self.carried, self.facts
            )
        if self.carry_assigned():
            values = [v.value for v in self.carried[len(carried) :]]
            return self.forward([*carried, *values], x, spread=False)
        return forward

    def update(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        x, y, sample_weight = take_rows(data, *span)
        # Keras multiplies masks into the weights in place.
        weights = keras.tree.map_structure(
            lambda leaf: None if leaf is None else leaf.clone(), sample_weight
        )
        with torch.no_grad():
            new, numbers, logs = passes.update_pass(
                self.model,
                (x, y, weights),
                cut(forward, *span),
                keras_private.regularized(self.model),
                (self.metrics, metrics),
                span[1] - span[0],
                self.facts,
            )
            return new, torch.stack(numbers), logs

    def test_step(
        self, carried: list[Any], metrics: list[Any], data: Data
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        with torch.no_grad():
            return stepped(self, carried, metrics, self.place(data))

    def results(self, metrics: list[Any]) -> dict[str, Any]:
        with torch.no_grad():
            return super().results(metrics)


@contextlib.contextmanager
def undisturbed(model: keras.Model) -> Iterator[None]:
    """Keeps train/eval mode of each module and the generators of each device as they were.

    An unseeded `Dropout` draws from the global generator.
    """
    modes = [(module, module.training) for module in model.modules()]
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """States of the generators of the CPU and of each GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.random.get_rng_state(), gpus


def own_random_state(training: Any) -> Any:
    """What a reader of evaluation data begins with: the same."""
    return training


def set_random_state(state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    """Sets what `random_state` gave."""
    torch.random.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def outside_strategy(function: Callable[[], Any]) -> Any:
    """PyTorch has no strategy scopes."""
    return function()


def read(variable: keras.Variable) -> Any:
    """A variable's value, whole."""
    return variable.value


def sync(model: keras.Model) -> None:
    """PyTorch's parameters are always current."""
    del model


def is_chief() -> bool:
    """Whether this process is the one that writes."""
    distributed = torch.distributed
    ready = distributed.is_available() and distributed.is_initialized()
    return not ready or distributed.get_rank() == 0


def peak_device_bytes() -> tuple[int, int] | None:
    """Peak and capacity of the first GPU, None without one."""
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.max_memory_allocated()), int(torch.cuda.mem_get_info()[1])


def tapped(
    inner: Callable[..., Any], tap: Any, steps_per_execution: int, *, eager: bool
) -> Callable[..., Any]:
    """Wraps `train_function(batches)`: see `_backend.install_tap`."""
    del eager

    def train_function(batches: Any) -> Any:
        if not tap.active:
            return inner(batches)
        if tap.to_skip(1):
            tap.skipped(batches[:1])
            return tap.last_logs
        if tap.before(steps_per_execution) == 0:
            return tap.last_logs
        tap.received(batches[0])
        if tap.peek is not None:
            tap.before_first(batches[0])
        logs = (tap.guarded or inner)(batches)
        tap.after(1, logs)
        return logs

    return train_function


def latest_rows(batch: Any) -> int:
    """Rows of a batch."""
    leaf = next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)
    return int(leaf.shape[0])


def build(model: keras.Model, batch: Data) -> None:
    """Creates what an evaluation reads."""
    if not keras_private.is_built(model):
        keras_private.build(model, batch)


def strategy_scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """PyTorch has no strategies."""
    del model
    return contextlib.nullcontext()


def host_views(variables: list[keras.Variable]) -> list[np.ndarray] | None:
    """Arrays that share the memory of variables on the CPU; None if any is elsewhere."""
    values = [variable.value.detach() for variable in variables]
    if not all(value.device.type == "cpu" for value in values):
        return None
    return [_as_array(value) for value in values]


def device_copies(variables: list[keras.Variable]) -> list[Any] | None:
    """Copies on the device, None where it has no room for them."""
    try:
        return [variable.value.detach().clone() for variable in variables]
    except torch.OutOfMemoryError:
        return None


def to_host(value: Any) -> np.ndarray:
    """A value as an array of its own."""
    return np.array(_as_array(value.detach().cpu()))


def _as_array(value: Any) -> np.ndarray:
    if value.dtype == torch.bfloat16:  # which NumPy has from elsewhere
        return np.asarray(value.view(torch.uint16)).view(ml_dtypes.bfloat16)
    return np.asarray(value)


RUNNER = TorchRunner
