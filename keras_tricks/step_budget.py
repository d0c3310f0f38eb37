"""`kt.StepBudget`: train exactly so many steps."""

from __future__ import annotations

from typing import Any

from keras_tricks._run import ADVICE, Finding
from keras_tricks._schedule import check_every
from keras_tricks._trick import Trick


class StepBudget(Trick):
    """Trains exactly so many steps, then ends `fit` cleanly.

    Give `fit` more epochs than needed: `model.fit(..., epochs=1000)`. The steps are counted
    in this `fit`, a resumed one counting on from where the interrupted one began. With
    `steps_per_execution` the last execution is as short as it must be.

    Args:
        steps: Training steps (batches), at least 1.

    Raises:
        TypeError: If `steps` is not a whole number.
        ValueError: If `steps` is below 1.

    Example:
        >>> keras_tricks.StepBudget(1500).steps
        1500
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = check_every("steps", steps)
        self._began: int | None = None
        self._resumed: int | None = None

    def on_begin(self) -> None:
        began = self.run.first_step_number if self._resumed is None else self._resumed
        self._began, self._resumed = began, None
        limit = began + self.steps
        self.run.limit = limit if self.run.limit is None else min(limit, self.run.limit)

    def summary(self) -> list[Finding]:
        trained = self.step - (self._began or 0)
        if trained >= self.steps:
            return [Finding(f"Trained {trained} steps, the whole budget.")]
        return [
            Finding(
                f"Trained {trained} of {self.steps} steps: `fit` ended first. "
                "Give it more `epochs` to use the whole budget.",
                ADVICE,
            )
        ]

    def state(self) -> dict[str, Any]:
        return {"began": self._began}

    def load_state(self, state: dict[str, Any]) -> None:
        self._resumed = state["began"]
