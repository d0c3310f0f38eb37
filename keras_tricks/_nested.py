"""Epoch-style Keras callbacks that live in evaluations instead of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from keras_tricks._callback_state import put_back, state_of


class Nested:
    """Drives epoch-style callbacks: the number of the evaluation is their epoch.

    Attributes:
        count: Evaluations so far, which is the next one's number.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        if isinstance(callbacks, keras.callbacks.Callback):
            callbacks = (callbacks,)
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise TypeError(
                    "`callbacks` must be Keras callbacks, got "
                    f"{type(callback).__name__}. Pass instances, such as "
                    "`callbacks=[keras.callbacks.EarlyStopping(patience=5)]`."
                )
        self.count = 0
        self._loaded: dict[str, Any] | None = None

    def begin(self, model: keras.Model, params: dict[str, Any]) -> None:
        """As at the start of a `fit`."""
        self.count = 0
        for callback in self._callbacks:
            callback.set_params(dict(params))
            callback.set_model(model)
        for callback in self._callbacks:
            callback.on_train_begin({})
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.count = int(loaded["count"])
            for callback, state in zip(self._callbacks, loaded["callbacks"], strict=False):
                put_back(callback, state)
        self._open()

    def evaluated(self, logs: dict[str, Any]) -> None:
        """As at the end of an epoch; the next one begins at once."""
        for callback in self._callbacks:
            callback.on_epoch_end(self.count, logs)
        self.count += 1
        self._open()

    def end(self) -> None:
        """As at the end of a `fit`: `EarlyStopping` restores its best weights here."""
        for callback in self._callbacks:
            callback.on_train_end({})

    def state(self) -> dict[str, Any]:
        """The next one's number, and what each callback remembers."""
        return {"count": self.count, "callbacks": [state_of(c) for c in self._callbacks]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up what `state()` gave, when the next `fit` begins."""
        self._loaded = state

    def _open(self) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(self.count, {})
