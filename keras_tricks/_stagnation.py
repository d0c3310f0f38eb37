"""Whether a training loss has stopped to move: plain arithmetic on its running means."""

from __future__ import annotations

import math

from keras_tricks._schedule import check_every


class Stagnation:
    """Compares the mean loss of each window of steps with the best window before it.

    Keras's loss is a running mean since the epoch began; the means of a window come from sums.

    Args:
        steps: Length of a window, None for no windows.
        min_improvement: Relative improvement below which a window is no better.
    """

    def __init__(self, steps: int | None, min_improvement: float) -> None:
        self.steps = None if steps is None else check_every("stagnant_steps", steps)
        if not 0 <= min_improvement < 1:
            raise ValueError(
                f"`min_improvement` must be at least 0 and below 1, got {min_improvement!r}. "
                "Pass `min_improvement=1e-3` for a thousandth."
            )
        self.min_improvement = float(min_improvement)
        self.begin()

    def begin(self) -> None:
        """Before a `fit`."""
        self.best: float | None = None
        self.newest = float("nan")
        self.first: float | None = None
        self._told = False
        self._sum = self._count = self._marked_sum = self._marked_count = 0.0

    def epoch_ended(self, loss: float, steps: int) -> None:
        """Takes up an epoch: its mean loss and how many steps it had."""
        self._sum += loss * steps
        self._count += steps

    def window_ended(self, loss: float, steps: int) -> bool:
        """Whether the window that ends now is the first that is no better than the best before it.

        Args:
            loss: Running mean of this epoch.
            steps: Steps of this epoch so far.
        """
        total, count = self._sum + loss * steps, self._count + steps
        taken = count - self._marked_count
        if taken <= 0:
            return False
        self.newest = (total - self._marked_sum) / taken
        self._marked_sum, self._marked_count = total, count
        if not math.isfinite(self.newest):
            return False
        if self.best is None:
            self.first = self.best = self.newest
            return False
        scale = max(abs(self.best), 1e-12)
        if (self.best - self.newest) / scale >= self.min_improvement:
            self.best, self._told = self.newest, False
            return False
        told, self._told = self._told, True
        return not told
