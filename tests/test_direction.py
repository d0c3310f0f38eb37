"""Whether lower or higher is better: every metric and loss of Keras, and nothing guessed."""

import inspect

import keras
import pytest

from keras_tricks._direction import direction_of, direction_of_metric

# What the library's documentation says about each, class by class.
_HIGH = """
AUC Accuracy BinaryAccuracy BinaryIoU CategoricalAccuracy ConcordanceCorrelation CosineSimilarity
F1Score FBetaScore IoU MeanIoU OneHotIoU OneHotMeanIoU PearsonCorrelation Precision
PrecisionAtRecall R2Score Recall RecallAtPrecision SensitivityAtSpecificity
SparseCategoricalAccuracy SparseTopKCategoricalAccuracy SpecificityAtSensitivity
TopKCategoricalAccuracy TrueNegatives TruePositives
"""
_LOW = """
BinaryCrossentropy CategoricalCrossentropy CategoricalHinge FalseNegatives FalsePositives Hinge
KLDivergence LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
MeanSquaredLogarithmicError Poisson RootMeanSquaredError SparseCategoricalCrossentropy SquaredHinge
"""
BETTER_HIGH, BETTER_LOW = _HIGH.split(), _LOW.split()
NEITHER = ["Mean", "MeanMetricWrapper", "Metric", "Sum"]

ARGUMENTS = {
    "IoU": {"num_classes": 2, "target_class_ids": [0]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
    "OneHotMeanIoU": {"num_classes": 2},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
}


def classes(module, base):
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, base)
    )


def functions(module):
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and name not in ("get", "serialize", "deserialize")
    )


def test_the_lists_above_hold_every_metric_of_keras():
    assert classes(keras.metrics, keras.metrics.Metric) == sorted(
        [*BETTER_HIGH, *BETTER_LOW, *NEITHER]
    )


@pytest.mark.parametrize("name", [*BETTER_HIGH, *BETTER_LOW])
def test_a_metric_is_known_by_its_class_and_by_the_names_of_its_instances(name):
    metric = getattr(keras.metrics, name)
    expected = "max" if name in BETTER_HIGH else "min"
    first, second = (metric(**ARGUMENTS.get(name, {})).name for _ in range(2))
    found = [direction_of_metric(text) for text in (name, first, second, f"{first}_12")]
    assert found == [expected] * 4


@pytest.mark.parametrize("name", NEITHER)
def test_a_mean_or_a_sum_has_no_direction(name):
    assert direction_of_metric(name) is None


@pytest.mark.parametrize("name", classes(keras.losses, keras.losses.Loss))
def test_every_loss_is_minimised(name):
    # The similarity as a metric is the negative of the loss of the same name: see `known`.
    expected = "max" if name == "CosineSimilarity" else "min"
    assert direction_of_metric(name) == expected


@pytest.mark.parametrize("name", [*functions(keras.losses), *functions(keras.metrics)])
def test_every_function_of_keras_is_known(name):
    assert direction_of_metric(name) is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_loss", "min"),
        ("loss", "min"),
        ("val_digit_loss", "min"),
        ("val_reconstruction_loss", "min"),
        ("val_acc", "max"),
        ("val_AUC", "max"),
        ("val_MSE", "min"),
        ("val_auc_1", "max"),
        ("val_digit_mae", "min"),
        ("val_digit_auc_1", "max"),
        ("val_digit_weighted_accuracy", "max"),
        ("val_digit_left_accuracy", "max"),
        ("val_wrong_accuracy", None),
        ("val_speed", None),
        ("val_acuracy", None),
        ("val_", None),
    ],
)
def test_names_in_the_logs(name, expected):
    assert direction_of(name, outputs=["digit", "digit_left"]) == expected


def test_another_prefix():
    assert direction_of("test_auc", prefix="test_") == "max"
    assert direction_of("test_auc") is None


def test_what_is_known_of_the_model_goes_before_the_name():
    known = {"cosine_similarity": "min", "accuracy": None, "mine": "max"}
    assert direction_of("val_cosine_similarity", known=known) == "min"
    assert direction_of("val_accuracy", known=known) == "max"
    assert direction_of("val_mine", known=known) == "max"
