"""Situations: metrics, with and without the user's weights."""

import keras
import numpy as np

from tests.exact import arithmetic as np64
from tests.exact.situation import compiled, dense, features, situation, weights


def share_within(y_true, y_pred):
    """A metric function with one number per example."""
    return keras.ops.cast(keras.ops.abs(y_true - y_pred)[..., 0] < 0.4, "float32")


class LargestError(keras.metrics.Metric):
    """A metric that is no mean and ignores the weights it is given."""

    def __init__(self, name="largest_error", **settings):
        super().__init__(name=name, **settings)
        self.largest = self.add_variable((), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, error))

    def result(self):
        return keras.ops.convert_to_tensor(self.largest)


class SumOfProducts(keras.metrics.Metric):
    """A sum over examples and the rows it saw, with no `sample_weight` in its signature."""

    def __init__(self, name="products", **settings):
        super().__init__(name=name, **settings)
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.seen = self.add_variable((), initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, **ignored):
        self.total.assign_add(keras.ops.sum(y_true * y_pred))
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))

    def result(self):
        return {name: keras.ops.convert_to_tensor(variable) for name, variable in self.held()}

    def held(self):
        """The two numbers by the names they have in the result."""
        return ("products", self.total), ("rows", self.seen)


def binary(rng):
    """Labels 0 and 1 that follow the inputs loosely, weights `[n]`."""
    x = features(rng)
    y = (x[:, :1] + rng.normal(size=(1001, 1)) > 0).astype("float32")
    return x, y, weights(rng, 1001)


def classifier(jit_compile, **settings):
    """Returns a compiled binary classifier."""
    layers = [keras.Input((4,)), dense(3, 4, activation="tanh"), dense(1, 5, activation="sigmoid")]
    return compiled(keras.Sequential(layers), jit_compile, **settings)


def right_unweighted(y, p):
    """What `metrics` gives, which never sees the weights."""
    error = np.abs(np64.exact(y) - np64.exact(p))
    return {
        "accuracy": np.mean((p > 0.5) == (y > 0.5)),
        "mae": np.mean(error),
        "auc": np64.auc(y, p),
        "largest_error": error.max(),
        "products": np.sum(np64.exact(y) * np64.exact(p)),
        "rows": len(y),
        "share_within": np.mean(error < 0.4),
    }


def every_metric():
    """The list for `compile(metrics=...)`."""
    auc = keras.metrics.AUC(name="auc")
    return ["accuracy", "mae", auc, LargestError(), SumOfProducts(), share_within]


def right_both(r):
    """`metrics` never see the weights, `weighted_metrics` and the loss do."""
    y, p, w = np64.exact(r.y), np64.exact(r.predictions), np64.exact(r.weight)
    hit = w[:, None] * (p > 0.5) * y
    return {
        "loss": np64.loss(np64.binary_crossentropy(y, p), w),
        **right_unweighted(r.y, r.predictions),
        "w_auc": np64.auc(y, p, w),
        "w_rmse": np.sqrt(np64.mean(np64.squared(y, p), w)),
        "w_recall": hit.sum() / (w[:, None] * y).sum() if (w[:, None] * y).any() else 0.0,
        "w_accuracy": np64.mean((p > 0.5)[:, 0] == (y > 0.5)[:, 0], w),
        "share_within_w": np64.mean((np.abs(y - p) < 0.4)[:, 0], w),
    }


def share_within_w(y_true, y_pred):
    """The same function under another name, for the weighted ones."""
    return share_within(y_true, y_pred)


@situation("metrics and weighted_metrics", binary, right=right_both)
def build_weighted_metrics(jit_compile, batch_size):
    weighted_ones = [
        keras.metrics.AUC(name="w_auc"),
        keras.metrics.RootMeanSquaredError(name="w_rmse"),
        keras.metrics.Recall(name="w_recall"),
        keras.metrics.BinaryAccuracy(name="w_accuracy"),
        share_within_w,
    ]
    return classifier(
        jit_compile,
        loss="binary_crossentropy",
        metrics=every_metric(),
        weighted_metrics=weighted_ones,
    )


def three_classes(rng):
    """Three classes, once one-hot and once as integers, each with weights `[n]`."""
    x = features(rng)
    label = np.argmax(x[:, :3] + rng.normal(size=(1001, 3)), axis=-1).astype("int32")
    w = {"hot": weights(rng, 1001), "label": weights(rng, 1001)}
    return x, {"hot": np.eye(3, dtype="float32")[label], "label": label}, w


def right_classes(r):
    """Cross entropy, accuracy, and F1 with and without weights."""
    label, hot, p = r.y["label"], r.y["hot"], r.predictions
    hot_loss = np64.loss(np64.crossentropy(label, p["hot"]), r.weight["hot"])
    label_loss = np64.loss(np64.crossentropy(label, p["label"]), r.weight["label"])
    return {
        "loss": hot_loss + label_loss,
        "hot_loss": hot_loss,
        "label_loss": label_loss,
        "hot_acc": np.mean(np.argmax(p["hot"], -1) == label),
        "hot_f1": np64.f1(hot, p["hot"]),
        "hot_w_f1": np64.f1(hot, p["hot"], r.weight["hot"]),
        "label_accuracy": np.mean(np.argmax(p["label"], -1) == label),
    }


@situation("classes, F1Score", three_classes, right=right_classes)
def build_classes(jit_compile, batch_size):
    inputs = keras.Input((4,))
    outputs = {
        "hot": dense(3, 6, activation="softmax", name="hot")(inputs),
        "label": dense(3, 7, activation="softmax", name="label")(inputs),
    }
    return compiled(
        keras.Model(inputs, outputs),
        jit_compile,
        loss={"hot": "categorical_crossentropy", "label": "sparse_categorical_crossentropy"},
        metrics={
            "hot": ["acc", keras.metrics.F1Score(average="macro", name="f1")],
            "label": ["accuracy"],
        },
        weighted_metrics={"hot": [keras.metrics.F1Score(average="macro", name="w_f1")]},
    )
