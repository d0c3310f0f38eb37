"""The base class of every callback in this package."""

from __future__ import annotations

from typing import Any

import keras

from keras_tricks import host
from keras_tricks._arguments import checks_keywords
from keras_tricks._run import Evaluation, Finding, Run, begin
from keras_tricks._schedule import crossed


class Trick(keras.callbacks.Callback):
    """A callback that shares its `fit` with its neighbours.

    Subclasses override the hooks below. Keras's own hooks are final here: the first trick
    of the list hears them and hands them to all, so that each trick sees the same step,
    whatever the list's order. None of them makes Keras's asynchronous hooks synchronous.

    Not due: a hook returns before it touches `self.model`, which on JAX copies the whole
    state back.
    """

    evaluates = False
    """Whether it announces evaluations of its own, beside which Keras's validation steps back."""

    closes_with_block = False
    """Whether `close` shows the findings of all tricks, in place of the run."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = checks_keywords(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self._run: Run | None = None

    # What a trick may use.

    def join(self, run: Run) -> None:
        """Makes this trick part of the run of a `fit` that begins."""
        self._run = run

    @property
    def run(self) -> Run:
        """What the tricks of this `fit` share; there is none before the first `fit`."""
        if self._run is None:
            raise RuntimeError(f"{type(self).__name__} has not been part of a `fit` yet.")
        return self._run

    @property
    def step(self) -> int:
        """Training batches this model has consumed."""
        return self.run.step

    def due(self, every_steps: int | None) -> bool:
        """Whether the last execution reached or crossed a multiple of `every_steps`."""
        run = self.run
        return every_steps is not None and crossed(run.step_before, run.step, every_steps)

    def report(self, text: str) -> None:
        """Says one line, `Name: step N: fact. What to do.`, on the screen."""
        if self.run.chief:
            host.say(f"{type(self).__name__}: step {self.step}: {text}")

    # What a trick may override.

    def before_begin(self) -> None:
        """Before any trick's `on_begin`: what an earlier process left is taken up here."""

    def on_begin(self) -> None:
        """Before training; an error raised here ends `fit` before its first step."""

    def on_first_step(self) -> None:
        """Before the first step of this `fit`, when all state is in place."""

    def on_step(self, step: int) -> None:
        """After each execution of the train function, on the main thread."""

    def after_step(self, step: int) -> None:
        """After every trick's `on_step`."""

    def on_skipped(self) -> None:
        """After batches that are only read: the next one is trained on."""

    def before_epoch(self, epoch: int) -> None:
        """After Keras has reset the metrics, before any trick's `on_epoch_start`."""

    def on_epoch_start(self, epoch: int) -> None:
        """After Keras has reset the metrics for an epoch."""

    def on_training_metrics(self) -> None:
        """The last moment of an epoch at which the metrics' variables are training's."""

    def on_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """At the end of an epoch, after Keras's own validation. `logs` may be added to."""

    def before_evaluation(self) -> None:
        """Before a trick evaluates the model."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After each evaluation in this `fit`."""

    def before_save(self) -> None:
        """Before a trick saves the model."""

    def before_end(self) -> None:
        """At the end of `fit`, while evaluations are still heard by all."""

    def on_end(self) -> None:
        """After the last evaluation: close what is open."""

    def on_abandon(self) -> None:
        """`fit` ended by an exception: stop threads, close files, do not touch the model."""

    def summary(self) -> list[Finding]:
        """What this trick found, for the closing block."""
        return []

    def close(self, findings: list[Finding]) -> None:
        """After the ends of all, on the chief: the findings of all, if `closes_with_block`."""

    def state(self) -> dict[str, Any]:
        """What a restart needs, as values that JSON can hold; large arrays may be NumPy's."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up what `state()` gave in an earlier process; before `on_begin`."""

    # Keras's hooks.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        begin(self, self._model, Trick)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._run is not None and self._run.leads(self):
            self._run.epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        run = self._run
        if run is not None and not run.stepping and not run.skip and run.leads(self):
            run.first_step()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._run is not None and self._run.leads(self):
            self._run.test_begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._run is not None and self._run.leads(self):
            self._run.epoch_end(epoch, logs if logs is not None else {})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._run is not None and self._run.leads(self):
            self._run.end()
