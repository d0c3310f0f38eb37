"""What every guard has: it rejects a training step whose result is not finite."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from keras_tricks._backend import keras_private

FLAG = "keras_tricks_not_finite"
"""Name under which a step says, beside its logs, that it was rejected."""

MOST_WAITING = 16
"""Steps after which a rejected one is known at the latest, where the device runs ahead."""


@dataclass(frozen=True)
class Event:
    """A step that was rejected.

    Attributes:
        ago: How many steps were executed since.
        data: Its batch as the train step got it, None where nobody has it.
        only_execution: Whether `ago` tells the execution but not the step in it.
        went_on: Whether later steps of the same execution have moved the weights.
    """

    ago: int
    data: Any
    only_execution: bool = False
    went_on: bool = False


class BaseGuard:
    """Selects, inside each training step, the state before it where that after it is not finite.

    A value that was not finite before the step, such as the start of a running minimum, is no
    fault of the step.

    Args:
        hold: Whether everything after a rejected step is rejected too, until the next `fit`.

    Attributes:
        keeps_state: Whether the state is that from before the rejected step.
        at_once: Called with the state and the event in the midst of an execution (JAX).
    """

    keeps_state = True
    at_once: Callable[[Any, Event], None]

    def __init__(self, *, hold: bool) -> None:
        self.hold = hold

    def make(self, model: keras.Model, base: Callable[..., Any]) -> Callable[..., Any]:
        """The model's train function `base` with the guard in it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Before a `fit`."""

    def events(self, logs: dict[str, Any], batch: Any, count: int, *, wait: bool) -> list[Event]:
        """The rejected steps that became known, of the last execution or before it.

        Args:
            logs: What the train function returned; the guard takes out what is its own.
            batch: The latest batch.
            count: Steps of the last execution.
            wait: Whether to wait for the device.
        """
        raise NotImplementedError


class Watch:
    """Sees in the logs that a step was not finite, where no guard is in it.

    Reads them when they are there: at once on TensorFlow, at most 16 steps later elsewhere.
    """

    keeps_state = False

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, list[Any], Any]] = deque()
        self._steps = 0

    def events(self, logs: dict[str, Any], batch: Any, count: int, *, wait: bool) -> list[Event]:
        """As a guard's."""
        if count:
            self._steps += count
            self._waiting.append((self._steps - 1, list(logs.values()), batch))
        while self._waiting:
            number, values, data = self._waiting[0]
            late = wait or len(self._waiting) > MOST_WAITING
            if not late and not all(tensors_ready(value) for value in values):
                break
            self._waiting.popleft()
            if not all(math.isfinite(v) for v in map(_number, values)):
                self._waiting.clear()
                return [Event(self._steps - 1 - number, data, count > 1)]
        return []


def _number(value: Any) -> float:
    """A log as one number; what has several is finite if their sum is."""
    array = keras.ops.convert_to_numpy(value)
    return float(array) if array.ndim == 0 else float(array.sum())


def tensors_ready(value: Any) -> bool:
    """Whether a value can be read without waiting for the device."""
    ready = getattr(value, "is_ready", None)
    if ready is not None:
        return bool(ready())
    device = getattr(value, "device", None)
    return getattr(device, "type", "cpu") == "cpu"


def guarded(
    kind: type[BaseGuard], model: keras.Model, base: Callable[..., Any], *, hold: bool
) -> tuple[BaseGuard, Callable[..., Any]]:
    """A guard and the train function with it, kept beside the one without: compiled once."""
    kept = getattr(base, "keras_tricks_guarded", None)
    if kept is None:
        kept = base.keras_tricks_guarded = {}  # type: ignore[attr-defined]
    if hold not in kept:
        guard = kind(hold=hold)
        kept[hold] = guard, guard.make(model, base)
    guard, function = kept[hold]
    guard.reset()
    return guard, function


def with_train_step(model: keras.Model, train_step: Any) -> Callable[..., Any]:
    """The train function that Keras makes around another `train_step`.

    A function that was made ignores a new `train_step`; so it is made once more.
    """
    made = model.train_function
    model.__dict__["train_step"] = train_step
    try:
        model.train_function = None
        model.make_train_function(force=True)
        function: Callable[..., Any] = model.train_function
        return function
    finally:
        del model.__dict__["train_step"]
        model.train_function = made


def state(model: keras.Model) -> list[keras.Variable]:
    """Every variable that a training step may assign to."""
    optimizer = model.optimizer
    variables = [
        *model.trainable_variables,
        *model.non_trainable_variables,
        *(optimizer.variables if optimizer is not None else ()),
        *model.metrics_variables,
        *keras_private.rnn_states(model),
    ]
    return list({id(variable): variable for variable in variables}.values())


def is_float(variable: Any) -> bool:
    """Whether a variable or tensor can hold what is not finite."""
    return "float" in keras.backend.standardize_dtype(variable.dtype)


def refreshed(model: keras.Model, logs: dict[str, Any]) -> dict[str, Any]:
    """What the metrics say now, under the names of `logs`; other values stay."""
    results = model.get_metrics_result()
    return {name: results.get(name, value) for name, value in logs.items()}
