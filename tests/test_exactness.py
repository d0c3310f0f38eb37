"""`kt.evaluate` beside an independent calculation over single examples."""

import itertools

import keras
import numpy as np
import pytest

import keras_tricks as kt
from tests.exact import forms, table
from tests.exact.case import (
    BATCH_SIZES,
    SIZES,
    against_keras,
    differences,
    faults,
    possible,
    rows_of,
)
from tests.exact.replicas import BATCH_SIZE, data_parallel, faults_on, mirrored
from tests.exact.situation import SITUATIONS, examples, features, targets

TORCH = keras.backend.backend() == "torch"
JITS = (False,) if TORCH else (False, True)
JIT = keras.backend.backend() == "jax"  # where both would do: the quicker one


@pytest.mark.parametrize("case", table.cases(TORCH), ids=str)
def test_evaluates_as_if_in_one_batch(case):
    assert not faults(case)


def values_of(case):
    """The value of every axis in a case; 1001 rows at a batch size of 1000 are two sizes."""
    sizes = [size for size in SIZES if rows_of(size, case.batch_size) == case.rows]
    for size in sizes:
        values = (case.form, case.batch_size, size, case.situation, *(() if TORCH else (case.jit,)))
        yield list(enumerate(values))


def test_the_table_holds_every_pair():
    held = {
        pair
        for case in table.cases(TORCH)
        for values in values_of(case)
        for pair in itertools.combinations(values, 2)
    }
    known = forms.EVERYWHERE + (forms.TORCH_ONLY if TORCH else ())
    axes = [known, BATCH_SIZES, SIZES, tuple(SITUATIONS), *([] if TORCH else [JITS])]
    wanted = {
        ((i, one), (j, other))
        for (i, left), (j, right) in itertools.combinations(enumerate(axes), 2)
        for one, other in itertools.product(left, right)
        if not (i == 0 and j == 3 and not possible(one, other))
    }
    assert wanted - held == set()


@pytest.mark.backend("torch")  # quick there; `python -m tests.exact` asks every backend
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_reference_agrees_with_keras_where_keras_is_right(name):
    assert not against_keras(name, jit=False)


@pytest.mark.parametrize(
    "name", ["Dice", "add_loss, ActivityRegularization", "compute_loss that is no mean"]
)
def test_names_what_is_not_exact_once(name, capsys):
    x, y, _ = examples(name, 51)
    model = SITUATIONS[name].build(JIT, 20)
    due = SITUATIONS[name].notes
    for _ in range(2):
        assert set(kt.evaluate(model, x, y, batch_size=20).notes) == due
    said = capsys.readouterr().out
    assert {one: said.count(f"'{one}'") for one in due} == dict.fromkeys(due, 1)


def test_a_model_that_was_never_called():
    name = "subclassed model, compute_metrics"
    x, y, weight = examples(name, 51)
    model = SITUATIONS[name].build(JIT, 20)
    got = kt.evaluate(model, x, y, weight, batch_size=20)
    again = model.evaluate(x, y, sample_weight=weight, batch_size=51, verbose=0, return_dict=True)
    assert not differences(got, again)


# One shape --------------------------------------------------------------------------------------


class Counted(keras.layers.Layer):
    """Counts in Python how often its forward pass is traced."""

    traces = 0

    def call(self, inputs):
        Counted.traces += 1
        return keras.ops.tanh(inputs)


@pytest.mark.backend("tensorflow", "jax")
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("ragged", [65, 95, 20])
def test_a_ragged_batch_does_not_trace_the_forward_pass_again(reduction, ragged):
    layers = [keras.Input((4,)), Counted(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model.compile("sgd", loss, metrics=["mae"], jit_compile=True)
    rng = np.random.default_rng(0)
    x, y = features(rng), targets(rng)
    kt.evaluate(model, x[:64], y[:64], batch_size=32)
    before = Counted.traces
    kt.evaluate(model, x[:ragged], y[:ragged], batch_size=32)
    assert Counted.traces == before


# Several devices --------------------------------------------------------------------------------

ON_DEVICES = [
    "reductions, weights [n] and [n,1]",
    "mask, reductions, weights [n,time]",
    "functions with one number per batch: loss, metric",
    "metrics and weighted_metrics",
    "L2 regularisers",
    "compute_loss",
    "a loss function that is no mean",
]
BRIEFLY = ON_DEVICES[:3]


def split(counts):
    """Each situation on the first count of devices, a few of them on the others."""
    first, *others = counts
    return [(n, first) for n in ON_DEVICES] + list(itertools.product(BRIEFLY, others))


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize(("name", "replicas"), split([3, 2, 4]))
def test_mirrored_replicas(name, replicas):
    with mirrored(replicas):
        model = SITUATIONS[name].build(False, BATCH_SIZE)
    assert not faults_on(model, name)


@pytest.mark.backend("jax")
@pytest.mark.parametrize(("name", "devices"), split([4, 8]))
def test_a_data_parallel_mesh(name, devices):
    with data_parallel(devices):
        model = SITUATIONS[name].build(True, BATCH_SIZE)
        assert not faults_on(model, name)


@pytest.mark.backend("tensorflow", "jax")
def test_training_on_several_devices_goes_on_after_a_ragged_evaluation():
    several = mirrored if keras.backend.backend() == "tensorflow" else data_parallel
    with several(4):
        model = SITUATIONS["L2 regularisers"].build(JIT, BATCH_SIZE)
        x, y, _ = examples("L2 regularisers", 48)
        kt.evaluate(model, x[:13], y[:13], batch_size=5)
        before = model.get_weights()
        model.fit(x, y, batch_size=16, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert not np.array_equal(before[0], model.get_weights()[0])


# Failure ----------------------------------------------------------------------------------------


class Rotten:
    """Batches of which the third cannot be read."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        for start in (0, 4):
            yield self.x[start : start + 4], self.y[start : start + 4]
        raise OSError("the third batch cannot be read")


def everything_of(model):
    """Copies of weights, optimizer, metrics, states and seeds."""
    states = [state for layer in model.layers for state in getattr(layer, "states", None) or ()]
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, *states]
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def test_a_failure_in_the_third_batch_changes_nothing():
    recurrent = keras.layers.SimpleRNN(2, stateful=True)
    inputs = keras.Input(batch_shape=(4, 3, 2))
    model = keras.Sequential([inputs, recurrent, keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], jit_compile=JIT)
    rng = np.random.default_rng(0)
    x, y = features(rng, 6, 12).reshape(12, 3, 2), targets(rng, 1, 12)
    model.fit(x, y, batch_size=4, verbose=0)
    recurrent.states[0].assign(np.full((4, 2), 0.5, "float32"))
    before = everything_of(model)
    with pytest.raises(OSError, match="the third batch"):
        kt.evaluate(model, Rotten(x, y))
    for was, now in zip(before, everything_of(model), strict=True):
        np.testing.assert_array_equal(was, now)
    assert np.isfinite(model.fit(x, y, batch_size=4, verbose=0).history["loss"][0])
    assert not np.array_equal(model.get_weights()[0], before[0])
