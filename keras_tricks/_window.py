"""Training's means over the examples since the last look, from running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

State = Sequence[np.ndarray]


class Window:
    """Differences of running sums that Keras starts anew with each epoch.

    Keras's training metrics are means since the epoch began. Their variables are sums, so
    that what came in since the last look is a difference, also over the end of an epoch.
    """

    def __init__(self) -> None:
        self._pending: list[np.ndarray] | None = None
        self._base: list[np.ndarray] | None = None

    def epoch_began(self) -> None:
        """The sums start from zero."""
        self._base = None

    def epoch_ended(self, state: State) -> None:
        """The sums are about to be lost; keeps what nobody has taken."""
        self._pending = self._since(state)
        self._base = [np.array(value) for value in state]

    def take(self, state: State | None) -> list[np.ndarray] | None:
        """What came in since the last `take`.

        Args:
            state: The sums now; None after `epoch_ended`, when they are another's.

        Returns:
            Sums over the window, None when nothing is known of it.
        """
        taken = self._pending if state is None else self._since(state)
        self._pending = None
        if state is not None:
            self._base = [np.array(value) for value in state]
        return taken

    def state(self) -> list[Any]:
        """What it keeps, as values that JSON can hold."""
        return [_listed(self._pending), _listed(self._base)]

    def load_state(self, state: Sequence[Any]) -> None:
        """Takes up what `state()` gave."""
        self._pending, self._base = (_arrays(part) for part in state)

    def _since(self, state: State) -> list[np.ndarray]:
        new = difference(state, self._base)
        if self._pending is None or not _same_shapes(new, self._pending):
            return new
        with np.errstate(invalid="ignore"):
            return [a + b for a, b in zip(new, self._pending, strict=True)]


def difference(now: State, base: State | None) -> list[np.ndarray]:
    """`now - base`, or `now` where the sums have been reset since `base`.

    Args:
        now: The sums, arrays of any shape.
        base: The same earlier; None for zeros. A sum below its base, or other shapes, show
            that somebody reset the metrics in between.
    """
    current = [np.asarray(value) for value in now]
    if base is None or not _same_shapes(current, base):
        return current
    with np.errstate(invalid="ignore"):  # a metric may be infinite, and what came since is unknown
        differences = [a - b for a, b in zip(current, base, strict=True)]
    counts = [d for d in differences if d.ndim == 0]
    # A loss may be negative, a count cannot: the second variable of a mean is one.
    if len(counts) > 1 and counts[1] < 0:
        return current
    return differences


def _same_shapes(a: State, b: State) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape for x, y in zip(a, b, strict=True))


def _listed(state: State | None) -> list[Any] | None:
    return None if state is None else [[a.dtype.name, np.asarray(a).tolist()] for a in state]


def _arrays(state: list[Any] | None) -> list[np.ndarray] | None:
    return None if state is None else [np.asarray(values, dtype) for dtype, values in state]
