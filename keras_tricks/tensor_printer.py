"""`kt.TensorPrinter`: the tensors of the step at which the loss goes wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend, host
from keras_tricks._backend import guarding, tensors
from keras_tricks._backend.replay import replay, unpacked
from keras_tricks._backend.tensor_trace import Trace
from keras_tricks._files import check_writable
from keras_tricks._run import ADVICE, PROBLEM, Evaluation, Finding
from keras_tricks._schedule import check_every, crossed, parse_at_steps
from keras_tricks._stagnation import Stagnation
from keras_tricks._tensor_dump import dump, folder_name
from keras_tricks._tensor_fault import explain
from keras_tricks._tensor_look import check_layers, fault_report, plain_report
from keras_tricks._tensor_report import TensorReport
from keras_tricks._trick import Trick

ACTIONS = ("stop", "skip", "raise")
MOST_IN_A_ROW = 10
# Of a fault that keeps coming back, so many reports are made; after that a line each.
MOST_REPORTS = 3
STAGNANT = "the training loss of"


class TensorPrinter(Trick):
    """Prints every tensor's shape and statistics when the loss goes wrong, and says why.

    At the first training step whose loss, metrics, gradients or weights are not finite, it runs
    the same batch once more, eagerly, with the weights from before it, and prints a table of
    inputs, targets, every layer's output, weights, gradients and updates, with one sentence that
    names what gave the first bad value and the likely cause.

    The guard selects, inside the step, the state before it: weights, optimizer, batch-norm
    statistics, metrics and seeds stay those of the last finite step. It is part of the compiled
    step, so a model that had been compiled before is compiled once more. Under XLA, and so on
    JAX, a guarded step differs from one without in the rounding of floats.

    On JAX, and on PyTorch with a GPU, the device runs ahead of Python: the step is noticed at most
    16 steps later; what comes between is not applied, and the report is of the right batch. With
    `action="skip"` each step is waited for instead.

    Not seen: a gradient that is infinite and that `clipvalue` makes finite; an overflow that a
    `LossScaleOptimizer` handles, which is no event. On a JAX mesh the guard is not yet shown to
    keep the state exactly.

    Args:
        directory: Where a report's files go, to `step-00001234/` in it: `report.txt`,
            `report.json`, the batch as `batch.npz`, the model with its weights, and `replay.py`,
            which reproduces the report in another process. None: no files.
        log_dir: Where TensorBoard's events go: the table as text, histograms of the tensors.
        stagnant_steps: Report as well when the training loss, averaged over so many steps, is no
            better than before. None: never.
        min_improvement: Relative improvement below which the loss is called stagnant.
        at_steps: Report after these steps of this `fit`; 1 is the first, 0 before it.
        every_steps: Report at the first chance at or after each multiple of this step.
        layers: Names of layers, or a regular expression that matches a whole name. None: all.
        guard: Whether to keep the state of the last finite step. Without it a report comes too
            late to see the weights from before.
        action: After a step that is not finite: `"stop"` ends `fit` cleanly, `"skip"` leaves the
            batch out and goes on, but stops after 10 in a row, `"raise"` raises
            `FloatingPointError`.

    Attributes:
        report: The newest report, None without one.
        reports: All reports of the last `fit`.
        skipped_steps: Steps whose batch was left out, with `action="skip"`.
        error: Why files could not be written, None if they were.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a value is out of range, or `layers` names no layer.
        FloatingPointError: In `fit`, with `action="raise"`.
        OSError: If `directory` cannot be written, when `fit` begins.

    Example:
        >>> printer = keras_tricks.TensorPrinter(action="skip", stagnant_steps=1000)
        >>> printer.report is None, printer.skipped_steps
        (True, [])
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        stagnant_steps: int | None = None,
        min_improvement: float = 1e-3,
        at_steps: Any = (),
        every_steps: int | None = None,
        layers: str | Sequence[str] | None = None,
        guard: bool = True,
        action: str = "stop",
    ) -> None:
        super().__init__()
        if action not in ACTIONS:
            raise ValueError(f'`action` must be one of {ACTIONS}, got {action!r}. Pass "stop".')
        if action == "skip" and not guard:
            raise ValueError(
                '`action="skip"` needs the guard, got guard=False. Pass guard=True, or "stop".'
            )
        self.directory = None if directory is None else Path(directory)
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.every_steps = None if every_steps is None else check_every("every_steps", every_steps)
        self._stagnation = Stagnation(stagnant_steps, min_improvement)
        # A pair is a range, as everywhere here; any other tuple a list of steps.
        many = isinstance(at_steps, tuple) and len(at_steps) != 2
        self._spans = parse_at_steps(list(at_steps) if many else at_steps)
        self.layers = check_layers(layers)
        self.guard = bool(guard)
        self.action = action
        self.reports: list[TensorReport] = []
        self.skipped_steps: list[int] = []
        self.error: OSError | None = None
        self._watch: Any = None
        self._faults: list[tuple[int, str]] = []
        self._in_a_row = 0
        self._wanted = ""

    @property
    def report(self) -> TensorReport | None:  # type: ignore[override]
        """The newest report, None without one."""
        return self.reports[-1] if self.reports else None

    # The life of a `fit`.

    def on_begin(self) -> None:
        self.reports, self.skipped_steps, self._faults = [], [], []
        self.error, self._in_a_row, self._wanted = None, 0, ""
        self._stagnation.begin()
        run = self.run
        if self.directory is not None and run.chief:
            check_writable(self.directory, name="directory")
        if self.log_dir is not None and run.chief:
            run.events(self.log_dir)
        self._watch = guarding.Watch()
        if self.guard and run.guarded is None and run.model.optimizer is not None:
            self._watch, run.guarded = guarding.guarded(
                tensors.Guard, run.model, _backend.untapped(run.model), hold=self.action != "skip"
            )
            self._watch.at_once = self._at_once
        if self._spans and self._spans[0][0] == 0:
            run.peek = self._before_training
        run.wants_batch = self._wants_batch

    def on_step(self, step: int) -> None:
        run = self.run
        before, now = (n - run.first_step_number for n in (run.step_before, step))
        if self._events(now - before, wait=False):
            return
        reason, self._wanted = self._wanted, ""
        if reason or self._due(before, now, step):
            self._report(step, reason or "asked for", run.batch)
        steps = self._stagnation.steps
        if steps is not None and crossed(before, now, steps):
            self._look_for_stagnation()

    def on_training_metrics(self) -> None:
        self._events(0, wait=True)
        if self._stagnation.steps is not None and "loss" in self.run.last_logs:
            self._stagnation.epoch_ended(self._loss(), self.run.epoch_step)

    def before_evaluation(self) -> None:
        self._events(0, wait=True)

    def before_save(self) -> None:
        self._events(0, wait=True)

    def before_end(self) -> None:
        self._events(0, wait=True)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        bad = [name for name, value in evaluation.metrics.items() if not np.isfinite(value).all()]
        if not bad or self._faults:
            return
        reason = f"{bad[0]} is not finite, and the training steps were"
        advice = "Look for values that are not finite in the data it was computed from."
        report = TensorReport(evaluation.step, reason, diagnosis=advice)
        self._publish(report, None)
        self._faults.append((evaluation.step, f"{reason}. {advice}"))
        if self.action != "skip":
            self._act(f"step {evaluation.step}: {reason}")

    def summary(self) -> list[Finding]:
        found = []
        for step, text in self._faults[:1]:
            more = len(self._faults) - 1
            end = f" {more} more {'was' if more == 1 else 'were'} not finite." if more else ""
            found.append(Finding(f"Step {step}: {text}{end}{self._where(step)}", PROBLEM))
        if self.skipped_steps:
            count = len(self.skipped_steps)
            end = " was" if count == 1 else "es were"
            found.append(Finding(f"{count} batch{end} left out of the training.", PROBLEM))
        for report in self.reports:
            if report.reason.startswith(STAGNANT):
                text = f"Step {report.step}: {report.reason}. {report.diagnosis}"
                found.append(Finding(text, ADVICE))
        return found

    # Steps that are not finite.

    def _events(self, count: int, *, wait: bool) -> bool:
        """Reports and acts on what became known; whether there was anything."""
        run = self.run
        if not run.active or self._watch is None:
            return False
        found = self._watch.events(run.last_logs, run.batch, count, wait=wait)
        for event in found:
            self._fault(run.step - event.ago, event)
        return bool(found)

    def _at_once(self, state: Any, event: guarding.Event) -> None:
        """In the midst of an execution (JAX)."""
        self.run.publish(state)
        self._fault(self.run.step - event.ago, event)

    def _fault(self, step: int, event: guarding.Event) -> None:
        again = bool(self._faults) and self._faults[-1][0] == step - 1
        self._in_a_row = self._in_a_row + 1 if again else 1
        text = "not finite"
        if len(self._faults) < MOST_REPORTS:
            report = self._fault_report(step, event)
            self._publish(report, event.data)
            text = f"{report.reason}. {report.diagnosis}"
        self._faults.append((step, text))
        if self.action == "skip":
            self.skipped_steps.append(step)
            self._say(f"step {step}: its batch is left out.")
            if self._in_a_row < MOST_IN_A_ROW:
                return
            text = f"{MOST_IN_A_ROW} steps in a row were not finite"
            self._say(f"step {step}: {text}; training stops.")
        self._act(f"step {step}: {text}")

    def _act(self, text: str) -> None:
        if self.action == "raise":
            raise FloatingPointError(text)
        self.run.model.stop_training = True

    def _fault_report(self, step: int, event: guarding.Event) -> TensorReport:
        run, notes = self.run, []
        guarded = self._watch.keeps_state
        if event.data is None or event.only_execution:
            notes.append(
                f"Steps {run.step_before + 1} to {run.step} were one execution"
                f"{', whose batches are not known' if event.data is None else ''}."
            )
        trace = self._replay(step, event.data, metrics=True)
        trace.weights_gone = not guarded
        verdict = explain(trace)
        if event.went_on:
            notes.append("These are the weights at the end of that execution.")
        if not guarded:
            notes.append("Without the guard, these are the weights after the step.")
        later = run.step - step
        if guarded and later and self.action != "skip":
            steps = "step" if later == 1 else f"{later} steps"
            notes.append(f"Not applied either: the {steps} since then.")
        return fault_report(step, trace, verdict, self.layers, notes)

    # Reports that were asked for, and of a loss that does not move.

    def _before_training(self, batch: Any) -> None:
        """Called once with the first batch, before the first step."""
        self._report(self.run.first_step_number, "before training", batch)

    def _wants_batch(self, count: int) -> bool:
        """Whether a report is due after the next `count` steps, for which a batch is needed."""
        run = self.run
        before = run.step - run.first_step_number
        return bool(self._wanted) or self._due(before, before + count, run.step + count)

    def _due(self, before: int, now: int, step: int) -> bool:
        every = self.every_steps
        spans = any(first <= now and last > before for first, last in self._spans)
        return spans or (every is not None and crossed(step - (now - before), step, every))

    def _look_for_stagnation(self) -> None:
        """At the end of a window; the report is of the next batch where this one is not known."""
        run = self.run
        if "loss" not in run.last_logs:
            return
        if self._stagnation.window_ended(self._loss(), run.epoch_step):
            found = self._stagnation
            text = f"{STAGNANT} {found.newest:.4g} is no better than {found.best:.4g}"
            self._wanted = f"{text}, {found.steps} steps before"
            if run.batch is not None:
                self._report(run.step, self._wanted, run.batch)
                self._wanted = ""

    def _loss(self) -> float:
        return float(keras.ops.convert_to_numpy(self.run.last_logs["loss"]).mean())

    def _report(self, step: int, reason: str, batch: Any) -> None:
        if batch is None:
            return
        self._publish(plain_report(step, reason, self._replay(step, batch), self.layers), batch)

    # Looking, and where it goes.

    def _replay(self, step: int, batch: Any, *, metrics: bool = False) -> Trace:
        model = self.run.model
        _backend.sync(model)
        sink = None
        if self.log_dir is not None and self.run.chief:
            events = self.run.events(self.log_dir)

            def sink(kind: str, name: str, array: Any) -> None:
                if array.dtype.kind in "fiubV":
                    events.histogram(f"tensors/{kind}/{name}", array, step)

        data = (None, None, None) if batch is None else unpacked(tensors.whole(batch))
        return replay(model, data, metrics=metrics, sink=sink)

    def _publish(self, report: TensorReport, batch: Any) -> None:
        """Shows a report, keeps it, and writes it where that was asked for."""
        self.reports.append(report)
        run = self.run
        if not run.chief:
            return
        first, *rest = str(report).splitlines()
        self._say(first)
        for line in rest:
            host.say(line)
        if self.log_dir is not None:
            run.events(self.log_dir).text("tensors/report", f"```\n{report}\n```", report.step)
        if self.directory is None:
            return
        try:
            data = None if batch is None else unpacked(tensors.whole(batch))
            dump(self.directory, report, run.model, data)
        except OSError as error:  # a full disk ends no training
            self.error = error
            self._say(f"step {report.step}: its files could not be written: {error}.")

    def _where(self, step: int) -> str:
        if self.directory is None or self.error is not None:
            return ""
        return f" {self.directory / folder_name(step)} reproduces it."

    def _say(self, text: str) -> None:
        if self.run.chief:
            host.say(f"{type(self).__name__}: {text}")
