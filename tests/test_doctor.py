"""`kt.doctor`: what it finds, against NumPy over single examples, and that it leaves no trace."""

import logging
from itertools import pairwise

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._checks import GIB, Finding, check_memory, pair
from keras_tricks._sample import read_sample
from keras_tricks.doctor import Report
from tests.small_fit import BACKEND, column, draws, numbers, regression, state_of

EPSILON = 1e-3  # of Keras's batch normalisation


def batches(data, *sizes):
    """A list of batches of these sizes, in order."""
    edges = np.cumsum([0, *sizes])
    return [tuple(a[i:j] for a in data) for i, j in pairwise(edges)]


def found(report):
    """The findings by name; none comes twice, but that of shapes."""
    return {finding.name: finding for finding in report.findings}


def largest(y_true, y_pred):
    """A metric function that is one number for a batch."""
    return keras.ops.max(keras.ops.abs(y_pred))


def normalised():
    """Batch normalisation before a weight of 1: nothing is learned but the statistics."""
    layers = [
        keras.layers.BatchNormalization(center=False, scale=False),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
    ]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae", largest])
    return model


@pytest.fixture(scope="module")
def bad():
    """Ragged batches, statistics over eight rows, a metric function: the report, and its lines."""
    random = np.random.default_rng(0)
    x, v = (column(random.normal(1, 2, rows)) for rows in (36, 20))
    train = batches((x, 0 * x), 8, 8, 8, 8, 4)
    validation = batches((v, 0 * v), 8, 8, 4)
    return kt.doctor(normalised(), train, validation), x[:, 0].astype(float), v[:, 0].astype(float)


def test_a_bad_setup_is_found_in_every_point(bad):
    shapes = ["shapes", "shapes"] if BACKEND == "jax" else []
    names = ["padding", "not exact", *shapes, "batch norm", "inside an epoch"]
    assert [finding.name for finding in bad[0].findings] == names
    assert not bad[0].well
    lines = str(bad[0]).splitlines()
    assert lines[0].startswith("kt.doctor: val_loss ")
    assert lines[1:] == [f"- {finding}" for finding in bad[0].findings]


def test_padding_is_told_with_both_values(bad):
    report, _, v = bad
    squares, sizes = v**2 / (1 + EPSILON), np.abs(v) / np.sqrt(1 + EPSILON)
    values = found(report)["padding"].numbers
    assert values["exact_val_loss"] == pytest.approx(squares.mean(), rel=1e-5)
    # Keras divides by the 24 rows of the padded batches, and `metrics=` count the copies.
    assert values["val_loss"] == pytest.approx(squares.sum() / 24, rel=1e-5)
    assert values["exact_val_mae"] == pytest.approx(sizes.mean(), rel=1e-5)
    assert values["val_mae"] == pytest.approx((sizes.sum() + 4 * sizes[-1]) / 24, rel=1e-5)
    read, exact = pair(squares.sum() / 24, squares.mean())
    sentence = found(report)["padding"].sentence
    start = "Pad the last batch (4 of 8 rows) with zero weights and your val_loss will read "
    assert sentence.startswith(f"{start}{read}; it is {exact}. Your val_mae will read ")


def test_what_cannot_be_exact_is_told_at_two_batch_sizes(bad):
    report, _, v = bad
    sizes = np.abs(v) / np.sqrt(1 + EPSILON)
    each = [sizes[:8].max(), sizes[8:16].max(), sizes[16:].max()]
    values = found(report)["not exact"].numbers
    assert values["val_largest_at_8"] == pytest.approx(np.average(each, weights=[8, 8, 4]))
    assert values["val_largest_at_20"] == pytest.approx(sizes.max())
    assert found(report)["not exact"].sentence.startswith("val_largest cannot be exact: it is one")


def test_batch_norm_is_told_with_the_loss_in_both_modes(bad):
    report, x, _ = bad
    first = x[:8]
    training = np.mean((first - first.mean()) ** 2 / (first.var() + EPSILON))
    values = found(report)["batch norm"].numbers
    assert values["training_loss"] == pytest.approx(training, rel=1e-4)
    assert values["inference_loss"] == pytest.approx(np.mean(first**2) / (1 + EPSILON), rel=1e-5)
    assert values["rows"] == 8


def test_an_evaluation_inside_an_epoch_is_told_with_both_losses(bad):
    report, x, v = bad
    four = x[:32].reshape(4, 8)
    means, variances = four.mean(axis=1), four.var(axis=1)
    losses = ((four - means[:, None]) ** 2 / (variances[:, None] + EPSILON)).mean(axis=1)
    mean, variance = 0.0, 1.0
    for batch in range(2):  # the moving statistics when it evaluates
        mean, variance = (
            0.99 * mean + 0.01 * means[batch],
            0.99 * variance + 0.01 * variances[batch],
        )
    evaluated = ((v[:16] - mean) ** 2 / (variance + EPSILON)).sum()
    values = found(report)["inside an epoch"].numbers
    assert values["exact_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    # Evaluating reset the metrics: its own rows and the training rows after it are counted.
    spoilt = (evaluated + 8 * losses[2:].sum()) / 32
    assert values["loss"] == pytest.approx(spoilt, rel=1e-4)


def test_all_is_well_in_one_line(capsys):
    train = batches(numbers(32), 8, 8, 8, 8)
    report = kt.doctor(regression(metrics=["mae"]), train, batches(numbers(16), 8, 8))
    (line,) = capsys.readouterr().out.splitlines()
    assert report.well
    assert line == str(report)
    losses = np.arange(32) ** 2 / 100
    right, spoilt = losses.mean(), (losses[:16].sum() + losses[16:].sum()) / 32
    assert line.startswith(f"kt.doctor: all is well: val_loss {losses[:16].mean():.4g} exactly, ")
    # The same examples in the place of the first half: nothing to see, and nothing said.
    assert right == spoilt
    assert report.findings == []
    assert line.endswith(" GiB.")


def test_a_good_setup_is_told_what_would_spoil_it():
    train = batches(numbers(32), 8, 8, 8, 8)
    x, y = numbers(16)
    report = kt.doctor(regression(), train, batches((x + 1, y), 8, 8))
    (finding,) = report.findings
    losses, evaluated = np.arange(32) ** 2 / 100, (np.arange(16) / 10 + 1) ** 2
    assert report.well
    assert finding.would
    assert finding.numbers == pytest.approx(
        {
            "exact_loss": losses.mean(),
            "loss": (evaluated.sum() + losses[16:].sum()) / 32,
        },
        rel=1e-5,
    )
    assert "all is well" in str(report)
    assert str(report).endswith(str(finding))


def test_a_mask_is_weighted_by_its_steps():
    """cases/18: 4.25 by batches of one sequence, 31 / 5 over the valid steps."""
    x = column([1, 0, 0, 0, 1, 2, 3, 4]).reshape(2, 4, 1)
    inputs = keras.Input((4, 1))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(inputs, dense(keras.layers.Masking(0.0)(inputs)))
    model.compile("sgd", "mse")
    finding = found(kt.doctor(model, (x, 0 * x), batches((x, 0 * x), 1, 1)))["exactness"]
    assert finding.numbers == pytest.approx({"val_loss": 4.25, "exact_val_loss": 6.2})
    assert "in batches of 1 is not exact: val_loss reads 4.25; it is 6.2." in finding.sentence


def test_padding_that_is_there_is_told_with_both_values():
    """keras-team/keras#13641 and #3855: ten examples, and two of weight zero."""
    x = column([*range(1, 11), 99, 99])
    weights = np.r_[np.ones(10), np.zeros(2)].astype("float32")
    validation = batches((x, 0 * x, weights), 4, 4, 4)
    report = kt.doctor(regression(metrics=["mae"]), batches(numbers(8), 4, 4), validation)
    assert found(report)["exactness"].numbers == pytest.approx(
        {
            "val_loss": np.sum(np.arange(1, 11) ** 2) / 12,
            "exact_val_loss": 38.5,
            "val_mae": x.mean(),
            "exact_val_mae": 5.5,
        },
        rel=1e-5,
    )
    assert found(report)["exactness"].sentence.startswith("`validation` ends in 2 rows of weight")


def test_weights_that_only_training_has_are_told():
    """keras-team/keras#5616: the loss is weighted, val_loss is not."""
    x, y = numbers(20)
    weights = np.linspace(0.5, 3, 20).astype("float32")
    finding = found(kt.doctor(regression(), (x, y, weights), (x, y)))["weights"]
    losses = x[:, 0] ** 2
    expected = {"weighted_loss": (weights * losses).mean(), "loss": losses.mean()}
    assert finding.numbers == pytest.approx(expected, rel=1e-5)


def test_metrics_that_see_no_weights_are_told():
    x, y = numbers(20)
    weights = np.linspace(0.5, 3, 20).astype("float32")
    data = (x, y, weights)
    finding = found(kt.doctor(regression(metrics=["mae"]), data, data))["weights"]
    assert f"val_mae {x.mean():.4g} with and without them" in finding.sentence
    assert "weights" not in found(kt.doctor(regression(weighted_metrics=["mae"]), data, data))


@pytest.mark.backend("tensorflow", "jax")
def test_a_second_shape_costs_a_compilation_under_xla():
    model = regression(jit_compile=True)
    report = kt.doctor(model, batches(numbers(12), 4, 4, 3, 1), batches(numbers(11), 4, 4, 3))
    train, validation = (f for f in report.findings if f.name == "shapes")
    assert train.sentence.startswith("`train` has batches of (4, 1), (3, 1) and 1 more: compiling")
    assert validation.sentence.startswith("`validation` has batches of (4, 1), (3, 1): compiling")
    assert train.numbers["shapes"] == 3
    assert validation.numbers["shapes"] == 2
    for finding in (train, validation):
        assert f"took {finding.numbers['compile_seconds']:.2g} s" in finding.sentence


@pytest.mark.backend("jax")
def test_a_batch_that_devices_cannot_share_is_told_and_the_model_survives():
    """Plain Keras ends in an IndivisibleError there, and leaves a model without weights."""
    distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    try:
        model = regression()
        data = batches(numbers(20), 8, 8, 4)
        report = kt.doctor(model, data, data)
        sentences = [f.sentence for f in report.findings if f.name == "devices"]
        assert "a batch of 4 rows cannot be shared equally by 8 devices" in sentences[0]
        assert sentences[1].startswith("A training batch of 4 rows cannot be shared equally by 8")
        x, y = numbers(16)
        assert model.evaluate(x, y, batch_size=8, verbose=0) == pytest.approx(np.mean(x**2))
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.backend("tensorflow")
def test_batch_norm_on_replicas_is_told_with_the_rows_of_each():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = normalised()
    data = batches(numbers(32), 32)
    finding = found(kt.doctor(model, data))["batch norm"]
    assert finding.numbers["rows"] == 16
    assert "its own part of 32 on each of 2 replicas" in finding.sentence
    assert "`synchronized=True`" in finding.advice


def noisy():
    """Everything random, and statistics: not built before its first batch."""
    layers = [
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), "mse", metrics=["mae"])
    return model


def trained(*, examined):
    """State, `History` and next random numbers after two fits, the doctor between them or not."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    model = noisy()
    x, y = numbers(20)
    first = model.fit(x, y, batch_size=8, verbose=0).history
    if examined:
        before = state_of(model)
        kt.doctor(model, numbers(20), numbers(11))
        assert state_of(model) == before
        assert model.history.history is first
    second = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    return state_of(model), first, second, draws()


def test_training_goes_on_bit_for_bit_as_without_the_doctor():
    assert trained(examined=True) == trained(examined=False)


class NotFour(keras.layers.Layer):
    """Fails at a batch of four."""

    def call(self, inputs):
        if inputs.shape[0] == 4:
            raise ValueError("four rows are too few")
        return inputs


def test_a_failure_of_keras_is_a_finding_and_leaves_the_model_as_it_was():
    model = keras.Sequential([keras.Input((1,)), NotFour(), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    x, y = numbers(16)
    model.fit(x, y, batch_size=8, verbose=0)
    before, history = state_of(model), model.history
    report = kt.doctor(model, batches(numbers(20), 8, 8, 4), batches(numbers(12), 8, 4))
    failure = found(report)["failure"]
    start = "Plain Keras failed in this trial, model.evaluate as it is: ValueError: "
    assert failure.sentence.startswith(start)
    assert state_of(model) == before
    assert model.history is history


def test_steps_per_execution_and_loggers_are_as_before():
    options = {} if BACKEND == "torch" else {"steps_per_execution": 3}
    model, level = regression(**options), logging.getLogger("tensorflow").level
    kt.doctor(model, numbers(20))
    assert model.steps_per_execution == options.get("steps_per_execution", 1)
    assert logging.getLogger("tensorflow").level == level


def test_a_part_of_the_data_is_called_so():
    report = kt.doctor(regression(), numbers(320))
    losses = np.r_[np.arange(7 * 32), np.arange(288, 320)] ** 2 / 100
    assert report.numbers["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert report.headline.startswith(f"loss {losses.mean():.4g} exactly on 8 of 10 batches of `tr")


class Endless:
    """The same batch for ever."""

    def __iter__(self):
        while True:
            yield numbers(8)


def test_data_without_an_end_is_read_for_so_long():
    sample = read_sample(Endless(), "train", batches=3, seconds=0.05, limit_bytes=GIB)
    assert len(sample.batches) == 3
    assert not sample.ended


@pytest.mark.parametrize(
    ("peak", "device", "sentences"),
    [
        (8, None, []),
        (15, None, ["The process had 15 of 16 GiB in use at its peak, 94%."]),
        (1, (70 * GIB, 80 * GIB), []),
        (1, (78 * GIB, 80 * GIB), ["The first device had 78 of 80 GiB in use at its peak, 98%."]),
        (1, (78 * GIB, 0), []),
    ],
)
def test_memory_is_told_near_its_limit(peak, device, sentences):
    found = check_memory(peak * GIB, 16 * GIB, device)
    assert [finding.sentence for finding in found] == sentences


def test_the_memory_of_this_machine_is_measured():
    values = kt.doctor(regression(), numbers(8)).numbers
    assert 50e6 < values["host_peak_bytes"] < values["host_limit_bytes"]


def test_what_there_was_no_time_for_is_named():
    finding = Finding("padding", "A fact.", "What to do.")
    report = Report("val_loss 1", [finding], skipped=["sample weights"])
    assert str(report).splitlines() == [
        "kt.doctor: val_loss 1.",
        "- A fact. What to do.",
        "- Not measured, for want of time: sample weights.",
    ]


@pytest.mark.parametrize(
    ("a", "b", "texts"),
    [
        (1.27781, 1.30847, ("1.278", "1.308")),
        (1.00002, 1.00001, ("1.00002", "1.00001")),
        (2.0, 2.0, ("2", "2")),
    ],
)
def test_two_numbers_show_that_they_differ(a, b, texts):
    assert pair(a, b) == texts


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("model", numbers(8)), TypeError, "`model` must be a keras.Model, got str"),
        ((keras.Sequential(), numbers(8)), ValueError, "`model` must be compiled"),
        ((regression(), numbers(0)), ValueError, "`train` must have at least one example"),
        ((regression(), iter([numbers(8)])), ValueError, "`train` must be readable more than once"),
        ((regression(), numbers(8), []), ValueError, "`validation` must have at least one"),
        ((regression(), 5), TypeError, "`train` must be arrays"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kt.doctor(*arguments)
