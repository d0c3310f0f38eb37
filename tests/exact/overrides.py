"""Situations: subclassed models, overridden steps, mixed precision, moving averages."""

import functools

import keras
import numpy as np

from tests.exact import arithmetic as np64
from tests.exact.situation import ROWS, compiled, dense, features, situation, targets, weights


def plain(rng):
    """Examples without weights."""
    return features(rng), targets(rng), None


def weighted(rng):
    """Examples with weights `[n]`."""
    return features(rng), targets(rng), weights(rng, ROWS)


class Subclassed(keras.Model):
    """A model without a graph of layers."""

    def __init__(self):
        super().__init__()
        self.hidden = dense(3, 31, activation="tanh")
        self.dropout = keras.layers.Dropout(0.5, seed=1)
        self.out = dense(1, 32)

    def call(self, inputs, training=None):
        return self.out(self.dropout(self.hidden(inputs), training=training))


class WithPenalty(Subclassed):
    """`compute_loss` adds a mean over the examples."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.3 * keras.ops.mean(keras.ops.square(y_pred))


@situation(
    "compute_loss",
    weighted,
    right=lambda r: {
        "loss": np64.loss(np64.squared(r.y, r.predictions), r.weight)
        + 0.3 * np.mean(np64.exact(r.predictions) ** 2),
    },
)
def build_compute_loss(jit_compile, batch_size):
    return compiled(WithPenalty(), jit_compile, loss="mse")


class OwnLoss(Subclassed):
    """`compute_loss` without a compiled loss: a mean over the examples of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.abs(y - y_pred)) + keras.ops.mean(keras.ops.square(x))


@situation(
    "compute_loss without a compiled loss",
    plain,
    right=lambda r: {
        "loss": np.mean(np64.absolute(r.y, r.predictions)) + np.mean(np64.exact(r.x) ** 2)
    },
)
def build_own_loss(jit_compile, batch_size):
    return compiled(OwnLoss(), jit_compile)


class WithMeasures(Subclassed):
    """`compute_metrics` feeds two metrics of the model's own, `Mean` among them."""

    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")
        self.total = keras.metrics.Sum(name="total")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.size.update_state(keras.ops.abs(y_pred), sample_weight)
        self.total.update_state(keras.ops.square(x))
        return super().compute_metrics(x, y, y_pred, sample_weight)


@situation(
    "subclassed model, compute_metrics",
    weighted,
    right=lambda r: {
        "loss": np64.loss(np64.squared(r.y, r.predictions), r.weight),
        "mae": np.mean(np64.absolute(r.y, r.predictions)),
        "size": np64.mean(np.abs(np64.exact(r.predictions))[:, 0], r.weight),
        "total": np.sum(np64.exact(r.x) ** 2),
    },
)
def build_compute_metrics(jit_compile, batch_size):
    return compiled(WithMeasures(), jit_compile, loss="mse", metrics=["mae"])


class WithStep(Subclassed):
    """`test_step` centres the targets of its batch, so that the batch's rows matter."""

    def test_step(self, *state_and_data):
        *state, data = state_and_data  # on JAX a step takes the state before the data
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        centred = y - keras.ops.mean(y, axis=0, keepdims=True)
        return super().test_step(*state, (x, centred, sample_weight))


def right_test_step(r):
    """Keras's own values at this batch size: the batches' losses, weighted by their rows."""

    def centred(b):
        return b.y - np.mean(np64.exact(b.y), axis=0)

    def loss(rows):
        b = r.part(rows)
        return np64.loss(np64.squared(centred(b), b.predictions), b.weight)

    def mae(rows):
        b = r.part(rows)
        return np.mean(np64.absolute(centred(b), b.predictions))

    by_rows = functools.partial(np64.by_rows, rows=r.rows, size=r.batch_size)
    return {"loss": by_rows(loss), "mae": by_rows(mae)}


@situation("test_step", weighted, right=right_test_step, notes={"test_step"})
def build_test_step(jit_compile, batch_size):
    return compiled(WithStep(), jit_compile, loss="mse", metrics=["mae"])


# Mixed precision --------------------------------------------------------------------------------


def mixed(policy, jit_compile, **settings):
    """Returns a compiled net whose layers calculate in half precision, its output in float32."""
    layers = [
        keras.Input((4,)),
        dense(8, 33, activation="tanh", dtype=policy),
        dense(4, 34, activation="relu", dtype=policy),
        dense(1, 35, dtype=policy),
        keras.layers.Activation("linear", dtype="float32"),
    ]
    return compiled(keras.Sequential(layers), jit_compile, **settings)


def register_mixed(policy):
    """Registers a regression under this dtype policy."""

    @situation(
        policy,
        weighted,
        right=lambda r: {
            "loss": np64.loss(np64.squared(r.y, r.predictions), r.weight),
            "mae": np.mean(np64.absolute(r.y, r.predictions)),
        },
        rounds_when_compiled=True,
    )
    def build(jit_compile, batch_size):
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return mixed(policy, jit_compile, loss="mse", metrics=["mae"])
        finally:
            keras.config.set_dtype_policy(before)


register_mixed("mixed_float16")
register_mixed("mixed_bfloat16")


@situation(
    "moving averages of the weights",
    plain,
    right=lambda r: {"loss": np64.loss(np64.squared(r.y, r.predictions))},
)
def build_ema(jit_compile, batch_size):
    net = keras.Sequential([keras.Input((4,)), dense(1, 36)])
    optimizer = keras.optimizers.Adam(use_ema=True, ema_momentum=0.5)
    model = compiled(net, jit_compile, optimizer=optimizer, loss="mse")
    optimizer.build(model.trainable_variables)
    model.set_weights([2 * w + 1 for w in model.get_weights()])  # far from their averages
    return model
