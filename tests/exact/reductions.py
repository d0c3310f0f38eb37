"""Situations: how a loss is reduced, with and without the user's weights.

Where a model has one output for each reduction, its result tells their losses apart.
"""

import keras

from tests.exact import arithmetic as np64
from tests.exact.situation import ROWS, compiled, dense, features, situation, targets, weights

STEPS = 3


def absolute_error(y_true, y_pred):
    """A loss function with one number per example."""
    return keras.ops.abs(y_true - y_pred)[..., 0]


# By output: the loss, its reduction for the reference, and the shape of the weights.
REDUCTIONS = {
    "over_batch": ("mse", "sum_over_batch_size", (ROWS,)),
    "mean": (keras.losses.MeanSquaredError(reduction="mean"), "mean", (ROWS, 1)),
    "sum": (keras.losses.MeanSquaredError(reduction="sum"), "sum", (ROWS,)),
    "by_weight": (
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "mean_with_sample_weight",
        (ROWS,),
    ),
    "function": (absolute_error, "sum_over_batch_size", (ROWS,)),
}
OVER_TIME = {name: (*REDUCTIONS[name][:2], (ROWS, STEPS)) for name in ("over_batch", "by_weight")}


def one_output_each(table, jit_compile, shape):
    """Returns a compiled model with an output for each row of the table."""
    inputs = keras.Input(shape)
    outputs = {name: dense(1, len(name), name=name)(inputs) for name in table}
    losses = {name: loss for name, (loss, _, _) in table.items()}
    return compiled(keras.Model(inputs, outputs), jit_compile, loss=losses)


def right_by_output(table):
    """Returns the calculation of each output's loss, and of their sum."""

    def right(r):
        losses = {}
        for name, (loss, reduction, _) in table.items():
            error = np64.absolute if loss is absolute_error else np64.squared
            losses[f"{name}_loss"] = np64.loss(
                error(r.y[name], r.predictions[name]),
                r.weight[name],
                reduction=reduction,
                batch_size=r.batch_size,
            )
        return {**losses, "loss": sum(losses.values())}

    return right


@situation(
    "reductions, weights [n] and [n,1]",
    lambda rng: (
        features(rng),
        {name: targets(rng) for name in REDUCTIONS},
        {name: weights(rng, *shape) for name, (_, _, shape) in REDUCTIONS.items()},
    ),
    right=right_by_output(REDUCTIONS),
)
def build_reductions(jit_compile, batch_size):
    return one_output_each(REDUCTIONS, jit_compile, (4,))


@situation(
    "reductions, weights [n,time]",
    lambda rng: (
        features(rng, 4 * STEPS).reshape(-1, STEPS, 4),
        {name: targets(rng, STEPS)[..., None] for name in OVER_TIME},
        {name: weights(rng, *shape) for name, (_, _, shape) in OVER_TIME.items()},
    ),
    right=right_by_output(OVER_TIME),
)
def build_over_time(jit_compile, batch_size):
    return one_output_each(OVER_TIME, jit_compile, (STEPS, 4))


def register(reduction):
    """Registers a regression with one output, this reduction and weights `[n]`."""

    def right(r):
        values = np64.squared(r.y, r.predictions)
        return {"loss": np64.loss(values, r.weight, reduction=reduction, batch_size=r.batch_size)}

    @situation(
        f"{reduction}, weights [n]",
        lambda rng: (features(rng), targets(rng), weights(rng, ROWS)),
        right=right,
    )
    def build(jit_compile, batch_size):
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        layers = [keras.Input((4,)), dense(3, 1, activation="tanh"), dense(1, 2)]
        return compiled(keras.Sequential(layers), jit_compile, loss=loss)


register("sum")
register("mean_with_sample_weight")
