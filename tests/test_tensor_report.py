"""Statistics, the table, and comparing: plain values in, plain values out."""

import json

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._backend.tensor_rows import GRADIENT, OUTPUT, WEIGHT, relation, statistics
from keras_tricks._tensor_report import TensorReport

GENERATOR = np.random.default_rng(0)
ARRAYS = {
    "float32": GENERATOR.normal(size=(7, 5)).astype("float32"),
    "float16": GENERATOR.normal(size=(300, 400)).astype("float16") * 100,
    "integers": GENERATOR.integers(-3, 3, (6, 2)),
    "booleans": np.array([True, False, True]),
    "scalar": np.float32(2.5),
    "large": np.array([3e38, -3e38, 3e38], "float32"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_statistics_are_numpy_s(name):
    array, wide = ARRAYS[name], np.asarray(ARRAYS[name], "float64")
    row = statistics("t", OUTPUT, array)
    assert (row.shape, row.dtype) == (np.shape(array), array.dtype.name)
    assert row.mean == pytest.approx(wide.mean(), rel=1e-6, abs=1e-12)
    assert row.std == pytest.approx(wide.std(), rel=1e-6)
    assert (row.min, row.max) == (wide.min(), wide.max())
    assert row.zeros == pytest.approx((wide == 0).mean())
    assert (row.nans, row.infs) == (0, 0)


def test_what_is_not_finite_is_counted_and_left_out():
    array = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, 3.0], "float32")
    row = statistics("t", OUTPUT, array)
    assert (row.nans, row.infs, row.zeros) == (1, 2, 1 / 6)
    assert (row.mean, row.std, row.min, row.max) == (
        pytest.approx(4 / 3),
        pytest.approx(np.std([1, 0, 3])),
        0.0,
        3.0,
    )


def test_a_tensor_without_a_finite_value_has_no_mean():
    row = statistics("t", OUTPUT, np.full((2, 2), np.nan))
    assert np.isnan([row.mean, row.std, row.min, row.max]).all()
    assert row.nans == 4


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [
        ([1.0, 0.0, 2.0], [0.0, -np.inf, 0.7], "zero"),
        ([1.0, -1.0, 2.0], [0.0, np.nan, 0.7], "negative"),
        ([1.0, -1.0, 0.0], [0.0, np.nan, -np.inf], "not positive"),
        ([1.0, 200.0, 2.0], [0.0, np.inf, 0.7], "large"),
        ([1.0, 0.5, 2.0], [0.0, np.nan, 0.7], ""),
        ([[0.0, 0.0], [0.0, 1.0]], [[np.nan, np.nan], [0.0, 1.0]], "row of zeros"),
        ([[3.0, 3.0], [0.0, 1.0]], [[np.nan, np.nan], [0.0, 1.0]], "constant row"),
    ],
)
def test_what_distinguishes_the_inputs_of_bad_outputs(x, y, where):
    assert relation([np.array(x)], np.array(y)).where == where


def deep(count):
    """A report of many layers, the last but two of which gave the first NaN."""
    rows = [statistics("input", "input", np.ones((4, 3)))]
    for number in range(count):
        value = np.nan if number >= count - 3 else 1.0
        rows.append(statistics(f"layer_{number}", OUTPUT, np.full((4, 8), value)))
    rows.append(statistics("loss", "loss", np.float32(np.nan)))
    names = [f"model/layer_{number}/kernel" for number in range(count)]
    rows += [
        statistics(name, kind, np.ones((8, 8))) for kind in (WEIGHT, GRADIENT) for name in names
    ]
    return TensorReport(1, "the loss is NaN", producer=f"layer_{count - 3}", rows=rows)


def test_four_hundred_layers_are_forty_rows_with_the_producer_and_the_count_of_the_rest():
    report = deep(400)
    lines = str(report).splitlines()
    table = lines[lines.index("") + 3 :]
    rows = [line for line in table if not line.endswith("s") and not line.startswith("Left")]
    assert len(rows) == 40
    assert any(line.startswith("  layer_397 ") for line in rows)
    assert table[-1].startswith(f"Left out: {len(report.rows) - 40 - 0}"[:9])
    assert sum(int(part.split()[0]) for part in table[-1][10:].split(";")[0].split(", ")) == (
        len(report.rows) - 40
    )


def test_no_line_is_wider_than_a_hundred_columns():
    lines = str(deep(400)).splitlines()
    assert max(map(len, lines)) == 100


def test_the_report_passes_through_json():
    report = deep(3)
    back = json.loads(json.dumps(report.as_dict()))
    assert back["producer"] == "layer_0"
    assert back["rows"][1]["mean"] is None
    assert back["rows"][0]["shape"] == [4, 3]


def small(scale=1.0):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, name="a"), keras.layers.Dense(2, name="b")]
    )
    weights = model.get_weights()
    weights[2] = weights[2] * scale
    model.set_weights(weights)
    return model


X = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")


def test_the_same_seeds_give_the_same_table(capsys):
    texts = [str(kt.print_tensors(small(), X)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert capsys.readouterr().out == f"{texts[0]}\n" * 2


def test_comparing_shows_where_two_models_part():
    mine, other = kt.print_tensors(small(), X), kt.print_tensors(small(2.0), X)
    found = mine.compare(other)
    assert (found[0].name, found[0].kind) == ("b", "output")
    assert mine.compare(mine) == []


def test_comparing_with_numbers_from_a_paper():
    report = kt.print_tensors(small(), X)
    right = {"a": {"std": report.rows[1].std}, "b": {"std": 9.0}}
    (difference,) = report.compare(right)
    assert (difference.name, difference.other) == ("b", 9.0)
    with pytest.raises(ValueError, match="Its outputs are a, b"):
        report.compare({"c": 1.0})


def test_rows_of_chosen_layers():
    for layers in (["b"], "b|nothing"):
        report = kt.print_tensors(small(), X, layers=layers)
        assert [row.name.split("/")[-1] for row in report.rows] == ["b", "kernel", "bias"]
    with pytest.raises(ValueError, match="Its layers are a, b"):
        kt.print_tensors(small(), X, layers="c")


def test_outputs_are_those_of_an_independent_forward_pass():
    model = small()
    report = kt.print_tensors(model, X)
    kernel, bias, *_ = model.get_weights()
    row = next(row for row in report.rows if row.name == "a")
    assert row.mean == pytest.approx((X @ kernel + bias).mean(), rel=1e-4)
    assert row.std == pytest.approx((X @ kernel + bias).std(), rel=1e-4)


def test_gradients_and_updates_are_those_of_gradient_descent():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    report = kt.print_tensors(model, X, np.zeros((8, 1)))
    gradient = 2 * X.T @ X.sum(axis=1) / 8
    rows = {row.kind: row for row in report.rows}
    assert rows["gradient"].mean == pytest.approx(gradient.mean(), rel=1e-4)
    ratio = 0.1 * np.linalg.norm(gradient) / np.sqrt(3)
    assert rows["update ratio"].mean == pytest.approx(ratio, rel=1e-4)
