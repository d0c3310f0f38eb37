"""Training's means are those of exactly the examples since the last evaluation."""

import itertools

import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import keras_tricks as kt
from keras_tricks._window import Window
from tests.small_fit import column, numbers, regression

X, Y = numbers(20)
LOSSES = X[:, 0].astype("float64") ** 2  # of a weight of 1, which stays 1
BATCHES = [np.arange(20)[start : start + 3] for start in range(0, 20, 3)]  # 7 steps an epoch
FIT = {"batch_size": 3, "shuffle": False, "verbose": 0}


def windows(steps):
    """Indices of the examples that were trained on up to each step, from the one before it on."""
    spans = itertools.pairwise([0, *steps])
    return [np.concatenate([BATCHES[step % 7] for step in range(*span)]) for span in spans]


def means(steps, values=LOSSES):
    """Mean of each window, up to float32's rounding."""
    return pytest.approx([values[rows].mean() for rows in windows(steps)], rel=1e-5)


@pytest.mark.parametrize("validation", [None, (X + 1, Y)], ids=["alone", "beside Keras's own"])
def test_the_loss_over_the_ends_of_epochs(validation):
    evaluation = kt.StepEvaluation((X, Y), every_steps=5)
    model = regression()
    model.fit(X, Y, epochs=3, validation_data=validation, callbacks=[evaluation], **FIT)
    assert evaluation.history["step"] == [5, 10, 15, 20, 21]
    assert evaluation.history["loss"] == means([5, 10, 15, 20, 21])


@pytest.mark.backend("tensorflow", "jax")
def test_the_loss_with_steps_per_execution():
    evaluation = kt.StepEvaluation((X, Y), every_steps=5)
    regression(steps_per_execution=3).fit(X, Y, epochs=3, callbacks=[evaluation], **FIT)
    assert evaluation.history["step"] == [6, 10, 17, 20, 21]
    assert evaluation.history["loss"] == means([6, 10, 17, 20, 21])


def test_without_an_interval_it_is_the_epoch_s_mean_and_a_second_fit_begins_anew():
    evaluation, model = kt.StepEvaluation((X, Y)), regression()
    model.fit(X, Y, epochs=2, callbacks=[evaluation], **FIT)
    model.fit(X, Y, steps_per_epoch=4, callbacks=[evaluation], **FIT)
    first = LOSSES[:12].mean()
    assert evaluation.history["loss"] == pytest.approx([LOSSES.mean()] * 2 + [first], rel=1e-5)


def test_each_evaluation_has_a_window_of_its_own():
    often = kt.StepEvaluation((X, Y), every_steps=2, prefix="often_", at_start=True)
    seldom = kt.StepEvaluation((X, Y), every_steps=6, prefix="seldom_", at_end=False)
    regression().fit(X, Y, epochs=2, callbacks=[seldom, often], **FIT)
    assert often.history["loss"][1:] == means([2, 4, 6, 8, 10, 12, 14])
    assert np.isnan(often.history["loss"][0])  # before the first step
    assert seldom.history["loss"] == means([6, 12])


def test_metrics_over_the_window():
    p = column((np.random.default_rng(0).permutation(20) + 0.5) / 20)
    y = column(np.random.default_rng(1).integers(0, 2, 20))
    model = regression(loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    evaluation = kt.StepEvaluation((p, y), every_steps=4)
    model.fit(p, y, epochs=2, callbacks=[evaluation], **FIT)
    steps = [4, 8, 12, 14]
    right = ((p > 0.5) == y)[:, 0].astype("float64")
    assert evaluation.history["step"] == steps
    assert evaluation.history["accuracy"] == means(steps, right)
    areas = [roc_auc_score(y[rows, 0], p[rows, 0]) for rows in windows(steps)]
    assert evaluation.history["auc"] == pytest.approx(areas, rel=1e-5)


def state(total, count):
    """A mean's sums."""
    return [np.asarray(float(total)), np.asarray(float(count))]


def taken(window, *sums):
    """What a window takes, as numbers."""
    values = window.take(state(*sums) if sums else None)
    return None if values is None else [float(value) for value in values]


def test_a_window_is_the_difference_of_the_sums():
    window = Window()
    window.epoch_began()
    assert taken(window, 3, 2) == [3, 2]
    assert taken(window, 10, 6) == [7, 4]


def test_what_nobody_took_before_the_end_of_an_epoch_is_kept():
    window = Window()
    window.epoch_began()
    taken(window, 3, 2)
    window.epoch_ended(state(10, 6))
    window.epoch_began()
    assert taken(window, 1, 1) == [8, 5]


def test_after_the_end_of_an_epoch_the_window_is_what_was_kept():
    window = Window()
    window.epoch_began()
    window.epoch_ended(state(10, 6))
    assert taken(window) == [10, 6]
    assert taken(window) is None


def test_sums_that_somebody_reset_begin_anew():
    window = Window()
    window.epoch_began()
    taken(window, 10, 6)
    assert taken(window, 2, 1) == [2, 1]
