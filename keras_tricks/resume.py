"""`kt.Resume`: an interrupted `fit` goes on at the exact step."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import keras

from keras_tricks import host
from keras_tricks._backend import keras_private, randomness, restoring
from keras_tricks._backend.data_position import DataPosition
from keras_tricks._callback_state import KERAS_OWN, put_back, state_of
from keras_tricks._files import check_writable
from keras_tricks._fingerprint import fingerprint, refusal
from keras_tricks._lock import Lock
from keras_tricks._resume_files import Saved, newest, tidy
from keras_tricks._resume_writer import ResumeWriter, settle
from keras_tricks._run import ADVICE, PROBLEM, Finding
from keras_tricks._schedule import check_every
from keras_tricks._signals import Signals
from keras_tricks._trick import Trick


class Resume(Trick):
    """Lets the same script, run again after any interruption, go on at the exact step.

    Every `every_steps` steps it stores all that training depends on: weights, optimizer, metrics
    in mid-epoch, seed generators and the process's own, the position in the data, `History`, and
    what the other callbacks of this package and Keras's `EarlyStopping`, `ReduceLROnPlateau` and
    `ModelCheckpoint` remember. Another thread writes it. The next start reads the batches of the
    interrupted epoch again without training on them, and goes on with the next one.

    On SIGTERM and on Ctrl-C it stores at the end of the step, and `fit` ends; a second one acts at
    once. A run that has finished is not started again: `fit` restores its end and returns.

    Args:
        directory: Where it stores, on a local disk, for this `fit` alone.
        every_steps: Store at the first chance at or after each multiple of this step, and after
            the first step.
        keep: How many files stay; the second serves if the newest is damaged.

    Attributes:
        resumed_from: Step at which this `fit` went on, None if it began anew.
        skipped_batches: Batches that were read again without training.
        skip_seconds: How long that took.
        interrupted_by: "SIGTERM" or "SIGINT" if that ended this `fit`, else None.
        error: Why the latest save that failed did so, None if none did.
        failures: Saves that failed.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a value is out of range. When `fit` begins, if the model, its optimizer or
            the length of the data is not the interrupted run's, or if the data comes in another
            order in each process, so that no position in it can be found again.
        RuntimeError: When `fit` begins, if another process trains in this directory.
        OSError: When `fit` begins, if the directory cannot be written.

    Example:
        >>> resume = keras_tricks.Resume("run/resume", every_steps=500)
        >>> resume.resumed_from
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, every_steps: int, keep: int = 2
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.every_steps = check_every("every_steps", every_steps)
        self.keep = check_every("keep", keep)
        self.resumed_from: int | None = None
        self.skipped_batches = 0
        self.skip_seconds = 0.0
        self.interrupted_by: str | None = None
        self._fits = 0  # of this object, that have finished
        self._begun = False
        self._told = 0  # of failures
        self._writer = ResumeWriter(self.directory, self.keep)
        self._lock = Lock(self.directory)
        self._signals: Signals | None = None

    @property
    def error(self) -> str | None:
        """Why the latest save that failed did so, None if none did."""
        return self._writer.error

    @property
    def failures(self) -> int:
        """Saves that failed."""
        return self._writer.failures

    # Before training.

    def before_begin(self) -> None:
        model = self.run.model
        fit = keras_private.running_fit()
        if fit is None:
            raise RuntimeError("`Resume` needs a `fit` that calls it. Pass it to `model.fit`.")
        self._forget()
        self._data = DataPosition(fit, int(model.steps_per_execution))
        unseeded = self._data.unseeded()
        if unseeded is not None:
            raise ValueError(
                f"`x` must come in an order that a restart can repeat, got a `tf.data.Dataset` "
                f"with `{unseeded}` and no seed. Pass it a `seed`, or call "
                "`keras.utils.set_random_seed(0)` before the dataset is made."
            )
        if self.run.chief:
            check_writable(self.directory, name="directory")
            self._lock.acquire()
            settle(self.directory)
            tidy(self.directory)
        saved, messages = newest(self.directory)
        for message in messages:
            self.report(f"{message}.")
        self._writer.number = 1 if saved is None else saved.number + 1
        self._facts = fingerprint(model, self._data.facts, begun=self._begun)
        self._take_up(saved)
        self._begun = True
        self._signals = Signals(self._heard, self._is_fitting)
        self._signals.install()

    def _forget(self) -> None:
        """What the `fit` before has left."""
        self.resumed_from, self.interrupted_by = None, None
        self.skipped_batches, self.skip_seconds = 0, 0.0
        self._variables: list[keras.Variable] = []
        self._saved: Saved | None = None
        self._finished = False  # before it began
        self._stored_at: int | None = None
        self._read_on = 0
        self._pass_states: dict[str, Any] = {}

    def _take_up(self, saved: Saved | None) -> None:
        """Goes on from a save, or from nothing."""
        model = self.run.model
        if saved is not None and saved.facts["fit"] > self._fits:
            self._finished = True
            self.report("this `fit` was finished before, and a later one after it.")
            keras_private.skip_all_epochs(model)
            return
        if saved is not None and saved.facts["fit"] < self._fits:
            saved = None
        order = None if saved is None else saved.facts["order"]
        self._order = self._data.settle_order(model, order)
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: Saved) -> None:
        model, facts = self.run.model, saved.facts
        refused = refusal(facts["fingerprint"], self._facts)
        if refused is None:
            restoring.build_all(model, self._data.batch_spec())
            refused = refusal(facts["fingerprint"], fingerprint(model, self._data.facts))
        if refused is not None:
            raise ValueError(
                f"{refused}. Undo the change to go on from {str(self.directory)!r}, or pass "
                "another directory to begin anew."
            )
        self._facts = facts["fingerprint"]
        lasting = restoring.lasting_variables(model)
        restoring.assign(lasting, saved.arrays[: len(lasting)])
        self._saved = saved
        self.run.load_state(facts["run"])
        self.resumed_from = self._stored_at = self.run.step
        self._load_states(facts["tricks"])
        end = facts["end"]
        whole = end is not None and not end["early"] and self._epochs() <= end["epochs"]
        if whole or (end is not None and end["stopped"]):
            self._finished = True
            self.run.skip = 0
            keras_private.skip_all_epochs(model)
            self.report("this run has finished before; nothing is trained.")
            return
        self._read_on = self._data.pass_over(self.run.epoch, facts["learned_batches"])
        keras_private.start_at_epoch(model, self.run.epoch)

    def _epochs(self) -> int:
        return int(self.run.params.get("epochs") or 0)

    def before_epoch(self, epoch: int) -> None:
        saved, self._saved = self._saved, None
        generators = self._data.generators()
        if saved is None:
            if self._data.between_passes:
                self._pass_states = randomness.captured(generators)
            return
        self._began_skipping = host.clock()
        if self.run.skip:
            metrics = restoring.metric_variables(self.run.model)
            lasting = len(saved.arrays) - len(metrics)
            restoring.assign(metrics, saved.arrays[lasting:])
        self._put_back_siblings(saved)
        self._pass_states = saved.facts["pass_states"]
        self._step_states = saved.facts["step_states"]
        self.skipped_batches = self._read_on + self.run.skip
        self._data.read_on(lambda: randomness.put_back(self._pass_states, generators))
        if not self.run.skip:
            self.on_skipped()

    def on_skipped(self) -> None:
        randomness.put_back(
            self._step_states,
            self._data.generators(),
            of_python=not self._data.reads_ahead,
        )
        self.skip_seconds = host.clock() - self._began_skipping
        self.report(
            f"goes on, {self.skipped_batches} batches read again in {self.skip_seconds:.3g} s."
        )

    # While training goes on.

    def after_step(self, step: int) -> None:
        self._lock.touch()
        signals = self._signals
        if signals is not None and signals.name is not None:
            self._end_early(signals)
        elif self._stored_at is None or self.due(self.every_steps):
            self._save()

    def _save(self, end: dict[str, Any] | None = None) -> None:
        """Stores the state as it is."""
        self.run.prepare_save()
        if not self.run.chief:
            return
        model = self.model
        if not self._variables:
            self._variables = [
                *restoring.lasting_variables(model),
                *restoring.metric_variables(model),
            ]
        self._writer.save(self._everything(model, end), self._variables)
        self._stored_at = self.run.step
        self._complain()

    def _everything(self, model: keras.Model, end: dict[str, Any] | None) -> dict[str, Any]:
        """All but the variables."""
        run = self.run.state()
        if end is not None and not end["early"]:
            run |= {"epoch": run["epoch"] + 1, "epoch_step": 0}
        states = randomness.captured(self._data.generators())
        if end is not None and not end["early"] and self._data.between_passes:
            self._pass_states = states
        if not self._facts["weights"]:
            # Before the first step TensorFlow's model may have no variables to describe.
            self._facts["weights"] = fingerprint(model, {})["weights"]
        return _copied(
            {
                "fit": self._fits,
                "end": end,
                "run": run,
                "order": self._order,
                "fingerprint": self._facts,
                "learned_batches": self._data.learned_batches,
                "pass_states": self._pass_states,
                "step_states": states,
                "tricks": [[name, member.state()] for name, member in self._named_members()],
                "callbacks": [[name, state_of(c)] for name, c in self._named_siblings()],
                "history": {"epoch": model.history.epoch, "history": model.history.history},
            }
        )

    def _end_early(self, signals: Signals) -> None:
        """Stores, and ends `fit` to be gone on with."""
        began = host.clock()
        self._save()
        self._writer.wait()
        self.run.preempted = True
        self.interrupted_by = signals.name
        self.model.stop_training = True
        failed = self._complain()
        seconds = host.clock() - began
        what = "not stored" if failed else f"stored in {seconds:.2g} s"
        self.report(f"{signals.name}: {what}; `fit` ends here.")
        if signals.raised is not None:
            raise signals.raised

    def _complain(self) -> bool:
        """Says once of each save that it failed; whether one did."""
        failed, self._told = self.failures > self._told, self.failures
        if failed:
            self.report(f"the state could not be stored: {self.error}. See to {self.directory}.")
        return failed

    def _heard(self, name: str) -> None:
        # Not by `print`, in which the signal may have come.
        text = (
            f"\nResume: {name}: the state is stored when the step, or the evaluation, that is "
            "under way has ended. Send it again to end at once.\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())

    def _is_fitting(self, frame: FrameType | None) -> bool:
        return self.run.active and keras_private.in_fit(frame)

    # The end.

    def on_end(self) -> None:
        if not self.run.preempted:
            if self._saved is not None:  # no epoch was left
                self._finished = True
                self._show_end(self._saved)
            elif not self._finished:
                self._save(self._end())
            self._fits += 1
        self._leave()
        self._complain()

    def _show_end(self, saved: Saved) -> None:
        """What there is to see after a `fit` that trained nothing: as after the one that did."""
        metrics = restoring.metric_variables(self.run.model)
        restoring.assign(metrics, saved.arrays[len(saved.arrays) - len(metrics) :])
        self._put_back_siblings(saved)
        randomness.put_back(saved.facts["step_states"], self._data.generators())

    def _end(self) -> dict[str, Any]:
        """How `fit` ended."""
        run = self.run
        limited = run.limit is not None and run.step >= run.limit
        early = bool(run.model.stop_training)
        return {"epochs": self._epochs(), "stopped": early and not limited, "early": early}

    def on_abandon(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._writer.wait()
        self._lock.release()
        if self._signals is not None:
            self._signals.restore()
        self._variables, self._saved = [], None

    def summary(self) -> list[Finding]:
        found = []
        if self.failures:
            text = f"{self.failures} times the state could not be stored: {self.error}."
            found.append(Finding(text, PROBLEM))
        if self.interrupted_by is not None:
            text = f"{self.interrupted_by} ended this run. Start the same script again to go on."
            found.append(Finding(text, ADVICE))
        if self._finished:
            found.append(Finding("This run had finished before; nothing was trained."))
        elif self.resumed_from is not None:
            found.append(
                Finding(
                    f"Went on at step {self.resumed_from}; {self.skipped_batches} batches were "
                    f"read again in {self.skip_seconds:.3g} s."
                )
            )
        return found

    # The other callbacks.

    def _named_members(self) -> list[tuple[str, Trick]]:
        return _named([member for member in self.run.members if member is not self])

    def _named_siblings(self) -> list[tuple[str, keras.callbacks.Callback]]:
        return _named([c for c in self.run.siblings if isinstance(c, KERAS_OWN)])

    def _load_states(self, states: list[Any]) -> None:
        known = dict(states)
        for name, member in self._named_members():
            if name in known:
                member.load_state(known[name])

    def _put_back_siblings(self, saved: Saved) -> None:
        """After `on_train_begin` has reset them."""
        known = dict(saved.facts["callbacks"])
        for name, callback in self._named_siblings():
            put_back(callback, known.get(name, {}))
        history, before = self.run.model.history, saved.facts["history"]
        count = sum(epoch < self.run.epoch or self._finished for epoch in before["epoch"])
        history.epoch[:] = before["epoch"][:count]
        history.history.clear()
        history.history.update({k: values[:count] for k, values in before["history"].items()})


def _named(parts: list[Any]) -> list[tuple[str, Any]]:
    """Each with a name that the next process gives it as well."""
    counts: Counter[str] = Counter()
    named = []
    for part in parts:
        kind = type(part).__name__
        named.append((f"{kind} {counts[kind]}", part))
        counts[kind] += 1
    return named


def _copied(value: Any) -> Any:
    """The same, in dicts and lists that nobody else changes."""
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(entry) for entry in value]
    return value
