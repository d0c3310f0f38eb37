"""Epoch-style Keras callbacks inside `StepEvaluation`: an evaluation is their epoch."""

import keras
import numpy as np
import pytest

import keras_tricks as kt
from tests.small_fit import AtStep, numbers, regression

X, Y = numbers(20)  # 7 steps an epoch
FIT = {"batch_size": 3, "shuffle": False, "verbose": 0}


def weight(model):
    """The one weight."""
    return float(model.get_weights()[0][0, 0])


def evaluating(callbacks, **options):
    """An evaluation every other step."""
    return kt.StepEvaluation((X, Y), every_steps=2, callbacks=callbacks, **options)


class Recorder(keras.callbacks.Callback):
    """Keeps the hooks that it hears, and at each end of an epoch the loss and the weight."""

    def __init__(self):
        super().__init__()
        self.heard, self.losses, self.weights = [], [], []

    def on_train_begin(self, logs=None):
        self.heard.append("train begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.heard.append(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.heard.append(f"end {epoch} {sorted(logs)}")
        self.losses.append(logs["val_loss"])
        self.weights.append(weight(self.model))

    def on_train_end(self, logs=None):
        self.heard.append("train end")


def test_each_hears_of_an_evaluation_as_of_an_epoch():
    recorder = Recorder()
    evaluation = kt.StepEvaluation((X, Y), every_steps=5, callbacks=recorder)
    model = regression()
    for _ in range(2):  # the second `fit` counts anew
        model.fit(X, Y, epochs=1, callbacks=[evaluation], **FIT)
    ends = [f"end {number} ['loss', 'val_loss']" for number in range(2)]
    heard = ["train begin", "begin 0", ends[0], "begin 1", ends[1], "begin 2", "train end"]
    assert recorder.heard == heard * 2


def test_early_stopping_ends_training_after_exactly_that_step():
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2)
    model, evaluation = regression(0.0), evaluating([stopping])
    model.fit(X, Y, epochs=9, callbacks=[evaluation], **FIT)
    assert evaluation.history["step"] == [2, 4, 6]  # the best is the first
    assert int(model.optimizer.iterations) == 6
    assert stopping.stopped_epoch == 2


@pytest.mark.backend("tensorflow", "jax")
def test_early_stopping_with_steps_per_execution():
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    model, evaluation = regression(0.0, steps_per_execution=3), evaluating([stopping])
    model.fit(X, Y, epochs=9, callbacks=[evaluation], **FIT)
    assert int(model.optimizer.iterations) == 6


def test_early_stopping_restores_the_weights_of_the_best_evaluation():
    # The weight goes from 1 through 0, the best for these examples, to -9.
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    model, recorder = regression(0.3), Recorder()
    model.fit(X, X * -9, epochs=9, callbacks=[evaluating([stopping, recorder])], **FIT)
    best = int(np.argmin(recorder.losses))
    assert weight(model) == recorder.weights[best]
    assert len(recorder.losses) == best + 3


def test_the_learning_rate_is_reduced_on_a_plateau_of_evaluations():
    rates = []
    reducing = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=9.0)
    recorder = AtStep(0, lambda model: rates.append(float(model.optimizer.learning_rate)))
    model = regression(0.01)
    model.fit(X, Y, epochs=3, callbacks=[evaluating([reducing]), recorder], **FIT)
    # Evaluations at 2, 4, ..., 20 and 21; all but the first halve it. Epochs begin after 0, 7, 14.
    assert rates == pytest.approx([0.01, 0.01 * 0.5**2, 0.01 * 0.5**6])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01 * 0.5**10)


def test_a_checkpoint_holds_the_weights_of_its_evaluation(tmp_path):
    path = str(tmp_path / "{epoch:02d}.weights.h5")
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model, recorder = regression(0.01), Recorder()
    model.fit(X, Y, callbacks=[evaluating([saving, recorder])], **FIT)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"{n:02d}.weights.h5" for n in range(1, 5)]
    loaded = []
    for file in files:
        model.load_weights(file)
        loaded.append(weight(model))
    assert loaded == recorder.weights
    assert len(set(loaded)) == 4


def test_a_checkpoint_of_the_best_only(tmp_path):
    path = str(tmp_path / "best.keras")
    saving = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    model, evaluation = regression(0.01), evaluating([saving])
    model.fit(X, Y, callbacks=[evaluation], **FIT)
    best = keras.models.load_model(path)
    values = evaluation.history["val_loss"]
    assert float(np.mean((best.predict(X, verbose=0) - Y) ** 2)) == pytest.approx(min(values))


def test_only_callbacks_are_taken():
    with pytest.raises(TypeError, match=r"`callbacks` must be Keras callbacks, got str\. Pass"):
        kt.StepEvaluation((X, Y), callbacks=["early_stopping"])
