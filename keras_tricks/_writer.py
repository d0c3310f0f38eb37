"""Checkpoints written by another thread, one snapshot at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_tricks import host
from keras_tricks._backend import saving
from keras_tricks._backend.loading import seeds_in
from keras_tricks._backend.snapshot import Live, Snapshot
from keras_tricks._background import Background
from keras_tricks._direction import Direction
from keras_tricks._index import Record, Rule
from keras_tricks._store import Store

Directions = Mapping[str, Direction | None]


class Writer:
    """Stores evaluations and checkpoints while training goes on.

    Args:
        directory: Where they go.
        weights_only: Whether to write `.weights.h5` in place of `.keras`.
        background: Whether training goes on meanwhile.

    Attributes:
        store: The directory. Its index may be read at any time, and changed after `wait`.
        error: Why the latest save that failed did so, None if none did.
        failures: Saves that failed.
        waits: Saves that had to wait for the one before.
        wait_seconds: How long they waited, together.
    """

    def __init__(self, directory: Path, *, weights_only: bool, background: bool) -> None:
        self.store = Store(directory)
        self.error: str | None = None
        self.failures = 0
        self.waits = 0
        self.wait_seconds = 0.0
        self._weights_only = weights_only
        self._in_background = background
        self._thread = Background("keras_tricks-checkpoints")
        self._saver: saving.Saver | None = None
        self._snapshot: Snapshot | None = None
        self._quiet = host.Quiet()
        self._quiet.hurry = not background
        self._messages: list[str] = []

    def await_turn(self) -> None:
        """Waits for a copy that is not yet written: there is never more than one."""
        if self._thread.busy:
            self.waits += 1
            self.wait_seconds += self.wait()

    def save(
        self,
        record: Record,
        model: keras.Model,
        directions: Directions,
        stored: Callable[[Record], object],
    ) -> None:
        """Copies the state and hands it over; call `await_turn` before.

        Args:
            record: The evaluation of this state.
            model: The model, whose variables are current.
            directions: Which way each value is better.
            stored: Is told when the checkpoint is on disk.
        """
        saver = self._saver = self._saver or saving.Saver(model)
        if self._in_background:
            snapshot = Snapshot(saver.variables, instead_of=self._snapshot)
            self._snapshot = snapshot
        else:
            snapshot = Live(saver.variables, copy=False)

        def job() -> None:
            self._learn(directions)
            if self._attempt(lambda: self._write(record, model, saver, snapshot), record):
                stored(record)

        self._submit(job)

    def note(self, record: Record, directions: Directions) -> None:
        """Adds an evaluation without a checkpoint."""

        def add() -> None:
            self._learn(directions)
            self.store.add(record)

        self._submit(lambda: self._attempt(add, None))

    def rule(self, rule: Rule) -> None:
        """Keeps by another rule from now on."""
        self.wait()
        self.store.index = replace(self.store.index, rule=rule)

    def forget(self, records: Sequence[Record]) -> None:
        """Takes evaluations and their checkpoints out, as if they had not been made."""
        if not records:
            return
        self.wait()
        index = self.store.index
        gone = {id(record) for record in records}
        files = [record.file for record in records if record.file is not None]
        self.store.index = replace(
            index,
            records=tuple(record for record in index.records if id(record) not in gone),
            deleting=(*index.deleting, *files),
        )

    def wait(self) -> float:
        """Waits until all is written; the seconds that took."""
        self._quiet.hurry = True
        seconds = self._thread.wait()
        self._quiet.hurry = not self._in_background
        return seconds

    def close(self) -> None:
        """Waits until all is written, leaves the index in order and lets the model go."""
        self.wait()
        self._saver = self._snapshot = None
        self._attempt(self.store.close, None)

    def messages(self) -> list[str]:
        """What has been found amiss since the last call."""
        found = [*self.store.messages, *self._messages]
        self.store.messages.clear()
        self._messages.clear()
        return found

    def _submit(self, job: Callable[[], object]) -> None:
        self._thread.submit(job)
        if not self._in_background:
            self.wait()

    def _write(
        self, record: Record, model: keras.Model, saver: saving.Saver, snapshot: Snapshot
    ) -> None:
        with self._quiet:
            snapshot.to_host()
            bad = self._quiet(lambda: snapshot.not_finite(model.weights))
            if bad is not None:
                self._messages.append(
                    f"the weights of {bad} are not finite, so that no checkpoint is stored"
                )
                self.store.add(replace(record, note=f"not stored: {bad} is not finite"))
                return
            seeds = seeds_in(model, snapshot)
            write = saver.write_weights if self._weights_only else saver.write_model
            self.store.save(
                record,
                lambda path: write(path, snapshot, self._quiet),
                suffix=".weights.h5" if self._weights_only else ".keras",
                seeds={"seeds": seeds} if seeds else None,
            )

    def _learn(self, directions: Directions) -> None:
        index = self.store.index
        self.store.index = replace(index, directions={**index.directions, **directions})

    def _attempt(self, act: Callable[[], object], record: Record | None) -> bool:
        """A fault costs this save alone; whether there was none."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  a model's own code may raise anything
            self.error = words(error)
            what = "the index" if record is None else "a checkpoint"
            self._messages.append(f"{what} could not be written: {self.error}")
            if record is not None:
                self.failures += 1
                lost = replace(record, note=f"not stored: {self.error}")
                self._attempt(lambda: self.store.add(lost), None)
            return False
        return True


def words(error: Exception) -> str:
    """What went wrong, without the temporary name in which it did."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text: list[Any] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
