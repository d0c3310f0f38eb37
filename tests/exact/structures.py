"""Situations: several inputs and outputs, regularisers, sequence masks, states."""

import keras
import numpy as np

from tests.exact import arithmetic as np64
from tests.exact.situation import ROWS, compiled, dense, features, situation, targets, weights

TIME = 5


@situation(
    "L2 regularisers",
    lambda rng: (features(rng), targets(rng), None),
    right=lambda r: {
        "loss": np64.loss(np64.squared(r.y, r.predictions)) + np64.penalty(r.model, 0.05)
    },
)
def build_regularised(jit_compile, batch_size):
    l2 = [dense(units, seed, kernel_regularizer=keras.regularizers.L2(0.05))
          for units, seed in ((3, 8), (1, 9))]  # fmt: skip
    return compiled(keras.Sequential([keras.Input((4,)), *l2]), jit_compile, loss="mse")


# Several inputs and outputs ---------------------------------------------------------------------


def two_inputs():
    """Returns two inputs and a layer on both."""
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    return [left, right], keras.layers.Concatenate()([left, right])


def two_outputs(as_dict, jit_compile, **settings):
    """Returns a compiled model with the outputs `a` `[n, 1]` and `b` `[n, 2]`."""
    inputs = keras.Input((4,))
    return with_outputs(inputs, inputs, as_dict, jit_compile, **settings)


def with_outputs(inputs, tensor, as_dict, jit_compile, **settings):
    """Returns a compiled model that makes both outputs of a tensor."""
    hidden = dense(3, 13, activation="tanh")(tensor)
    outputs = {"a": dense(1, 14, name="a")(hidden), "b": dense(2, 15, name="b")(hidden)}
    model = keras.Model(inputs, outputs if as_dict else list(outputs.values()))
    return compiled(model, jit_compile, **settings)


def right_outputs(r):
    """Two losses, weighted 1 and 0.3, each by its own reduction, and a metric of each."""
    a, b = (r.predictions[key] for key in "ab")
    weight = r.weight
    a_loss = np64.loss(np64.squared(r.y["a"], a), weight["a"])
    b_loss = np64.loss(np64.absolute(r.y["b"], b), weight["b"], reduction="mean_with_sample_weight")
    return {
        "loss": a_loss + 0.3 * b_loss,
        "a_loss": a_loss,
        "b_loss": b_loss,
        "a_mae": np.mean(np64.absolute(r.y["a"], a)),
        "b_mse": np64.mean(np64.squared(r.y["b"], b), weight["b"]),
    }


DICT_LOSSES = {
    "loss": {"a": "mse", "b": keras.losses.MeanAbsoluteError(reduction="mean_with_sample_weight")},
    "loss_weights": {"a": 1.0, "b": 0.3},
    "metrics": {"a": ["mae"]},
    "weighted_metrics": {"b": ["mse"]},
}


@situation(
    "inputs and outputs by name, loss weights",
    lambda rng: (
        {"right": features(rng, 2), "left": features(rng)},
        {"a": targets(rng), "b": targets(rng, 2)},
        {"a": weights(rng, ROWS), "b": weights(rng, ROWS, 1)},
    ),
    right=right_outputs,
)
def build_named(jit_compile, batch_size):
    inputs, both = two_inputs()
    by_name = {tensor.name: tensor for tensor in inputs}
    return with_outputs(by_name, both, True, jit_compile, **DICT_LOSSES)


def right_one_loss(r):
    """Only `a` has a loss; a metric of `b` where its target is given."""
    target, (a, b) = r.y, r.predictions
    y_a = target[0] if isinstance(target, list) else target
    result = {"loss": np64.loss(np64.squared(y_a, a)), "a_mae": np.mean(np64.absolute(y_a, a))}
    if isinstance(target, list) and target[1] is not None:
        result["b_mae"] = np.mean(np64.absolute(target[1], b))
    return result


@situation(
    "several inputs, an output without a loss, its target given",
    lambda rng: ([features(rng), features(rng, 2)], [targets(rng), targets(rng, 2)], None),
    right=right_one_loss,
)
def build_target_given(jit_compile, batch_size):
    metrics = {"a": ["mae"], "b": ["mae"]}
    return with_outputs(
        *two_inputs(), False, jit_compile, loss={"a": "mse", "b": None}, metrics=metrics
    )


@situation(
    "an output without a loss, its target None",
    lambda rng: (features(rng), [targets(rng), None], None),
    right=right_one_loss,
    without={"DataLoader"},  # torch's default `collate_fn` knows no `None`
)
def build_target_none(jit_compile, batch_size):
    return two_outputs(False, jit_compile, loss={"a": "mse", "b": None}, metrics={"a": ["mae"]})


@situation(
    "an output without a loss, left out of a list",
    lambda rng: (features(rng), targets(rng), None),
    right=right_one_loss,
)
def build_target_left_out(jit_compile, batch_size):
    return two_outputs(False, jit_compile, loss=["mse", None], metrics={"a": ["mae"]})


@situation(
    "an output without a loss, left out by name",
    lambda rng: (features(rng), {"a": targets(rng)}, None),
    right=lambda r: {"loss": np64.loss(np64.squared(r.y["a"], r.predictions["a"]))},
)
def build_target_left_out_by_name(jit_compile, batch_size):
    return two_outputs(True, jit_compile, loss={"a": "mse", "b": None})


# Masks ------------------------------------------------------------------------------------------


def sequences(rng):
    """Token ids `[n, time]` of lengths 1 to 5, padded with 0."""
    length = rng.integers(1, TIME + 1, size=(ROWS, 1))
    token = rng.integers(1, 9, size=(ROWS, TIME))
    return np.where(np.arange(TIME) < length, token, 0).astype("int32")


def embedded():
    """Returns the input of token ids and their embedding, which carries the mask."""
    inputs = keras.Input((TIME,), dtype="int32")
    table = keras.initializers.RandomNormal(seed=16)
    layer = keras.layers.Embedding(9, 3, mask_zero=True, embeddings_initializer=table)
    return inputs, layer(inputs)


def right_mask(r):
    """Valid time steps only, in the loss and in both kinds of metrics."""
    squares, absolutes = np64.squared(r.y, r.predictions), np64.absolute(r.y, r.predictions)
    return {
        "loss": np64.loss(squares, mask=r.x > 0),
        "mae": np64.mean(absolutes, mask=r.x > 0),
        "mse": np64.mean(squares, mask=r.x > 0),
    }


@situation(
    "mask",
    lambda rng: (sequences(rng), targets(rng, TIME)[..., None], None),
    right=right_mask,
)
def build_mask(jit_compile, batch_size):
    inputs, tensor = embedded()
    model = keras.Model(inputs, dense(1, 17)(tensor))
    return compiled(model, jit_compile, loss="mse", metrics=["mae"], weighted_metrics=["mse"])


# By output: the reduction of its loss.
MASKED = {"average": "mean", "total": "sum", "by_weight": "mean_with_sample_weight"}


def right_masked(r):
    """Each output's loss by its own reduction, over valid time steps only."""
    valid, losses = r.x > 0, {}
    for name, reduction in MASKED.items():
        losses[f"{name}_loss"] = np64.loss(
            np64.squared(r.y[name], r.predictions[name]),
            r.weight[name],
            mask=valid,
            reduction=reduction,
            batch_size=r.batch_size,
        )
    squares = np64.squared(r.y["average"], r.predictions["average"])
    absolutes = np64.absolute(r.y["total"], r.predictions["total"])
    return {
        **losses,
        "loss": sum(losses.values()),
        "average_w_mse": np64.mean(squares, r.weight["average"], mask=valid),
        "total_mae": np64.mean(absolutes, mask=valid),
    }


@situation(
    "mask, reductions, weights [n,time]",
    lambda rng: (
        sequences(rng),
        {name: targets(rng, TIME)[..., None] for name in MASKED},
        {name: weights(rng, ROWS, TIME) for name in MASKED},
    ),
    right=right_masked,
)
def build_masked(jit_compile, batch_size):
    inputs, tensor = embedded()
    outputs = {name: dense(1, len(name), name=name)(tensor) for name in MASKED}
    mse = keras.losses.MeanSquaredError
    return compiled(
        keras.Model(inputs, outputs),
        jit_compile,
        loss={name: mse(reduction=reduction) for name, reduction in MASKED.items()},
        metrics={"total": ["mae"]},
        weighted_metrics={"average": [keras.metrics.MeanSquaredError(name="w_mse")]},
    )


@situation(
    "mask into an RNN",
    lambda rng: (sequences(rng), targets(rng), weights(rng, ROWS)),
    right=lambda r: {"loss": np64.loss(np64.squared(r.y, r.predictions), r.weight)},
)
def build_rnn(jit_compile, batch_size):
    inputs, tensor = embedded()
    model = keras.Model(inputs, dense(1, 21)(simple_rnn(19)(tensor)))
    return compiled(model, jit_compile, loss="mse")


def simple_rnn(seed, **settings):
    """Returns a recurrent layer of two units with the same weights each time."""
    return keras.layers.SimpleRNN(
        2,
        kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
        recurrent_initializer=keras.initializers.GlorotUniform(seed=seed + 1),
        **settings,
    )


# States -----------------------------------------------------------------------------------------


def right_stateful(r):
    """A simple RNN whose row i of a batch goes on from row i of the batch before, from zero."""
    kernel, recurrent, bias, out, out_bias = (np64.exact(w) for w in r.model.get_weights())
    state = np.zeros((r.batch_size, kernel.shape[1]))
    predictions = []
    for rows in np64.batches(r.rows, r.batch_size):
        part = np64.exact(r.x[rows])
        now = state[: len(part)]
        for step in range(part.shape[1]):
            now = np.tanh(part[:, step] @ kernel + now @ recurrent + bias)
        state[: len(part)] = now
        predictions.append(now @ out + out_bias)
    prediction = np.concatenate(predictions)
    return {
        "loss": np64.loss(np64.squared(r.y, prediction), r.weight),
        "mae": np.mean(np64.absolute(r.y, prediction)),
    }


@situation(
    "stateful RNN",
    lambda rng: (features(rng, 6).reshape(ROWS, 3, 2), targets(rng), weights(rng, ROWS)),
    right=right_stateful,
    fixed=True,
)
def build_stateful(jit_compile, batch_size):
    net = keras.Sequential(
        [keras.Input(batch_shape=(batch_size, 3, 2)), simple_rnn(22, stateful=True), dense(1, 24)]
    )
    return compiled(net, jit_compile, loss="mse", metrics=["mae"])
