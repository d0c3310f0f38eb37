"""`kt.BestCheckpoints`: the best N checkpoints, written behind training's back."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from keras_tricks import host
from keras_tricks._ahead import Ahead
from keras_tricks._backend import saving
from keras_tricks._checkpoint_files import read
from keras_tricks._direction import Direction, direction_of
from keras_tricks._files import check_writable
from keras_tricks._index import Record, Rule, kept, merged, number
from keras_tricks._monitor import Monitor, check_monitor
from keras_tricks._run import ADVICE, PROBLEM, Evaluation, Finding, remember_steps
from keras_tricks._run_directory import shown
from keras_tricks._schedule import check_every
from keras_tricks._shelf import Checkpoint, Mode, Shelf, check_mode
from keras_tricks._trick import Trick
from keras_tricks._writer import Writer

WAIT_SHARE = 0.01
"""Of the time of a `fit`: what it waited for checkpoints beyond that is worth a sentence."""

Existing = Literal["error", "continue", "replace"]


class BestCheckpoints(Trick):
    """Keeps the checkpoints of the best evaluations and of the newest.

    A save happens at each evaluation by `StepEvaluation`; without one in the same `fit`, at each of
    Keras's own validations. The state is copied at once; another thread writes it, so that training
    hardly waits. Kept are the union of the `keep` best and the `keep_last` newest.

    The files are Keras's own, with optimizer state. `checkpoints.json` beside them lists every
    evaluation, kept or not, so that the choice can be made later: see `Checkpoints`.

    Args:
        directory: Where the checkpoints go; made where it is missing. On a local disk.
        monitor: Name of the value that tells which checkpoints are best.
        mode: "min" if lower is better, "max" if higher. "auto" knows every metric of Keras, and
            that a loss is minimised.
        keep: How many of the best to keep, at least 1.
        keep_last: How many of the newest to keep, from 0.
        existing: What to do with a directory that holds another run, one whose last step lies ahead
            of this model's: "error"; "continue" ranks on with what is there; "replace" deletes
            what an earlier run kept there, also where it does not lie ahead.
        save_weights_only: Whether to write `.weights.h5` in place of `.keras`: for a model whose
            configuration cannot be saved.
        background: Whether another thread writes. False lets training wait for each save.
        verbose: 1 prints a line for each checkpoint.

    Attributes:
        error: Why the latest save that failed did so, None if none did.
        failures: Saves that failed.
        waits: Saves that had to wait for the one before.
        wait_seconds: How long they waited, together.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a value is out of range. When `fit` begins, if the directory holds another
            run or the model's configuration cannot be saved; after its first step, if "auto" does
            not know the direction; at the first evaluation, if there is no such value.
        OSError: When `fit` begins, if the directory cannot be written.

    Example:
        >>> keras_tricks.BestCheckpoints("run/checkpoints", monitor="val_accuracy", keep=3).best
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        monitor: str = "val_loss",
        mode: Mode = "auto",
        keep: int = 5,
        keep_last: int = 1,
        existing: Existing = "error",
        save_weights_only: bool = False,
        background: bool = True,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.monitor = check_monitor(monitor)
        self.mode: Mode = check_mode(mode)
        self.keep = check_every("keep", keep)
        self.keep_last = 0 if _is_zero(keep_last) else check_every("keep_last", keep_last)
        self.existing = _check_existing(existing)
        self.save_weights_only = bool(save_weights_only)
        self.weights_where_needed = False
        """Whether a model whose configuration cannot be saved has its weights stored alone."""
        self.background = bool(background)
        self.verbose = verbose
        self._weights_only = self.save_weights_only
        self._writer = self._new_writer()
        self._opened_for: weakref.ref[keras.Model] | None = None
        self._monitor = Monitor(self.monitor, self.mode)
        self._submitted: Record | None = None
        self._goes_on = False
        self._ahead = Ahead()
        self._said: set[str] = set()

    # Results.

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The kept ones: by their value, best first, then those whose value was not finite."""
        return self._shelf.checkpoints

    @property
    def best(self) -> Checkpoint | None:
        """The one with the best value, None if there is none."""
        return self._shelf.best

    @property
    def last(self) -> Checkpoint | None:
        """The newest one, None if there is none."""
        return self._shelf.last

    def select(
        self,
        *,
        monitor: str | None = None,
        mode: Mode = "auto",
        between: tuple[int, int] | None = None,
    ) -> Checkpoint:
        """The best of the kept ones by any recorded value: see `Checkpoints.select`."""
        return self._shelf.select(monitor, mode, between)

    def restore(self, model: keras.Model | None = None, *, step: int | None = None) -> keras.Model:
        """Loads a checkpoint after `fit`: weights, optimizer state and seed generators.

        Args:
            model: The model to load it into; by default the one that was trained.
            step: Its step; None for the best that can be read.

        Returns:
            The model.

        Raises:
            FileNotFoundError: If no checkpoint can be read.
            ValueError: If there is none of that step, or it is damaged or does not fit the model.
        """
        self._writer.wait()
        model, restored = self._shelf.restore(model or self.model, step)
        remember_steps(model, restored)
        return model

    def average(self, top: int = 3, *, model: keras.Model | None = None) -> keras.Model:
        """Assigns the mean of the best checkpoints' weights: see `Checkpoints.average`.

        Args:
            top: How many.
            model: The model whose weights are assigned; by default the one that was trained.
        """
        self._writer.wait()
        return self._shelf.average(top, model or self.model)

    @property
    def error(self) -> str | None:
        """Why the latest save that failed did so, None if none did."""
        return self._writer.error

    @property
    def failures(self) -> int:
        """Saves that failed."""
        return self._writer.failures

    @property
    def waits(self) -> int:
        """Saves that had to wait for the one before."""
        return self._writer.waits

    @property
    def wait_seconds(self) -> float:
        """How long they waited, together."""
        return self._writer.wait_seconds

    @property
    def _shelf(self) -> Shelf:
        return Shelf(self.directory, self._writer.store.index)

    # Hooks.

    def on_begin(self) -> None:
        self._monitor = Monitor(self.monitor, self.mode)
        self._said = set()
        model = self.run.model
        if self.run.chief:
            self._check_configuration(model)
            check_writable(self.directory, name="directory")
            if self._goes_on or self._opened_for is None or self._opened_for() is not model:
                self._open()
            self._speak()
        self._opened_for = weakref.ref(model)

    def on_step(self, step: int) -> None:
        if self._monitor.direction is None:
            self._resolve()

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._speak()
        evaluators = sum(member.evaluates for member in self.run.members)
        values = {**evaluation.training, **evaluation.metrics}
        aside = evaluation.by_fit and evaluators > 0
        aside = aside or not self._monitor.is_among(values, evaluators)
        if not aside:
            self._resolve()
            self.run.prepare_save()
        if not self.run.chief:
            return
        directions = {name: self._monitor.direction_of(name) for name in values}
        record = _recorded(evaluation)
        known = self._ahead.knows(record)
        if known is not None:
            self._submitted = known
            return
        self._writer.forget(self._ahead.give_up())
        if not aside and self._wanted(record):
            self._submitted = record
            self._writer.await_turn()
            self._speak()
            self._writer.save(record, self.model, directions, self._announce)
        else:
            self._writer.note(record, directions)

    def on_end(self) -> None:
        self._finish()

    def on_abandon(self) -> None:
        self._finish()

    def state(self) -> dict[str, Any]:
        # The index in the directory says the rest.
        return {"monitor": self.monitor}

    def load_state(self, state: dict[str, Any]) -> None:
        self._goes_on = True

    def summary(self) -> list[Finding]:
        found = []
        if self.failures:
            text = f"Checkpoints that could not be written: {self.failures}, {self.error}."
            found.append(Finding(text, PROBLEM))
        if self.wait_seconds > max(1.0, WAIT_SHARE * (host.clock() - self.run.started)):
            text = (
                f"Training waited {self.wait_seconds:.3g} s for checkpoints to be written, "
                f"{self.waits} times: evaluate less often, or write to a faster disk."
            )
            found.append(Finding(text, ADVICE))
        if self.run.chief:
            found.append(self._outcome())
        return found

    # What the training thread does.

    def _check_configuration(self, model: keras.Model) -> None:
        """Finds out, before it is trained, whether a model can be written."""
        self._weights_only = self.save_weights_only
        if self.save_weights_only:
            return
        try:
            saving.check_configuration(model)
        except (NotImplementedError, TypeError, ValueError) as error:
            if self.weights_where_needed:
                self._weights_only = True
                return
            raise ValueError(
                "`save_weights_only` must be True for a model whose configuration cannot be saved, "
                f"got False: {error} Give its classes a `get_config`, or pass "
                "`save_weights_only=True`."
            ) from error

    def _open(self) -> None:
        """Judges what the directory holds, and takes it up or not."""
        self._writer = self._new_writer()
        self._submitted = None
        goes_on, self._goes_on = self._goes_on, False
        if self.existing == "error" and not goes_on:
            last = read(self.directory)[0].last_step
            if last is not None and last > self.run.step:
                raise ValueError(
                    f"`directory` must not hold another run, got {str(self.directory)!r}: its last "
                    f"evaluation was at step {last}, this model is at step {self.run.step}. Pass "
                    'another directory, `existing="continue"` to rank on, or `existing="replace"` '
                    "to delete the checkpoints there."
                )
        # The direction is known when the model is built; nothing is ranked or deleted before.
        guess = self.mode if self.mode != "auto" else direction_of(self.monitor) or "min"
        fresh = self.existing == "replace" and not goes_on
        self._writer.store.open(self._rule(guess), fresh=fresh)
        records = self._writer.store.index.records
        self._ahead = Ahead(r for r in records if goes_on and r.step > self.run.step)

    def _new_writer(self) -> Writer:
        return Writer(self.directory, weights_only=self._weights_only, background=self.background)

    def _rule(self, mode: Direction) -> Rule:
        return Rule(self.monitor, mode, self.keep, self.keep_last)

    def _resolve(self) -> None:
        """Finds out once, from the compiled model, which way each value is better."""
        if self._monitor.direction is None:
            direction = self._monitor.resolve(self.run.model, self.run.members)
            self._writer.rule(self._rule(direction))

    def _wanted(self, record: Record) -> bool:
        """Whether a checkpoint of this evaluation would be kept, and is not there already."""
        last = self._submitted
        if last is not None and merged(last, record) is not None:
            return False
        if self.keep_last:
            return True
        index = self._writer.store.index
        assert index.rule is not None
        trial = [*index.records, replace(record, file="step-00000000.keras")]
        ranks = number(record.values[self.monitor]) is not None
        return ranks and kept(trial, index.rule)[-1]

    def _finish(self) -> None:
        """Waits for the save under way, and leaves the index in order."""
        self._writer.close()
        self._speak()

    def _speak(self) -> None:
        """Says what was found amiss, each thing once."""
        for message in self._writer.messages():
            if message not in self._said:
                self._said.add(message)
                self.report(f"{message}.")

    def _announce(self, record: Record) -> None:
        if not self.verbose:
            return
        best = self.best
        place = "the best so far" if best is not None and best.step == record.step else "stored"
        value = record.values[self.monitor]
        host.say(f"BestCheckpoints: step {record.step}: {self.monitor} {value:.4g}, {place}.")

    def _outcome(self) -> Finding:
        """The best, and how far the last is from it."""
        best, last = self.best, self.last
        if last is None and not self.run.evaluations:
            text = (
                "No checkpoint was kept, since nothing was evaluated. Add "
                "`kt.StepEvaluation(validation_data)`, or pass `validation_data` to `fit`."
            )
            return Finding(text, PROBLEM)
        if last is None:
            return Finding(f"No checkpoint was kept: {self._why_none()}.", PROBLEM)
        if best is None:
            text = f"{self.monitor} was never finite; the newest weights are in {shown(last.path)}."
            return Finding(text, PROBLEM)
        text = f"Best {self.monitor} {best.metrics[self.monitor]:.4g} at step {best.step}"
        if last.step != best.step:
            text += f", {last.metrics[self.monitor]:.4g} at the last, step {last.step}"
        return Finding(f"{text}. The best is {shown(best.path)}.")

    def _why_none(self) -> str:
        records = self._writer.store.index.records
        notes = [record.note for record in records if record.note is not None]
        return notes[-1] if notes else "none was evaluated whose checkpoint is still there"


def _check_existing(existing: object) -> Existing:
    if existing not in ("error", "continue", "replace"):
        raise ValueError(
            f'`existing` must be "error", "continue" or "replace", got {existing!r}. '
            'Pass `existing="continue"` to rank on with what is there.'
        )
    return existing


def _is_zero(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0


def _recorded(evaluation: Evaluation) -> Record:
    """An evaluation as the index has it."""
    return Record(
        evaluation.step,
        evaluation.epoch,
        _plain(evaluation.metrics),
        evaluation.by_fit,
        training=_plain(evaluation.training),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON can hold them."""
    arrays = (np.ndarray, np.generic)
    return {name: v.tolist() if isinstance(v, arrays) else v for name, v in values.items()}
