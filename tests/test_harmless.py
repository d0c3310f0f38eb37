"""A `fit` with evaluations ends, bit for bit, where the same `fit` without them ends."""

import contextlib
import functools
import random

import keras
import numpy as np
import pytest

import keras_tricks as kt
from tests.small_fit import (
    BACKEND,
    BATCH_SIZE,
    AtStep,
    draws,
    examples,
    noisy_model,
    state_of,
)

COMPILED = {
    "plain": {"jit_compile": False},
    "jit": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "steps_per_execution": {"steps_per_execution": 3},
}
DEFAULT = {"tensorflow": "plain", "jax": "jit", "torch": "plain"}[BACKEND]
ALL = {
    "tensorflow": ("plain", "jit", "eager", "steps_per_execution"),
    "jax": ("jit", "eager", "steps_per_execution"),
    "torch": ("plain",),
}[BACKEND]


def trained(*callbacks, compiled=DEFAULT, scope=contextlib.nullcontext):
    """State, `History` and the next random numbers after a `fit` from one seed."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    x, y = examples()
    with scope():
        model = noisy_model(**COMPILED[compiled])
        model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, verbose=0, callbacks=list(callbacks))
        return state_of(model), model.history.history, draws()


plain = functools.cache(trained)


class Random:
    """Evaluation data, made with every global generator there is."""

    def __init__(self, fails=False):
        self.fails = fails

    def __iter__(self):
        for batch in range(4):
            x, y = examples(8, seed=random.randrange(100))
            if self.fails and batch == 2:
                raise OSError("the third batch cannot be read")
            yield x + sum(draws()), y


@pytest.mark.parametrize("compiled", ALL)
def test_evaluating_at_every_third_step_changes_no_bit(compiled):
    evaluation = kt.StepEvaluation(examples(23, seed=1), every_steps=3, at_start=True)
    assert trained(evaluation, compiled=compiled) == plain(compiled=compiled)
    third = 10 if compiled == "steps_per_execution" else 9  # executions of 3, 3 and 1 steps
    assert evaluation.history["step"] == [0, 3, 6, third, third + 3, 14]


def several_devices():
    """A scope in which training is spread over two devices."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        on_one = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=on_one).scope()
    devices = keras.distribution.list_devices()[:2]
    return keras.distribution.DataParallel(devices=devices).scope()


@pytest.mark.backend("tensorflow", "jax")
def test_evaluating_on_several_devices_changes_no_bit():
    evaluation = kt.StepEvaluation(examples(23, seed=1), every_steps=5)
    assert trained(evaluation, scope=several_devices) == trained(scope=several_devices)
    assert evaluation.history["step"] == [5, 10, 14]


def test_evaluation_data_that_draws_random_numbers_changes_no_bit():
    evaluation = kt.StepEvaluation(Random(), every_steps=5, at_start=True)
    assert trained(evaluation) == plain()
    assert len(set(evaluation.history["val_loss"])) == 4


def test_an_evaluation_that_fails_in_its_third_batch_changes_no_bit():
    failures = []

    def evaluate(model):
        with pytest.raises(OSError, match="third batch"):
            kt.evaluate(model, Random(fails=True))
        failures.append(model.optimizer.iterations)

    assert trained(AtStep(4, evaluate)) == plain()
    assert len(failures) == 2


def test_an_evaluation_moves_no_generator():
    before = draws()
    keras.utils.set_random_seed(0)
    model = noisy_model()
    keras.utils.set_random_seed(0)
    kt.evaluate(model, Random())
    assert draws() == before


def recurrent(*callbacks):
    """State of a stateful RNN, batch size 4, after a `fit`."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    layers = [keras.Input(batch_shape=(4, 3, 2)), keras.layers.SimpleRNN(2, stateful=True)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.linspace(-1, 1, 96).reshape(16, 3, 2), np.ones((16, 1))
    model.fit(x, y, batch_size=4, shuffle=False, epochs=2, verbose=0, callbacks=list(callbacks))
    return state_of(model), model.history.history


def test_the_states_of_a_stateful_rnn_are_training_s():
    x, y = np.ones((8, 3, 2)), np.zeros((8, 1))
    evaluation = kt.StepEvaluation((x, y), every_steps=3)
    assert recurrent(evaluation) == recurrent()
    assert evaluation.history["step"] == [3, 6, 8]


@pytest.mark.backend("torch")
@pytest.mark.parametrize("fails", [False, True])
def test_each_module_keeps_its_mode(fails):
    modes = []

    def evaluate(model):
        model.layers[1].eval()  # as a user freezes one layer
        before = [module.training for module in model.modules()]
        with contextlib.suppress(OSError):
            kt.evaluate(model, Random(fails))
        modes.append([module.training for module in model.modules()] == before)

    trained(AtStep(4, evaluate))
    assert modes == [True, True]
