"""Short runs of a model, exact and with plain Keras, that leave it as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from keras_tricks import _backend, host
from keras_tricks._backend.keeping import kept_values
from keras_tricks._data import Batches
from keras_tricks._engine import engine_of
from keras_tricks._rows import Data
from keras_tricks._sample import rows_of

Results = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What a run of plain Keras gave.

    Attributes:
        results: Loss and metrics at its end, by name.
        first: The same after its first batch.
        seconds: Time of each batch.
    """

    results: Results
    first: Results
    seconds: list[float]


class Trials:
    """Runs a built model on given batches.

    Args:
        model: The model; the caller keeps its functions apart, see `kept_functions`.

    Attributes:
        notes: What is not exact, by name.
        devices: How many share a batch.
        compiles: Whether XLA compiles the training step for each shape.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._engine = engine_of(model)
        self.devices: int = self._engine.runner.multiple_of
        self.compiles = _backend.NAME != "torch" and bool(
            model.jit_compile and not model.run_eagerly
        )

    @property
    def notes(self) -> dict[str, str]:
        return dict(self._engine.notes)

    def exact(self, batches: list[Data], batch_size: int | None = None) -> Results:
        """The exact values over all examples of the batches."""
        data = Batches([_element(data) for data in batches], batch_size=batch_size)
        return self._engine.evaluate(data, rows_of(batches[0]))

    def evaluate(self, batches: list[Data]) -> Trial:
        """What `model.evaluate` gives."""
        watch = Stopwatch()
        with kept_values(self.model):
            results = self.model.evaluate(
                HostBatches(batches), verbose=0, callbacks=[watch], return_dict=True
            )
        return Trial(results, watch.first, watch.seconds)

    def fit(self, batches: list[Data], *, between: list[Data] | None = None) -> Trial:
        """What `model.fit` gives over one epoch; `between`: evaluated in the midst of it."""
        watch = Stopwatch()
        callbacks = [watch]
        if between is not None:
            callbacks.append(EvaluateBetween(len(batches) // 2, between))
        with kept_values(self.model):
            history = self.model.fit(
                HostBatches(batches), verbose=0, shuffle=False, callbacks=callbacks
            ).history
        return Trial({k: v[-1] for k, v in history.items()}, watch.first, watch.seconds)


class HostBatches(keras.utils.PyDataset):
    """Batches as Keras reads them, in their order."""

    def __init__(self, batches: list[Data]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns `(x,)`, `(x, y)` or `(x, y, sample_weight)`."""
        return _element(self._batches[index])


class Stopwatch(keras.callbacks.Callback):
    """Takes the time of each batch. Its hooks make Keras wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.first: Results = {}
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs: Results | None = None) -> None:
        self._began = host.clock()

    def on_train_batch_end(self, batch: int, logs: Results | None = None) -> None:
        # Reading a number waits for the device.
        values = {name: float(value) for name, value in (logs or {}).items() if _is_number(value)}
        self.seconds.append(host.clock() - self._began)
        self.first = self.first or values

    on_test_batch_begin = on_train_batch_begin
    on_test_batch_end = on_train_batch_end


class EvaluateBetween(keras.callbacks.Callback):
    """Calls `model.evaluate` once, as a user's callback might."""

    def __init__(self, after: int, batches: list[Data]) -> None:
        super().__init__()
        self._after = after
        self._batches = batches

    def on_train_batch_end(self, batch: int, logs: Results | None = None) -> None:
        if batch + 1 == self._after:
            self.model.evaluate(HostBatches(self._batches), verbose=0)


def _is_number(value: Any) -> bool:
    return not getattr(value, "shape", ())


def _element(data: Data) -> tuple[Any, ...]:
    x, y, sample_weight = data
    if sample_weight is not None:
        return data
    return (x,) if y is None else (x, y)
