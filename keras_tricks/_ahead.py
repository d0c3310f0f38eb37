"""Evaluations that an interrupted process made after the last state it stored."""

from __future__ import annotations

from collections.abc import Iterable

from keras_tricks._index import Record, merged


class Ahead:
    """Tells evaluations that come again from those that are new.

    A run that goes on makes them once more. All that came of them is in the directory already. One
    that differs shows that the run takes another way, of which those that follow are no part.

    Args:
        records: The evaluations that lie ahead.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._waiting = list(records)
        self._met: Record | None = None

    def knows(self, record: Record) -> Record | None:
        """The evaluation in the directory that is this one, None if it is not there."""
        if self._met is not None and merged(self._met, record) is not None:
            return self._met  # several callbacks evaluate at one step
        self._waiting = [waiting for waiting in self._waiting if waiting.step >= record.step]
        for place, known in enumerate(self._waiting):
            if known.note is None and merged(known, record) is not None:
                self._met = self._waiting.pop(place)
                return self._met
        return None

    def give_up(self) -> list[Record]:
        """Those that do not come any more."""
        left, self._waiting = self._waiting, []
        return left
