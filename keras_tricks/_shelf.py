"""The kept checkpoints of a directory, as a user sees and takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import keras

from keras_tricks._backend import loading
from keras_tricks._checkpoint_files import damage, seeds_of
from keras_tricks._direction import Direction, direction_of
from keras_tricks._index import Index, Record, comparable, ranked

Mode = Literal["auto", "min", "max"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        rank: Its place by the monitored value, 1 is the best; None if that value was not finite.
        step: Training batches that its model had consumed.
        epoch: Epoch in which it was made, from 0.
        metrics: Every value of its evaluation, by name, and training's means since the one before.
        path: A standard file of Keras.
    """

    rank: int | None
    step: int
    epoch: int
    metrics: dict[str, Any]
    path: Path


def check_mode(mode: object) -> Mode:
    """Validates `mode`."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(f'`mode` must be "auto", "min" or "max", got {mode!r}. Pass `mode="min"`.')
    return mode


class Shelf:
    """The checkpoints of an index.

    Args:
        directory: Where the files are.
        index: What is known of them.
    """

    def __init__(self, directory: Path, index: Index) -> None:
        self._directory = directory
        self._index = index
        self._ranks = {id(r): place for place, r in enumerate(index.ranking(), start=1)}

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """All of them, best first."""
        return [self._seen(record) for record in self._index.best_first()]

    @property
    def best(self) -> Checkpoint | None:
        """The one with the best value."""
        return next((self._seen(record) for record in self._index.ranking()), None)

    @property
    def last(self) -> Checkpoint | None:
        """The newest one."""
        stored = self._index.stored
        return self._seen(stored[-1]) if stored else None

    def select(
        self, monitor: str | None, mode: Mode, between: tuple[int, int] | None
    ) -> Checkpoint:
        """The best by any value, within a range of steps: see `Checkpoints.select`."""
        first, last = _check_between(between)
        rule = self._index.rule
        if monitor is None:
            if rule is None:
                raise ValueError('`monitor` must be given: the index names none. Pass "val_loss".')
            monitor, mode = rule.monitor, rule.mode if mode == "auto" else mode
        direction = self._direction(monitor, check_mode(mode))
        stored = comparable(self._index.stored)
        inside = [record for record in stored if first <= record.step <= last]
        if not inside:
            steps = [record.step for record in stored]
            raise ValueError(f"`between` must hold a kept step, got {between!r}; kept are {steps}.")
        found = ranked(inside, monitor, direction)
        if not found:
            names = sorted({name for record in stored for name in record.values})
            raise ValueError(
                f"`monitor` must be a value that was recorded as a finite number, got {monitor!r}. "
                f"Pass one of {names}."
            )
        return self._seen(found[0])

    def restore(self, model: keras.Model | None, step: int | None) -> tuple[keras.Model, int]:
        """The model of a checkpoint and its step: see `Checkpoints.restore`."""
        record = self._intact(1)[0] if step is None else self._at(step)
        path = self._path(record)
        if model is not None:
            loading.load_into(model, path)
        elif path.suffix == ".keras":
            model = loading.load_new(path)
        else:
            raise ValueError(
                f"`model` must be given for {path.name}, which holds weights alone. Pass the model "
                "that they belong to."
            )
        seeds = seeds_of(self._directory, record)
        if seeds is not None and not loading.set_seeds(model, seeds):
            _warn(f"the seed generators of {path.name} do not fit the model and were left out")
        return model, record.step

    def average(self, top: int, model: keras.Model | None) -> keras.Model:
        """The mean of the best: see `Checkpoints.average`."""
        ranking = self._index.ranking()
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= len(ranking):
            raise ValueError(
                f"`top` must be from 1 to the number of ranked checkpoints, {len(ranking)}, got "
                f"{top!r}. Pass `top={max(1, len(ranking))}`, or keep more with `keep`."
            )
        paths = [self._path(record) for record in self._intact(top, ranking)]
        if model is None:
            model, _ = self.restore(None, None)
        loading.load_mean(model, paths)
        return model

    def _seen(self, record: Record) -> Checkpoint:
        rank = self._ranks.get(id(record))
        path = self._path(record)
        return Checkpoint(rank, record.step, record.epoch, record.values, path)

    def _path(self, record: Record) -> Path:
        assert record.file is not None
        return self._directory / record.file

    def _direction(self, monitor: str, mode: Mode) -> Direction:
        if mode != "auto":
            return mode
        rule = self._index.rule
        if rule is not None and monitor == rule.monitor:
            return rule.mode
        known = self._index.directions.get(monitor) or direction_of(monitor)
        if known is None:
            raise ValueError(
                f'`mode` must be "min" or "max" for {monitor!r}, whose direction is not known, got '
                '"auto". Pass `mode="min"` if lower is better.'
            )
        return known

    def _intact(self, count: int, records: Iterable[Record] | None = None) -> list[Record]:
        """The first `count` whose files are as they were written; says which are not."""
        found: list[Record] = []
        for record in self._index.best_first() if records is None else records:
            harm = damage(self._directory, record)
            if harm is None:
                found.append(record)
            else:
                _warn(f"{harm}; the next best is taken instead")
            if len(found) == count:
                return found
        if not found:
            raise FileNotFoundError(
                f"There is no checkpoint in {self._directory} that can be read."
            )
        return found

    def _at(self, step: int) -> Record:
        """The newest checkpoint of a step."""
        found = [record for record in self._index.stored if record.step == step]
        if not found:
            steps = sorted(record.step for record in self._index.stored)
            raise ValueError(
                f"`step` must be that of a kept checkpoint, got {step!r}. Pass one of {steps}."
            )
        harm = damage(self._directory, found[-1])
        if harm is not None:
            raise ValueError(f"{harm}. Leave `step` out to get the best that can be read.")
        return found[-1]


def _check_between(between: object) -> tuple[float, float]:
    """Both ends of a range of steps, all of them for None."""
    if between is None:
        return 0, float("inf")
    pair = list(between) if isinstance(between, (tuple, list)) else []
    if len(pair) != 2 or not all(isinstance(step, int) for step in pair):
        raise TypeError(
            f"`between` must be a pair (first_step, last_step), got {between!r}. "
            "Pass for example `between=(1000, 2000)`."
        )
    return pair[0], pair[1]


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
