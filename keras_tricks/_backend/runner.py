"""What an evaluation asks of a backend; one subclass in each backend's module."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
from keras import Variable

from keras_tricks._backend import keras_private, passes

Data = tuple[Any, Any, Any]


class Runner:
    """Runs the passes of one compiled model, compiled where the model is.

    Holds the model weakly: the engine of a model must not keep it alive.

    Attributes:
        facts: What the traces showed.
        carried: Variables that one batch hands to the next: RNN states, seeds, and what
            the forward pass turned out to assign.
        multiple_of: Rows of a batch must be a multiple of this to be spread over devices.
        notes_tail: Whether a batch cut by rows can only be added row by row (JAX).
    """

    multiple_of = 1
    adds_by_rows = False

    def __init__(self, model: keras.Model) -> None:
        self._model = weakref.ref(model)
        self.facts = passes.Facts()
        self.metrics: list[Variable] = []
        self.carried: list[Variable] = []

    @property
    def model(self) -> keras.Model:
        """The model; it is alive as long as somebody evaluates it."""
        model = self._model()
        if model is None:
            raise ReferenceError("The model of this evaluation no longer exists.")
        return model

    def start(self) -> tuple[list[Any], list[Any]]:
        """Values that an evaluation starts from: carried variables, metrics.

        RNN states begin as after a reset; all else as it stands.
        """
        self.metrics = keras_private.metric_variables(self.model)
        states = keras_private.rnn_states(self.model)
        known = {id(v) for v in self.carried}
        for variable in [*states, *keras_private.seed_states(self.model)]:
            if id(variable) not in known:
                self.carried.append(variable)
        reset = {id(v) for v in states}
        values = [
            keras.ops.zeros_like(v.value) if id(v) in reset else self.read(v) for v in self.carried
        ]
        return values, passes.reset_values(self.model, self.metrics)

    def read(self, variable: Variable) -> Any:
        """A variable's value as one tensor."""
        return variable.value

    def carry_assigned(self) -> bool:
        """Takes up variables that the last trace saw assigned; whether there were any."""
        self.carried.extend(self.facts.assigned)
        found = bool(self.facts.assigned)
        self.facts.assigned.clear()
        return found

    def forward(self, carried: list[Any], x: Any, *, spread: bool) -> passes.Forward:
        """The forward pass of one batch; `spread` over the devices or whole on each."""
        raise NotImplementedError

    def update(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        """Adds rows `span` to the metrics: new values, loss sums `[terms * 2 + 1]`, logs."""
        raise NotImplementedError

    def update_by_rows(
        self, metrics: list[Any], data: Data, forward: passes.Forward, span: tuple[int, int]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        """The same in parts that compile nothing new; here any rows do."""
        return self.update(metrics, data, forward, span)

    def test_step(
        self, carried: list[Any], metrics: list[Any], data: Data
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """A user's own `test_step` on one batch as it is."""
        raise NotImplementedError

    def results(self, metrics: list[Any]) -> dict[str, Any]:
        """What the metrics say with these values."""
        return passes.results_pass(self.model, self.metrics, metrics)

    def place(self, data: Any) -> Any:
        """Puts a structure of host arrays where the passes read it."""
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else keras.ops.convert_to_tensor(leaf), data
        )

    def to_host(self, values: Any) -> np.ndarray:
        """A tensor as a NumPy array; waits for it."""
        array: np.ndarray = keras.ops.convert_to_numpy(values)
        return array


def stepped(
    runner: Runner, carried: list[Any], metrics: list[Any], data: Data
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Calls a user's `test_step(data)` without letting it assign to any variable."""
    mapping = keras_private.regularized(runner.model)
    mapping += zip(runner.carried, carried, strict=True)
    mapping += zip(runner.metrics, metrics, strict=True)
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        logs = passes.settled(runner.model.test_step(data))
        keras_private.clear_losses(runner.model)
    return (
        passes.current(scope, runner.carried, carried),
        passes.current(scope, runner.metrics, metrics),
        logs,
    )


def take_rows(structure: Any, low: Any, high: Any) -> Any:
    """Rows `low` to `high` of every tensor of a structure; None stays None."""
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else leaf[low:high], structure
    )


def cut(forward: passes.Forward, low: Any, high: Any) -> passes.Forward:
    """The part of a forward pass that belongs to rows `low` to `high`."""
    masks = [None if mask is None else mask[low:high] for mask in forward.masks]
    return passes.Forward(
        take_rows(forward.y_pred, low, high), masks, forward.losses, forward.carried
    )
