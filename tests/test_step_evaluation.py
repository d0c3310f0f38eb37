"""`StepEvaluation`: when it evaluates, what it keeps, and who hears of it."""

import itertools
import re

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._trick import Trick
from tests.small_fit import numbers, regression

X, Y = numbers(20)  # 7 steps an epoch
FIT = {"batch_size": 3}
VALIDATION = (X[:7] + 1, Y[:7])
LOSS = float(np.mean(VALIDATION[0] ** 2))  # of a weight of 1
ERROR = float(np.mean(np.abs(VALIDATION[0])))


@pytest.fixture(scope="module")
def model():
    """A model that learns nothing, for many fits, whose steps go on from one to the next."""
    return regression(metrics=["mae"])


def fitted(model, *callbacks, epochs=2, verbose=0, **options):
    """The steps of a `fit`: the first and the last."""
    before = int(model.optimizer.iterations)
    model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), verbose=verbose, **FIT, **options)
    return before + 1, int(model.optimizer.iterations)


def multiples(every, first, last):
    """Multiples of a number of steps among them."""
    return [step for step in range(first, last + 1) if step % every == 0]


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("every", [4, 7, 10**6])
def test_it_evaluates_at_multiples_of_the_step(model, every, at_start, at_end):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=every, at_start=at_start, at_end=at_end)
    first, last = fitted(model, evaluation)
    due = {*multiples(every, first, last)} | ({first - 1} if at_start else set())
    assert evaluation.history["step"] == sorted(due | ({last} if at_end else set()))


@pytest.mark.parametrize("at_end", [False, True])
def test_without_an_interval_it_evaluates_after_each_epoch(model, at_end):
    evaluation = kt.StepEvaluation(VALIDATION, at_end=at_end)
    first, last = fitted(model, evaluation)
    assert evaluation.history["step"] == [first + 6, last]


@pytest.mark.parametrize("every", [None, 3])
def test_it_evaluates_where_training_is_stopped(model, every):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=every)
    first, last = fitted(model, evaluation, kt.StepBudget(5))
    assert last - first == 4
    due = multiples(every, first, last) if every else []
    assert evaluation.history["step"] == sorted({*due, last})


def test_two_fits_continue_one_history(model):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=10**6)
    ends = [fitted(model, evaluation)[1], fitted(model, evaluation)[1]]
    assert evaluation.history["step"] == ends
    assert len(evaluation.seconds) == 2


def test_another_model_is_evaluated_at_the_same_step():
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=10**6)
    for _ in range(2):
        fitted(regression(), evaluation, epochs=1)
    assert evaluation.history["step"] == [7, 7]


def test_values_and_lengths(model):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=4, at_start=True)
    fitted(model, evaluation)
    columns = ["step", "val_loss", "val_mae", "loss", "mae"]
    count = len(evaluation.history["step"])
    assert sorted(evaluation.history) == sorted(columns)
    assert {len(column) for column in evaluation.history.values()} == {count}
    assert evaluation.history["val_loss"] == pytest.approx([LOSS] * count)
    assert evaluation.history["val_mae"] == pytest.approx([ERROR] * count)
    assert len(evaluation.seconds) == count
    assert min(evaluation.seconds) > 0


def test_two_evaluations_with_prefixes_of_their_own(model):
    one = kt.StepEvaluation(VALIDATION, every_steps=5, prefix="one_")
    two = kt.StepEvaluation((X, Y), prefix="two_")
    fitted(model, one, two)
    assert one.history["one_loss"][-1] == pytest.approx(LOSS)
    assert two.history["two_loss"][-1] == pytest.approx(float(np.mean(X**2)))
    assert not {name for name in one.history if name.startswith("two_")}


def test_epoch_logs_are_in_the_history_of_fit(model):
    often = kt.StepEvaluation(VALIDATION, epoch_logs=True, prefix="often_")
    silent = kt.StepEvaluation(VALIDATION, prefix="silent_")
    fitted(model, often, silent, validation_data=(X, Y))
    history = model.history.history
    assert history["often_loss"] == pytest.approx([LOSS] * 2)
    assert history["val_loss"] == pytest.approx([float(np.mean(X**2))] * 2)
    assert sorted(history) == sorted(
        ["loss", "mae", "val_loss", "val_mae", "often_loss", "often_mae"]
    )


def test_keras_s_early_stopping_reads_epoch_logs(model):
    evaluation = kt.StepEvaluation(VALIDATION, epoch_logs=True)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    first, last = fitted(model, evaluation, stopping, epochs=9)
    assert last - first == 13


class Heard(Trick):
    """Keeps the evaluations that it hears of."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def on_evaluation(self, evaluation):
        self.heard.append(evaluation)


@pytest.mark.parametrize("place", [0, 1])
def test_a_sibling_hears_of_each_whatever_the_order(model, place):
    heard, evaluation = Heard(), kt.StepEvaluation(VALIDATION, every_steps=4)
    callbacks = [heard, evaluation]
    first, _ = fitted(model, *(callbacks if place else callbacks[::-1]))
    assert [one.step for one in heard.heard] == evaluation.history["step"]
    assert [one.metrics["val_loss"] for one in heard.heard] == evaluation.history["val_loss"]
    assert [one.training["loss"] for one in heard.heard] == evaluation.history["loss"]
    assert [one.epoch for one in heard.heard] == [
        (step - first) // 7 for step in evaluation.history["step"]
    ]
    assert not any(one.by_fit for one in heard.heard)


def test_a_sibling_hears_of_keras_s_own_validation(model):
    heard = Heard()
    _, last = fitted(model, heard, validation_data=VALIDATION, validation_freq=2)
    assert [(one.step, one.epoch, one.by_fit) for one in heard.heard] == [(last, 1, True)]
    assert heard.heard[0].metrics == pytest.approx({"val_loss": LOSS, "val_mae": ERROR})


def test_a_line_for_each_evaluation(model, capsys):
    _, last = fitted(model, kt.StepEvaluation(VALIDATION, verbose=1), epochs=1)
    said = capsys.readouterr().out
    assert re.fullmatch(
        rf"StepEvaluation: step {last}: val_loss {LOSS:.4g}, val_mae {ERROR:.4g} \(\S+ s\)\n", said
    )


def test_the_closing_block_counts_the_evaluations_of_this_fit(model, capsys):
    evaluation = kt.StepEvaluation(VALIDATION)
    fitted(model, evaluation)
    _, last = fitted(model, evaluation, verbose=2)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"- Step {last}: val_loss {LOSS:.4g}, val_mae {ERROR:.4g}. 2 evaluat")
    assert 0 < int(re.search(r"(\d+)% of the run", line)[1]) <= 100


def spread(y_true, y_pred):
    """A metric that gives one number for a batch."""
    return keras.ops.max(y_pred) - keras.ops.min(y_pred)


def test_notes_name_what_is_not_exact(capsys):
    evaluation = kt.StepEvaluation(VALIDATION)
    fitted(regression(metrics=[spread]), evaluation, verbose=2)
    assert list(evaluation.notes) == ["spread"]
    assert capsys.readouterr().out.count("not decomposable") == 1


class Ends(keras.utils.PyDataset):
    """Evaluation data whose second batch fails."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index:
            raise self.error()
        return VALIDATION


class EndsAtEvaluation(Trick):
    """Hears of an evaluation and ends with what ends an epoch."""

    def on_evaluation(self, evaluation):
        raise StopIteration("no more")


def out_of_range():
    """What TensorFlow raises at the end of a dataset."""
    import tensorflow as tf

    return tf.errors.OutOfRangeError(None, None, "no more")


@pytest.mark.parametrize(
    "error", [StopIteration, pytest.param(out_of_range, marks=pytest.mark.backend("tensorflow"))]
)
@pytest.mark.parametrize("at_start", [False, True])
def test_evaluation_data_that_ends_too_early_does_not_end_the_epoch(model, error, at_start):
    evaluation = kt.StepEvaluation(Ends(error), every_steps=2, at_start=at_start)
    with pytest.raises(RuntimeError, match=r"no more|raised StopIteration"):
        fitted(model, evaluation)


@pytest.mark.parametrize("at_start", [False, True])
def test_a_sibling_that_ends_at_an_evaluation_does_not_end_the_epoch(model, at_start):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=2, at_start=at_start)
    with pytest.raises(RuntimeError, match="no more"):
        fitted(model, EndsAtEvaluation(), evaluation)


def test_after_a_failed_evaluation_the_next_fit_is_right(model):
    evaluation = kt.StepEvaluation(Ends(OSError), every_steps=2)
    with pytest.raises(OSError):  # noqa: PT011 - it has no text
        fitted(model, evaluation)
    healthy = kt.StepEvaluation(VALIDATION)
    fitted(model, healthy)
    assert healthy.history["val_loss"] == pytest.approx([LOSS] * 2)
    assert model.history.history["loss"] == pytest.approx([float(np.mean(X**2))] * 2)


@pytest.mark.parametrize("pair", list(itertools.permutations(["evaluation", "budget"])))
def test_with_a_budget_in_any_order(model, pair):
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=10**6)
    named = {"evaluation": evaluation, "budget": kt.StepBudget(3)}
    _, last = fitted(model, *(named[name] for name in pair))
    assert evaluation.history["step"] == [last]
