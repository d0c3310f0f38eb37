"""Epoch-style Keras callbacks that live in evaluations instead of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras


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

    def begin(self, model: keras.Model, params: dict[str, Any]) -> None:
        """As at the start of a `fit`."""
        self.count = 0
        for callback in self._callbacks:
            callback.set_params(dict(params))
            callback.set_model(model)
        for callback in self._callbacks:
            callback.on_train_begin({})
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

    def _open(self) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(self.count, {})
