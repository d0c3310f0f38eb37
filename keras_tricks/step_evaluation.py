"""`kt.StepEvaluation`: exact evaluation every N steps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend, host
from keras_tricks._data import Batches
from keras_tricks._engine import engine_of, training_results
from keras_tricks._nested import Nested
from keras_tricks._run import Evaluation, Finding
from keras_tricks._schedule import check_every
from keras_tricks._trick import Trick
from keras_tricks._window import Window

DEFAULT_BATCH_SIZE = 32


class StepEvaluation(Trick):
    """Evaluates exactly every N steps, without a trace in the training.

    The values are those of `kt.evaluate`: what all examples in one single batch would give.
    Training goes on bitwise as without it. The other tricks of the same `fit` hear of each
    evaluation, whatever the list's order.

    Args:
        validation_data: What `fit(validation_data=...)` takes, readable more than once. Of its own:
            a `tf.data.Dataset` that shuffles gives each reader the next order, so that training
            on the same object would go on in another one.
        every_steps: Evaluate at the first chance at or after each multiple of this step;
            None evaluates at the end of each epoch.
        batch_size: Rows of an evaluation batch; as large as a training batch by default.
            Re-batches datasets too.
        steps: Batches to use; all by default.
        prefix: What the names of the values begin with.
        at_start: Whether to evaluate before the first step.
        at_end: Whether to evaluate after the last step, if that was not due anyway.
        callbacks: Epoch-style Keras callbacks that live in evaluations instead of epochs,
            such as `EarlyStopping` or `ReduceLROnPlateau`. The number of the evaluation is
            their epoch.
        epoch_logs: Whether to put the newest values into Keras's epoch logs, and so into
            `History`.
        log_dir: Where TensorBoard's events go, to `train/` and `validation/` in it. With a prefix
            of one's own, `"test_"`, the values go to `test/`.
        verbose: 1 prints a line for each evaluation.

    Attributes:
        history: Lists of equal length: `"step"`, each value with its prefix, and the mean of
            `"loss"` and of the training metrics over the examples since the last evaluation.
        seconds: Time each evaluation took.
        notes: What is not exact: the name of the metric, loss or layer, and a sentence.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a value is out of range, or the data is empty, can be read only once,
            or never ends.
        OSError: If `log_dir` cannot be written, when `fit` begins.

    Example:
        >>> validation_data = np.ones((8, 2)), np.zeros((8, 1))
        >>> evaluation = keras_tricks.StepEvaluation(validation_data, every_steps=100)
        >>> evaluation.history
        {'step': []}
    """

    evaluates = True

    def __init__(
        self,
        validation_data: Any,
        *,
        every_steps: int | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        prefix: str = "val_",
        at_start: bool = False,
        at_end: bool = True,
        callbacks: Iterable[keras.callbacks.Callback] = (),
        epoch_logs: bool = False,
        log_dir: str | Path | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self.every_steps = None if every_steps is None else check_every("every_steps", every_steps)
        self._batches = Batches(
            _as_fit_takes_it(validation_data),
            batch_size=batch_size,
            steps=steps,
            name="validation_data",
        )
        if not isinstance(prefix, str) or not prefix:
            raise ValueError(
                f"`prefix` must be a string that is not empty, got {prefix!r}. "
                'Pass `prefix="val_"`.'
            )
        self.prefix = prefix
        self.at_start = bool(at_start)
        self.at_end = bool(at_end)
        self.epoch_logs = bool(epoch_logs)
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.verbose = verbose
        self._nested = Nested(callbacks)
        self.history: dict[str, list[Any]] = {"step": []}
        self.seconds: list[float] = []
        self.notes: dict[str, str] = {}
        self._window = Window()
        self._fit_seconds = 0.0
        self._begun_at = 0
        self._evaluated_at: int | None = None
        self._loaded: dict[str, Any] | None = None
        self._goes_on = False

    def on_begin(self) -> None:
        self._batches.first()
        self._window = Window()
        self._fit_seconds, self._begun_at, self._evaluated_at = 0.0, len(self.seconds), None
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._evaluated_at, window = loaded["evaluated_at"], loaded["window"]
            self._window.load_state(window)
        self._goes_on = loaded is not None
        if self.log_dir is not None and self.run.chief:
            for folder in self._folders():
                self.run.events(self.log_dir / folder)
        self._nested.begin(self.model, self.run.params)

    def on_first_step(self) -> None:
        if self.at_start and not self._goes_on:
            self._evaluate(None)

    def on_step(self, step: int) -> None:
        if self.due(self.every_steps):
            self._evaluate(_backend.metric_state(self.model))

    def on_epoch_start(self, epoch: int) -> None:
        if not self.run.skip:  # else the sums go on from those of the interrupted epoch
            self._window.epoch_began()

    def on_training_metrics(self) -> None:
        self._window.epoch_ended(_backend.metric_state(self.model))

    def on_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        # A `CallbackList` of the user's own need not know how many there are.
        last = epoch + 1 == self.run.params.get("epochs") or self.model.stop_training
        if self.every_steps is None or (last and self.at_end):
            self._evaluate_once()
        if self.epoch_logs and self.history["step"]:
            logs.update({k: v[-1] for k, v in self.history.items() if k.startswith(self.prefix)})

    def before_end(self) -> None:
        if self.at_end and not self.run.preempted:
            self._evaluate_once()
        self._fit_seconds = host.clock() - self.run.started
        self._nested.end()

    def summary(self) -> list[Finding]:
        found = [Finding(f"{name!r} is {text}.") for name, text in self.notes.items()]
        seconds = self.seconds[self._begun_at :]
        if not seconds:
            return found
        # A `fit` that was interrupted has no end.
        fit_seconds = self._fit_seconds or host.clock() - self.run.started
        share = sum(seconds) / max(fit_seconds, 1e-9)
        newest = ", ".join(
            f"{name} {values[-1]:.4g}"
            for name, values in self.history.items()
            if name.startswith(self.prefix) and np.ndim(values[-1]) == 0
        )
        text = (
            f"Step {self.history['step'][-1]}: {newest}. {len(seconds)} evaluations took "
            f"{sum(seconds):.3g} s, {share:.0%} of the run."
        )
        return [Finding(text), *found]

    def state(self) -> dict[str, Any]:
        return {
            "history": {k: [_plain(v) for v in values] for k, values in self.history.items()},
            "seconds": self.seconds,
            "evaluated_at": self._evaluated_at,
            "window": self._window.state(),
            "nested": self._nested.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.history = {k: list(values) for k, values in state["history"].items()}
        self.seconds = list(state["seconds"])
        self._nested.load_state(state["nested"])
        self._loaded = state

    def _evaluate_once(self) -> None:
        """Evaluates unless that has been done at this very step."""
        if self.run.step > self.run.first_step_number and self._evaluated_at != self.run.step:
            self._evaluate(None)

    def _evaluate(self, state: list[np.ndarray] | None) -> None:
        """Evaluates, keeps and announces; `state` are the training metrics' sums, if whole."""
        began = host.clock()
        run, model = self.run, self.model
        window = self._window.take(state)
        training = {} if window is None else training_results(model, window)
        run.prepare_evaluation()
        engine = engine_of(model)
        try:
            results = engine.evaluate(self._batches, run.batch_rows or DEFAULT_BATCH_SIZE)
        except _backend.STOP as error:
            # `fit` would take it for the end of its own data.
            raise RuntimeError(
                f"`validation_data` ended with {type(error).__name__}: {error}"
            ) from error
        self.notes.update(engine.notes)
        metrics = {f"{self.prefix}{name}": value for name, value in results.items()}
        seconds = host.clock() - began
        self._keep(run.step, {**metrics, **training}, seconds)
        evaluation = Evaluation(run.step, run.epoch, metrics, training, seconds)
        self._write(evaluation)
        run.announce(evaluation)
        self._nested.evaluated({**training, **metrics})

    def _keep(self, step: int, values: dict[str, Any], seconds: float) -> None:
        self._evaluated_at = step
        self.seconds.append(seconds)
        earlier = len(self.history["step"])
        self.history["step"].append(step)
        for name in {**self.history, **values}:
            if name != "step":
                column = self.history.setdefault(name, [float("nan")] * earlier)
                column.append(values.get(name, float("nan")))

    def _folders(self) -> list[str]:
        """Where the values go, and training's means, which the first of several writes for all."""
        own = "validation" if self.prefix == "val_" else self.prefix.strip("_") or self.prefix
        same = (m for m in self.run.members if isinstance(m, StepEvaluation))
        first = next(m for m in same if m.log_dir == self.log_dir)
        return [own, "train"] if first is self else [own]

    def _write(self, evaluation: Evaluation) -> None:
        values = evaluation.metrics
        if self.verbose:
            text = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
            self.report(f"{text} ({evaluation.seconds:.2g} s)")
        if self.log_dir is None or not self.run.chief:
            return
        plain = {name.removeprefix(self.prefix): value for name, value in values.items()}
        for folder, numbers in zip(self._folders(), (plain, evaluation.training), strict=False):
            events = self.run.events(self.log_dir / folder)
            for name, value in numbers.items():
                if np.ndim(value) == 0:
                    events.scalar(f"evaluation_{name}_vs_iterations", value, evaluation.step)
            events.flush()


def _as_fit_takes_it(data: Any) -> Any:
    """A list `[x, y]` is `(x, y)` in `fit(validation_data=...)`, not two inputs."""
    arrays = isinstance(data, list) and not any(isinstance(part, tuple) for part in data)
    return tuple(data) if arrays and len(data) in (2, 3) else data


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if np.ndim(value) == 0 else str(value)
