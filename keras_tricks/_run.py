"""What the tricks of one `fit` share: step, tap, evaluations, events, chief."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_tricks import _backend, host
from keras_tricks._backend import keras_private
from keras_tricks._events import Events

if TYPE_CHECKING:
    from keras_tricks._trick import Trick

_runs: weakref.WeakKeyDictionary[keras.Model, Run] = weakref.WeakKeyDictionary()
_counts: weakref.WeakKeyDictionary[keras.Model, tuple[int, int]] = weakref.WeakKeyDictionary()

PROBLEM, ADVICE, RESULT = 0, 1, 2


@dataclass(frozen=True)
class Finding:
    """One sentence of the closing block.

    Attributes:
        text: The sentence, with its number and what to do about it.
        rank: `PROBLEM`, `ADVICE` or `RESULT`; the block is sorted by it.
    """

    text: str
    rank: int = RESULT


@dataclass(frozen=True)
class Evaluation:
    """One evaluation within a `fit`.

    Attributes:
        step: Step after which it was made.
        epoch: Epoch in which it was made, from 0.
        metrics: Values with their prefix, `val_loss`.
        training: Training's means over the examples since the last one.
        seconds: Time it took.
        by_fit: Whether it is Keras's own validation.
    """

    step: int
    epoch: int
    metrics: dict[str, float]
    training: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    by_fit: bool = False


def steps_consumed(model: keras.Model) -> int:
    """Training batches this model has consumed, as far as this process can know.

    Updates made without our callbacks since we last looked are counted from the optimizer.
    """
    iterations = _backend.updates(model)
    if model not in _counts:
        return iterations
    step, then = _counts[model]
    return step + max(0, iterations - then)


def remember_steps(model: keras.Model, step: int) -> None:
    """Keeps the step for the next `fit`, beside the optimizer's own count."""
    _counts[model] = (step, _backend.updates(model))


def begin(trick: Trick, model: keras.Model, kind: type[Trick]) -> None:
    """Starts the run of a `fit` at the first trick's call, for all of its `kind` in the list."""
    callbacks = keras_private.calling_list()
    run = _runs.get(model)
    if run is not None and run.welcomes(trick, callbacks):
        return
    if run is not None:
        run.abandon()
    members = [c for c in callbacks.callbacks if isinstance(c, kind)] if callbacks else [trick]
    run = _runs[model] = Run(model, members, callbacks)
    run.welcomes(trick, callbacks)
    for member in members:
        member.join(run)
    run.begin()


class Run:
    """One `fit`, from its first hook to its last.

    Attributes:
        step: Training batches this model has consumed.
        step_before: The same before the last execution of the train function.
        first_step_number: The step at which this `fit` began.
        epoch: Epoch, from 0.
        chief: Whether this process writes.
        batch: The latest batch as the backend has it, not copied.
        batch_rows: Rows of a full training batch, None before the first.
        wait_seconds: How long the train function waited for it, where that can be seen.
        evaluations: Evaluations so far.
        limit: Step at which training ends, None without one.
        active: Whether the tap listens.
        guarded: Train function that takes the model's place in this `fit`, None for the model's.
        peek: Is called with the first batch before its step, None for nobody.
        wants_batch: Whether somebody needs a batch of the next so many steps, also where they
            would be read inside the graph.
        last_logs: What the train function returned last.
        skip: Batches that are still to be read without training.
        preempted: Whether `fit` ends before its time, to be gone on with: nothing is evaluated.
    """

    def __init__(
        self,
        model: keras.Model,
        members: list[Trick],
        callbacks: keras.callbacks.CallbackList | None,
    ) -> None:
        self._model = weakref.ref(model)
        self.members = members
        self.params = dict(members[0].params or {})
        self._callbacks = weakref.ref(callbacks) if callbacks is not None else None
        # Keras gives the model another one at the beginning of each `fit`.
        self._history = getattr(model, "history", None)
        self._welcomed: list[Trick] = []
        self._events: dict[Path, Events] = {}
        self.step = self.step_before = self.first_step_number = steps_consumed(model)
        self.epoch = 0
        self.epoch_step = 0
        self.chief = _backend.is_chief()
        self.batch: Any = None
        self.batch_rows: int | None = None
        self.wait_seconds = 0.0
        self._asked = 0.0
        self.evaluations: list[Evaluation] = []
        self.limit: int | None = None
        self.active = False
        self.guarded: Callable[..., Any] | None = None
        self.peek: Callable[[Any], None] | None = None
        self.wants_batch: Callable[[int], bool] = lambda _: False
        self.stepping = False
        self.last_logs: dict[str, Any] = {}
        self.skip = 0
        self.preempted = False
        self._memory: dict[str, float] = {}
        self.started = host.clock()
        self.metrics_taken = False
        # The last reference to the list may be dropped by one of Keras's threads, while the next
        # `fit` begins; that one waits then.
        self._ending = threading.RLock()
        if callbacks is not None:
            weakref.finalize(callbacks, self.abandon)

    @property
    def model(self) -> keras.Model:
        """The model; on JAX its state may be elsewhere: see `_backend.sync`."""
        model = self._model()
        if model is None:
            raise ReferenceError("The model of this run no longer exists.")
        return model

    @property
    def siblings(self) -> list[keras.callbacks.Callback]:
        """The callbacks of this `fit` that are none of ours."""
        callbacks = None if self._callbacks is None else self._callbacks()
        everyone = [] if callbacks is None else callbacks.callbacks
        return [c for c in everyone if not any(c is member for member in self.members)]

    def leads(self, trick: Trick) -> bool:
        """Whether `trick` is the one whose hooks stand for all."""
        return self.active and self.members[:1] == [trick]

    def welcomes(self, trick: Trick, callbacks: keras.callbacks.CallbackList | None) -> bool:
        """Whether `trick` begins with this run; it does so once."""
        mine = callbacks is not None and self._callbacks is not None
        if not mine or self._callbacks() is not callbacks:  # type: ignore[misc]
            fresh = not self._welcomed and trick in self.members
        else:
            fresh = trick not in self._welcomed
        if fresh:
            self._welcomed.append(trick)
        return fresh

    def events(self, directory: str | Path) -> Events:
        """The event writer of a directory, one for all tricks; opened when first needed."""
        path = Path(directory)
        if path not in self._events:
            self._events[path] = Events(path)
        return self._events[path]

    def announce(self, evaluation: Evaluation) -> None:
        """Lets every trick hear of an evaluation."""
        self.evaluations.append(evaluation)
        for member in self.members:
            member.on_evaluation(evaluation)

    def prepare_evaluation(self) -> None:
        """Lets every trick act before an evaluation."""
        for member in self.members:
            member.before_evaluation()

    def prepare_save(self) -> None:
        """Lets every trick act before a save."""
        for member in self.members:
            member.before_save()

    # The life of a run.

    def begin(self) -> None:
        """Starts to listen; a trick that refuses leaves nothing behind."""
        self.active = True
        model = self.model
        _backend.install_tap(model, self)
        try:
            for member in self.members:
                member.before_begin()
            for member in self.members:
                member.on_begin()
        except BaseException:  # Ctrl-C as well must leave no tap behind
            self.abandon()
            raise
        if self.limit is not None and self.limit <= self.step:
            keras_private.skip_all_epochs(model)

    def epoch_begin(self, epoch: int) -> None:
        self.epoch, self.epoch_step, self.metrics_taken = epoch, 0, False
        for member in self.members:
            member.before_epoch(epoch)
        for member in self.members:
            member.on_epoch_start(epoch)

    def first_step(self) -> None:
        self.stepping = True
        self._tell(lambda member: member.on_first_step())

    def test_begin(self) -> None:
        """Keras's own evaluation, or a user's, begins."""
        if self.preempted:
            self.model.stop_evaluating = True
        else:
            self.training_metrics()

    def training_metrics(self) -> None:
        """Once an epoch: the training metrics are whole and still there."""
        if not self.metrics_taken:
            self.metrics_taken = True
            for member in self.members:
                member.on_training_metrics()

    def epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if self.skip:
            raise ValueError(
                f"the training data ended after {self.epoch_step} batches of epoch {epoch + 1}, of "
                f"which {self.epoch_step + self.skip} were used before the interruption. Pass the "
                "data that the run began with."
            )
        if self.preempted:
            return
        validated = self.metrics_taken
        self.training_metrics()
        if validated:
            values = {k: v for k, v in logs.items() if k.startswith("val_")}
            if values:
                self.announce(Evaluation(self.step, epoch, values, by_fit=True))
        for member in self.members:
            member.on_epoch(epoch, logs)

    def end(self) -> None:
        """The end of a `fit` that was not interrupted."""
        for member in self.members:
            member.before_end()
        for member in self.members:
            member.on_end()
        findings = self.findings()
        wanted = findings and self.params.get("verbose", 1) != 0
        if not self._close(findings) and wanted and self.chief:
            for line in block(findings):
                host.say(line)
        self._finish()

    def abandon(self) -> None:
        """The end of a `fit` that was: safe to call at any time, and more than once."""
        with self._ending:
            if not self.active:
                return
            self.active = False
            self._dismiss()
            self._finish()

    def _dismiss(self) -> None:
        """Lets every trick know that `fit` was interrupted; none hears anything after that."""
        for member in self.members:
            member.on_abandon()
        if self.members and self.step > self.first_step_number:
            text = f"Training was interrupted after step {self.step}."
            self._close([Finding(text, PROBLEM), *self.findings()])
        self.members, self.limit, self.guarded = [], None, None
        for events in self._events.values():
            events.close()

    def _finish(self) -> None:
        self.active = False
        self.batch, self.last_logs, self.guarded, self.peek = None, {}, None, None
        for events in self._events.values():
            events.close()
        model = self._model()
        if model is not None:
            _backend.remove_tap(model)
            keras_private.restore_initial_epoch(model)
            remember_steps(model, self.step)

    def _close(self, findings: list[Finding]) -> bool:
        """Hands the findings to the members that show them; whether there was one."""
        closing = [member for member in self.members if member.closes_with_block]
        for member in closing:
            if self.chief:
                member.close(findings)
        return bool(closing)

    def findings(self) -> list[Finding]:
        """The closing block's sentences, most important first."""
        found = [finding for member in self.members for finding in member.summary()]
        return sorted(found, key=lambda finding: finding.rank)

    # The tap, called around each execution: see `_backend.install_tap`.

    def to_skip(self, steps_per_execution: int) -> int:
        """How many of the batches that come now were trained on before an interruption."""
        return min(self.skip, steps_per_execution)

    def skipped(self, batches: list[Any]) -> None:
        """Counts batches that were only read."""
        self.epoch_step += len(batches)
        self.skip -= len(batches)
        if not self.skip:
            self._tell(lambda member: member.on_skipped())

    def epoch_over(self) -> bool:
        """Whether the epoch is known to have no batch left."""
        total = self.params.get("steps")
        return total is not None and 0 < int(total) <= self.epoch_step

    def before(self, steps_per_execution: int) -> int:
        """How many steps may run now."""
        if self.members and getattr(self.model, "history", None) is not self._history:
            # Another `fit`, without tricks, after one that raised and whose exception somebody
            # keeps. Its steps count.
            self._dismiss()
        if self.limit is None:
            return steps_per_execution
        allowed = max(0, min(steps_per_execution, self.limit - self.step))
        if not allowed:
            self.model.stop_training = True
        return allowed

    def waiting(self) -> None:
        self._asked = host.clock()

    def received(self, batch: Any) -> None:
        self.batch = batch
        if self.epoch_step == 0 or self.batch_rows is None:
            # The last batch of an epoch may be a part of one, the first is whole.
            self.batch_rows = _backend.latest_rows(batch)
        self.wait_seconds = host.clock() - self._asked

    def before_first(self, batch: Any) -> None:
        """Shows the first batch to who wants it, while the state is that from before its step."""
        peek, self.peek = self.peek, None
        if peek is not None:
            peek(batch)

    def publish(self, state: Any) -> None:
        _backend.publish(self.model, state)

    def after(self, count: int | None, logs: dict[str, Any]) -> None:
        """Counts the steps that ran and lets every trick act."""
        if count is None:
            count = self._executed()
            if self.batch_rows is None:
                self.batch_rows = _backend.rows_counted(self.model, count)
        self.last_logs = logs
        self.step_before, self.step = self.step, self.step + count
        self.epoch_step += count
        if self.limit is not None and self.step >= self.limit:
            self.model.stop_training = True
        self._tell(lambda member: member.on_step(self.step))
        self._tell(lambda member: member.after_step(self.step))

    def _tell(self, call: Callable[[Trick], None]) -> None:
        """Calls every trick where `fit` looks for the end of its data."""
        try:
            for member in self.members:
                call(member)
        except _backend.STOP as error:
            # `fit` would take it for that end, and the epoch would end in silence.
            raise RuntimeError(f"a callback ended with {type(error).__name__}: {error}") from error

    def _executed(self) -> int:
        """Steps of an execution whose loop ran inside the graph; the last may be shorter."""
        size = int(self.model.steps_per_execution)
        total = self.params.get("steps")
        if total:
            return max(1, min(size, int(total) - self.epoch_step))
        return _backend.executed_steps(self.model, size, self._execution_memory())

    def state(self) -> dict[str, Any]:
        """What the next process must know of this `fit`."""
        return {
            "step": self.step,
            "first_step": self.first_step_number,
            "epoch": self.epoch,
            "epoch_step": self.epoch_step,
            "batch_rows": self.batch_rows,
            "memory": self._execution_memory(),
            "logs": keras_private.pythonify(self.last_logs),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up what `state()` gave in an earlier process, before `fit` begins its epochs."""
        self.step = self.step_before = int(state["step"])
        self.first_step_number = int(state["first_step"])
        self.epoch = int(state["epoch"])
        self.skip = int(state["epoch_step"])
        self.batch_rows = state["batch_rows"]
        self._memory = dict(state["memory"])
        self.last_logs = dict(state["logs"])
        remember_steps(self.model, self.step)

    def _execution_memory(self) -> dict[str, float]:
        if self.epoch_step == 0:
            self._memory.pop("rows", None)
        return self._memory


def block(findings: list[Finding], heading: str = "keras_tricks") -> list[str]:
    """The closing block as lines."""
    return ["", heading, *(f"- {finding.text}" for finding in findings)]
