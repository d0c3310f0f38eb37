"""The guard on PyTorch, around the train function: nothing there is compiled with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import keras
import torch

from keras_tricks._backend.guarding import (
    MOST_WAITING,
    BaseGuard,
    Event,
    is_float,
    refreshed,
    state,
)


class TorchGuard(BaseGuard):
    """Copies the state before each step; on a GPU the choice is made there, without waiting."""

    def reset(self) -> None:
        self._held: Any = None
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._steps = 0

    def make(self, model: keras.Model, base: Callable[..., Any]) -> Callable[..., Any]:
        self.reset()

        def train_function(batches: Any) -> Any:
            known = state(model)
            before = [variable.value.detach().clone() for variable in known]
            generator = torch.random.get_rng_state()
            logs = base(batches)
            with torch.no_grad():
                logs, rejected = self._select(model, known, before, logs, batches[0])
            if rejected:
                # Keras's dropout without a seed draws from it.
                torch.random.set_rng_state(generator)
            return logs

        return train_function

    def _select(
        self, model: keras.Model, known: list[Any], before: list[Any], logs: Any, data: Any
    ) -> tuple[Any, bool]:
        """The logs, and whether the step is known to be rejected."""
        bad = _not_finite(known, before, logs)
        rejected = bad if self._held is None else bad | self._held
        if self.hold:
            self._held = rejected
        for variable, old in zip(known, before, strict=True):
            value = variable.value
            value.copy_(torch.where(rejected.to(value.device), old, value))
        self._waiting.append((self._steps, bad, data))
        self._steps += 1
        if rejected.device.type != "cpu":
            fresh = refreshed(model, logs)
            return {
                k: torch.where(rejected, _tensor(fresh[k]), _tensor(logs[k])) for k in logs
            }, False
        return (refreshed(model, logs), True) if bool(rejected) else (logs, False)

    def events(self, logs: dict[str, Any], batch: Any, count: int, *, wait: bool) -> list[Event]:
        found = []
        most = 0 if wait or not self.hold else MOST_WAITING
        while self._waiting:
            number, bad, data = self._waiting[0]
            if len(self._waiting) <= most and bad.device.type != "cpu":
                break
            self._waiting.popleft()
            if bool(bad):
                found.append(Event(self._steps - 1 - number, data))
                if self.hold:
                    self._waiting.clear()
        return found


def _not_finite(known: list[Any], before: list[Any], logs: Any) -> torch.Tensor:
    """Whether something became not finite."""
    found = [
        (torch.isfinite(old) & ~torch.isfinite(variable.value)).any()
        for variable, old in zip(known, before, strict=True)
        if is_float(variable)
    ]
    values = [_tensor(value) for value in keras.tree.flatten(logs)]
    found += [~torch.isfinite(value).all() for value in values if value.is_floating_point()]
    if not found:
        return torch.zeros((), dtype=torch.bool)
    device = found[-1].device
    return torch.stack([flag.to(device) for flag in found]).any()


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value.value if isinstance(value, keras.Variable) else value).detach()
