"""Saves of `kt.Resume`, written by another thread, one at a time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tricks import host
from keras_tricks._backend.snapshot import Snapshot
from keras_tricks._background import Background
from keras_tricks._resume_files import Saved, write

_writers: weakref.WeakSet[ResumeWriter] = weakref.WeakSet()


def settle(directory: Path) -> None:
    """Waits for saves into a directory by a `fit` of this process that raised."""
    for writer in list(_writers):
        if writer.directory.absolute() == directory.absolute():
            writer.wait()


class ResumeWriter:
    """Writes what a `fit` needs to go on, while it goes on.

    Args:
        directory: Where.
        keep: How many files stay.

    Attributes:
        directory: As given.
        number: Number of the next file.
        error: Why the latest save that failed did so, None if none did.
        failures: Saves that failed.
        seconds: How long training waited for copies and for the save before.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.number = 1
        self.error: str | None = None
        self.failures = 0
        self.seconds = 0.0
        self.directory = directory
        self._keep = keep
        self._thread = Background("keras_tricks-resume")
        self._quiet = host.Quiet()
        _writers.add(self)

    def save(self, facts: dict[str, Any], variables: Sequence[keras.Variable]) -> None:
        """Copies the variables and hands them over."""
        began = host.clock()
        self.wait()
        snapshot = Snapshot(variables)
        number, self.number = self.number, self.number + 1

        def job() -> None:
            try:
                with self._quiet:
                    snapshot.to_host()
                    arrays = [snapshot.array(variable) for variable in variables]
                    saved = Saved(number, facts, arrays)
                    write(self.directory, saved, keep=self._keep, quiet=self._quiet)
            except Exception as error:  # noqa: BLE001  a failed save ends no training
                self.failures += 1
                self.error = f"{type(error).__name__}: {error}"

        self._thread.submit(job)
        self.seconds += host.clock() - began

    def wait(self) -> None:
        """Waits until all is written."""
        self._quiet.hurry = True
        self._thread.wait()
        self._quiet.hurry = False
