"""Situations: what depends on a whole batch.

The definition: full batches at one shape, the ragged one at its own size, the values of the
batches weighted by their rows. Each is named in `.notes`, once.
"""

import keras
import numpy as np

from tests.exact import arithmetic as np64
from tests.exact.situation import ROWS, compiled, dense, features, regression, situation, targets


def plain(rng):
    """Examples without weights."""
    return features(rng), targets(rng), None


def per_batch(r, value):
    """Returns `value` of each batch's reading, weighted by rows."""
    return np64.by_rows(lambda rows: value(r.part(rows)), r.rows, r.batch_size)


class SpreadLoss(keras.layers.Layer):
    """Adds the variance over the batch of what passes through it."""

    def call(self, inputs):
        self.add_loss(0.2 * keras.ops.mean(keras.ops.var(inputs, axis=0)))
        return inputs


def right_add_loss(r):
    """Mean squared error, plus the variance and the activity of each batch's inputs."""

    def added(b):
        x = np64.exact(b.x)
        return 0.2 * np.mean(np.var(x, axis=0)) + 0.1 * np.sum(x**2) / b.rows

    return {
        "loss": np64.loss(np64.squared(r.y, r.predictions)) + per_batch(r, added),
        "mae": np.mean(np64.absolute(r.y, r.predictions)),
    }


@situation(
    "add_loss, ActivityRegularization", plain, right=right_add_loss, notes={"spread", "activity"}
)
def build_add_loss(jit_compile, batch_size):
    activity = keras.layers.ActivityRegularization(l2=0.1, name="activity")
    layers = [keras.Input((4,)), SpreadLoss(name="spread"), activity, dense(1, 41)]
    return compiled(keras.Sequential(layers), jit_compile, loss="mse", metrics=["mae"])


# Built-in losses --------------------------------------------------------------------------------


def shares(rng):
    """Targets between 0 and 1, `[n, 3]`."""
    return features(rng), rng.uniform(size=(ROWS, 3)).astype("float32") ** 3, None


def overlap(r, false_positive, false_negative):
    """One minus the Tversky index of a batch."""
    y, p = np64.exact(r.y), np64.exact(r.predictions)
    both = np.sum(y * p)
    # Keras swaps the two names: what it calls false positives are targets not predicted.
    missed, invented = np.sum((1 - p) * y), np.sum(p * (1 - y))
    below = both + false_positive * missed + false_negative * invented + np64.EPSILON
    return 1 - both / below


def segmenter(jit_compile, **settings):
    """Returns a compiled net with three outputs between 0 and 1."""
    net = keras.Sequential([keras.Input((4,)), dense(3, 43, activation="sigmoid")])
    return compiled(net, jit_compile, **settings)


@situation(
    "Dice",
    shares,
    right=lambda r: {"loss": per_batch(r, lambda b: overlap(b, 0.5, 0.5))},
    notes={"dice"},
)
def build_dice(jit_compile, batch_size):
    return segmenter(jit_compile, loss=keras.losses.Dice(name="dice"))


@situation(
    "Tversky",
    shares,
    right=lambda r: {
        "loss": per_batch(r, lambda b: overlap(b, 0.3, 0.9)),
        "mae": np.mean(np64.absolute(r.y, r.predictions)),
    },
    notes={"tversky"},
)
def build_tversky(jit_compile, batch_size):
    loss = keras.losses.Tversky(alpha=0.3, beta=0.9, name="tversky")
    return segmenter(jit_compile, loss=loss, metrics=["mae"])


def circle(r, gamma=4.0, margin=0.4):
    """Circle loss of one batch (Sun et al. 2020): mean over the rows whose loss is not zero."""
    label, p = np.asarray(r.y).ravel(), np64.exact(r.predictions)
    distance = np.maximum(1 - p @ p.T, 0)
    same = label[:, None] == label[None, :]
    other, same = ~same, same & ~np.eye(len(label), dtype=bool)
    near = -gamma * np.maximum(margin + distance, 0) * (margin - distance)
    far = gamma * np.maximum(1 + margin - distance, 0) * (1 - margin - distance)
    with np.errstate(divide="ignore"):  # a row without a partner: log(0)
        exponent = np.log((np.exp(near) * same).sum(1)) + np.log((np.exp(far) * other).sum(1))
    losses = np.logaddexp(0, exponent)
    return losses[losses > 0].sum() / max((losses > 0).sum(), 1)


def labelled(rng):
    """Integer labels of three classes, `[n]`."""
    return features(rng), rng.integers(0, 3, size=ROWS).astype("int32"), None


@situation("Circle", labelled, right=lambda r: {"loss": per_batch(r, circle)}, notes={"circle"})
def build_circle(jit_compile, batch_size):
    layers = [keras.Input((4,)), dense(3, 44), keras.layers.UnitNormalization()]
    loss = keras.losses.Circle(gamma=4.0, margin=0.4, name="circle")
    return compiled(keras.Sequential(layers), jit_compile, loss=loss)


# The user's own functions -----------------------------------------------------------------------


def recall_fn(y_true, y_pred):
    """Recall of a batch, as often written: one number."""
    hit = keras.ops.sum(y_true * keras.ops.round(y_pred))
    return hit / (keras.ops.sum(y_true) + 1e-7)


def recall(r):
    """The same in NumPy."""
    y = np64.exact(r.y)
    return np.sum(y * (r.predictions > 0.5)) / (y.sum() + 1e-7)


def labels_of_three(rng):
    """Targets 0 and 1, `[n, 3]`."""
    return features(rng), (rng.uniform(size=(ROWS, 3)) < 0.4).astype("float32"), None


def mean_error(y_true, y_pred):
    """A loss function that returns one number, a mean over the examples."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


@situation(
    "functions with one number per batch: loss, metric",
    labels_of_three,
    right=lambda r: {
        "loss": np.mean(np64.absolute(r.y, r.predictions)),
        "recall_fn": per_batch(r, recall),
    },
    notes={"recall_fn"},
)
def build_functions(jit_compile, batch_size):
    return segmenter(jit_compile, loss=mean_error, metrics=[recall_fn])


def largest_error(y_true, y_pred):
    """A loss function that returns one number and is no mean."""
    return keras.ops.max(keras.ops.abs(y_true - y_pred))


def largest(r):
    """The same in NumPy."""
    return np.abs(np64.exact(r.y) - np64.exact(r.predictions)).max()


@situation(
    "a loss function that is no mean",
    plain,
    right=lambda r: {"loss": per_batch(r, largest)},
    notes={"largest_error"},
)
def build_largest_loss(jit_compile, batch_size):
    return regression(jit_compile, loss=largest_error)


class WithLargest(keras.Sequential):
    """`compute_loss` adds a maximum over the batch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.3 * keras.ops.max(keras.ops.abs(y_pred))


@situation(
    "compute_loss that is no mean",
    plain,
    right=lambda r: {
        "loss": np64.loss(np64.squared(r.y, r.predictions))
        + per_batch(r, lambda b: 0.3 * np.abs(np64.exact(b.predictions)).max())
    },
    notes={"compute_loss"},
)
def build_compute_loss_largest(jit_compile, batch_size):
    return compiled(WithLargest([keras.Input((4,)), dense(1, 45)]), jit_compile, loss="mse")
