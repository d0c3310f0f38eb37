"""The value by which checkpoints are ranked: its name, its direction, and whether it is there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import keras
import numpy as np

from keras_tricks._backend.metric_kinds import metric_kinds
from keras_tricks._direction import Direction, direction_of, direction_of_metric


def check_monitor(monitor: object) -> str:
    """Validates the name of a value."""
    if not isinstance(monitor, str):
        raise TypeError(
            f'`monitor` must be the name of a value, got {monitor!r}. Pass `monitor="val_loss"`.'
        )
    if not monitor:
        raise ValueError('`monitor` must not be empty, got "". Pass `monitor="val_loss"`.')
    return monitor


class Monitor:
    """A monitored value of one `fit`.

    Args:
        name: Its name in the logs.
        mode: Which way it is better; "auto" asks the model.

    Attributes:
        direction: Which way it is better, None until `resolve`.
    """

    def __init__(self, name: str, mode: Literal["auto", "min", "max"]) -> None:
        self.name = name
        self.direction: Direction | None = None
        self._mode = mode
        self._prefix = "val_"
        self._known: dict[str, Direction | None] = {}
        self._outputs: tuple[str, ...] = ()
        self._found = False
        self._absent_from: list[set[str]] = []

    def resolve(self, model: keras.Model, members: Iterable[object]) -> Direction:
        """Which way the value is better.

        Args:
            model: The model, built.
            members: The callbacks of the `fit`, of which some evaluate, with a `prefix`.

        Raises:
            ValueError: If it cannot be known.
        """
        prefixes = [str(getattr(member, "prefix", "")) for member in members]
        fitting = [prefix for prefix in prefixes if prefix and self.name.startswith(prefix)]
        self._prefix = max(fitting, key=len, default="val_")
        self._outputs = tuple(getattr(model, "output_names", None) or ())
        kinds = metric_kinds(model)
        self._known = {name: direction_of_metric(kind) for name, kind in kinds.items()}
        self.direction = self._mode if self._mode != "auto" else self.direction_of(self.name)
        if self.direction is None:
            names = [f"{self._prefix}{name}" for name in self._known]
            raise ValueError(
                f'`mode` must be "min" or "max" for `monitor={self.name!r}`, whose direction is '
                f'not known, got "auto".{_suggestion(self.name, names)} This model has {names}. '
                'Pass `mode="min"` if lower is better.'
            )
        return self.direction

    def direction_of(self, name: str) -> Direction | None:
        """Which way any value of this model is better, None if nobody knows."""
        if name == self.name and self.direction is not None:
            return self.direction
        return direction_of(name, prefix=self._prefix, known=self._known, outputs=self._outputs)

    def is_among(self, values: Mapping[str, Any], evaluators: int) -> bool:
        """Whether the value is there.

        Args:
            values: What an evaluation gave.
            evaluators: How many callbacks evaluate, each with names of its own; one of them may
                have the value.

        Raises:
            ValueError: If none has it, or it is not a single number.
        """
        if self.name in values:
            self._found = True
            shape = np.shape(values[self.name])
            if shape:
                raise ValueError(
                    f"`monitor` must name a single number, got {self.name!r}, an array of shape "
                    f"{shape}. Pass the name of another value."
                )
            return True
        names = set(values)
        if names not in self._absent_from:
            self._absent_from.append(names)
        if not self._found and len(self._absent_from) >= max(1, evaluators):
            raise ValueError(
                f"`monitor` must be one of {sorted(names)}, got {self.name!r}."
                f"{_suggestion(self.name, sorted(names))}"
            )
        return False


def _suggestion(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
