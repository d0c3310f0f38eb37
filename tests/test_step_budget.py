"""A budget ends `fit` after exactly so many updates."""

import pytest

import keras_tricks as kt
from tests.small_fit import numbers, regression

X, Y = numbers(20)  # 7 steps an epoch
FIT = {"batch_size": 3, "verbose": 0}


def updates(model):
    """What the optimizer has counted, which is right for these models."""
    return int(model.optimizer.iterations)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (5, 1), (7, 1), (8, 2), (17, 3)])
def test_exactly_so_many_updates(model, steps, epochs):
    before = updates(model)
    model.fit(X, Y, epochs=100, callbacks=[kt.StepBudget(steps)], **FIT)
    assert updates(model) - before == steps
    assert len(model.history.epoch) == epochs


@pytest.fixture(scope="module")
def model():
    """One model for many fits."""
    return regression(0.01)


@pytest.mark.backend("tensorflow", "jax")
@pytest.mark.parametrize("steps", [2, 8, 10])
def test_with_steps_per_execution(executing, steps):
    before = updates(executing)
    executing.fit(X, Y, epochs=100, callbacks=[kt.StepBudget(steps)], **FIT)
    assert updates(executing) - before == steps


@pytest.fixture(scope="module")
def executing():
    """One model for many fits, three steps at a time."""
    return regression(0.01, steps_per_execution=3)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_with_data_of_unknown_length(model):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda *_: True).batch(3)
    before = updates(model)
    model.fit(data, epochs=100, shuffle=False, verbose=0, callbacks=[kt.StepBudget(9)])
    assert updates(model) - before == 9


def test_each_fit_has_the_whole_budget(model):
    budget, before = kt.StepBudget(9), updates(model)
    model.fit(X, Y, epochs=100, callbacks=[budget], **FIT)
    model.fit(X, Y, epochs=100, callbacks=[budget], **FIT)
    assert updates(model) - before == 18


def test_the_smaller_of_two_budgets_counts(model):
    before = updates(model)
    model.fit(X, Y, epochs=100, callbacks=[kt.StepBudget(9), kt.StepBudget(4)], **FIT)
    assert updates(model) - before == 4


def test_evaluation_follows_the_last_step(model):
    before = updates(model)
    evaluation = kt.StepEvaluation((X, Y), every_steps=10**6)
    model.fit(X, Y, epochs=100, callbacks=[kt.StepBudget(9), evaluation], **FIT)
    assert evaluation.history["step"] == [before + 9]


def test_keras_s_own_callbacks_hear_the_end(model):
    model.fit(X, Y, epochs=100, validation_data=(X, Y), callbacks=[kt.StepBudget(9)], **FIT)
    assert len(model.history.history["val_loss"]) == 2


def test_more_steps_than_the_epochs_give(model, capsys):
    before = updates(model)
    model.fit(X, Y, epochs=2, batch_size=3, verbose=2, callbacks=[kt.StepBudget(20)])
    assert updates(model) - before == 14
    assert "Trained 14 of 20 steps" in capsys.readouterr().out


def test_the_end_is_told(model, capsys):
    model.fit(X, Y, epochs=9, batch_size=3, verbose=2, callbacks=[kt.StepBudget(9)])
    assert "- Trained 9 steps, the whole budget." in capsys.readouterr().out


def test_a_budget_that_was_used_up_before_an_interruption_trains_nothing(model):
    used, resumed = kt.StepBudget(9), kt.StepBudget(9)
    model.fit(X, Y, epochs=9, callbacks=[used], **FIT)
    before = updates(model)
    resumed.load_state(used.state())
    model.fit(X, Y, epochs=9, callbacks=[resumed], **FIT)
    assert updates(model) == before
    model.fit(X, Y, callbacks=[resumed], **FIT)
    assert updates(model) == before + 7
