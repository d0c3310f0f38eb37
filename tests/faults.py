"""Small real models, each with one fault planted in it, and what should be named.

Where a backend behaves in another way (an error instead of a NaN, for example), the entry says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32")
LABELS = np.arange(24) % 3
Y = X[:, :1] - X[:, 1:2]


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        make: Returns `(model, x, y)` or `(model, x, y, sample_weight)`.
        producer: Name to be given, or several where two look alike.
        cause: Words to be found in the cause, or several where two look alike.
        stagnant: Whether the loss stays finite and does not move.
        absent: Backends on which it shows in no value, with the reason.
    """

    make: Callable[[], tuple[Any, ...]]
    producer: str | tuple[str, ...]
    cause: str | tuple[str, ...]
    stagnant: bool = False
    absent: dict[str, str] = field(default_factory=dict)


FAULTS: dict[str, Fault] = {}


def fault(
    producer: str | tuple[str, ...], cause: str | tuple[str, ...], **options: Any
) -> Callable[[Any], Any]:
    """Enters a function that makes a model into the table."""

    def enter(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        name = make.__name__
        FAULTS[name] = Fault(make, producer, cause, **options)
        return make

    return enter


class Log(layers.Layer):
    def call(self, x):
        return ops.log(x)


class Share(layers.Layer):
    def call(self, x):
        return x / ops.sum(x, axis=-1, keepdims=True)


class Root(layers.Layer):
    def call(self, x):
        return ops.sqrt(x)


class Magnitude(layers.Layer):
    def call(self, x):
        return ops.sqrt(x * x)


class Exp(layers.Layer):
    def call(self, x):
        return ops.exp(x)


class Standardize(layers.Layer):
    def __init__(self, axis, **options):
        super().__init__(**options)
        self.axis = axis

    def call(self, x):
        mean = ops.mean(x, axis=self.axis, keepdims=True)
        return (x - mean) / ops.std(x, axis=self.axis, keepdims=True)


class MaskedMean(layers.Layer):
    supports_masking = True

    def call(self, x, mask=None):
        weights = ops.cast(mask, x.dtype)[..., None]
        return ops.sum(x * weights, axis=1) / ops.sum(weights, axis=1)

    def compute_mask(self, x, mask=None):
        return None


class Softmax(layers.Layer):
    def call(self, x):
        e = ops.exp(x)
        return e / ops.sum(e, axis=-1, keepdims=True)


class Adding(layers.Layer):
    def call(self, x):
        self.add_loss(ops.log(ops.sum(x) * 0.0))
        return x


def sequential(*inner, loss="mse", optimizer="sgd", shape=(4,), units=1, **options):
    model = keras.Sequential([keras.Input(shape), *inner, layers.Dense(units, name="out")])
    model.compile(optimizer, loss, **options)
    return model


def classifier(*inner, loss="sparse_categorical_crossentropy", last="softmax", **options):
    model = keras.Sequential(
        [keras.Input((4,)), *inner, layers.Dense(3, last, name="out")],
    )
    model.compile(options.pop("optimizer", "sgd"), loss, **options)
    return model


def positive(x=X):
    x = np.abs(x)
    x[5] = 0.0
    return x


@fault("log", "logarithm of zero")
def log_of_zero():
    return sequential(Log(name="log")), positive(), Y


@fault("log", "logarithm of a negative number")
def log_of_a_negative_number():
    return sequential(layers.Dense(4, name="in"), Log(name="log"), layers.Activation("tanh")), X, Y


@fault("share", "division by zero")
def division_by_zero():
    return sequential(Share(name="share")), positive(), Y


@fault("root", "square root at zero")
def square_root_at_zero_in_the_gradient():
    linear = layers.Dense(4, use_bias=False, name="in")
    return sequential(linear, Magnitude(name="root")), positive(), Y


@fault("root", "square root of a negative number")
def square_root_of_a_negative_number():
    return sequential(Root(name="root")), X, Y


@fault(("loss mse", "optimizer", "in", "out"), "the training diverged")
def exploding_learning_rate():
    model = sequential(layers.Dense(8, name="in"), optimizer=keras.optimizers.SGD(1e4))
    return model, X, Y


@fault("half", "overflow in float16")
def overflow_in_float16():
    half = layers.Dense(
        4, dtype="mixed_float16", name="half", kernel_initializer=keras.initializers.Constant(300)
    )
    return sequential(half), 100 * np.abs(X), Y


@fault("exp", "overflow of exp")
def overflow_of_exp():
    x = X.copy()
    x[3, 1] = 200.0
    return sequential(Exp(name="exp")), x, Y


@fault("softmax", ("overflow of exp", "division"))
def unstable_softmax():
    return sequential(Softmax(name="softmax")), 100 * X, Y


@fault("input", "NaN in the input")
def nan_in_one_input_cell():
    x = X.copy()
    x[17, 2] = np.nan
    return sequential(layers.Dense(4, "tanh")), x, Y


@fault("input", "Inf in the input")
def infinite_input():
    x = X.copy()
    x[1, 0] = np.inf
    return sequential(layers.Dense(4, "tanh")), x, Y


@fault("target", "Inf in the target")
def infinite_target():
    y = Y.copy()
    y[3] = np.inf
    return sequential(layers.Dense(4, "tanh")), X, y


@fault("sample weight", "NaN in the sample weight")
def nan_in_a_sample_weight():
    weights = np.ones(24, "float32")
    weights[9] = np.nan
    return sequential(layers.Dense(4, "tanh")), X, Y, weights


@fault(
    "loss sparse_categorical_crossentropy",
    "a label out of range",
    absent={
        "tensorflow": "an error of the operation ends the step on a CPU",
        "torch": "an error of the operation ends the step",
        "jax": "one_hot gives zeros, so that the loss is finite",
    },
)
def label_out_of_range():
    labels = LABELS.copy()
    labels[4] = 7
    return classifier(layers.Dense(4, "tanh")), X, labels


@fault("mean", "every step masked")
def all_masked_sequence():
    x = np.ones((24, 5, 4), "float32")
    x[6] = 0.0
    return sequential(layers.Masking(0.0), MaskedMean(name="mean"), shape=(5, 4)), x, Y


@fault("norm", "one example")
def batch_of_one():
    return sequential(Standardize(0, name="norm"), layers.Activation("tanh")), X[:1], Y[:1]


@fault("norm", "variance of zero, of a row")
def zero_variance():
    x = X.copy()
    x[2] = 3.0
    return sequential(Standardize(-1, name="norm"), layers.Activation("tanh")), x, Y


@fault("norm", "variance of zero, of a column")
def constant_column():
    x = X.copy()
    x[:, 2] = 1.0
    return sequential(Standardize(0, name="norm"), layers.Activation("tanh")), x, Y


@fault("in", "in the weights before this step")
def weights_from_a_bad_checkpoint():
    model = sequential(layers.Dense(4, "tanh", name="in"))
    weights = model.get_weights()
    weights[0][1, 2] = np.nan
    model.set_weights(weights)
    return model, X, Y


@fault("loss mse", "loss weight is nan")
def loss_weight_of_nan():
    return sequential(layers.Dense(4, "tanh"), loss_weights=float("nan")), X, Y


def odd_metric(y_true, y_pred):
    return ops.log(ops.mean(y_pred) * 0.0 - 1.0)


@fault("metric odd_metric", "the metric's own arithmetic")
def nan_in_a_metric_only():
    return sequential(layers.Dense(4, "tanh"), metrics=[odd_metric]), X, Y


def log_loss(y_true, y_pred):
    return -ops.mean(y_true * ops.log(y_pred), axis=-1)


@fault("loss log_loss", "logarithm of zero")
def log_of_zero_in_the_loss():
    return classifier(layers.Dense(4, "tanh"), loss=log_loss, last="relu"), X, np.eye(3)[LABELS]


def relative_error(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred) / y_true, axis=-1)


@fault("loss relative_error", "division by zero")
def division_by_zero_in_the_loss():
    y = Y.copy()
    y[8] = 0.0
    return sequential(layers.Dense(4, "tanh"), loss=relative_error), X, y


def distance(y_true, y_pred):
    return ops.sqrt(ops.sum(ops.square(y_true - y_pred), axis=-1))


@fault("loss distance", "square root at zero")
def square_root_in_the_loss_s_gradient():
    model = sequential(layers.Dense(4, "tanh"), loss=distance)
    y = Y.copy()
    model.layers[-1].kernel.assign(np.zeros((4, 1)))
    y[2] = 0.0
    return model, X, y


@fault("loss poisson", "logarithm of zero or less")
def poisson_of_negative_outputs():
    return sequential(layers.Dense(4, "tanh"), loss="poisson"), X, np.abs(Y)


@fault("optimizer", "the learning rate is nan")
def learning_rate_of_nan():
    return sequential(layers.Dense(4), optimizer=keras.optimizers.SGD(float("nan"))), X, Y


@fault("loss", "a loss that a layer or a regulariser adds")
def added_loss_not_finite():
    return sequential(layers.Dense(4, "tanh"), Adding()), X, Y


@fault("log", "logarithm of zero")
def operation_in_a_functional_model():
    inputs = keras.Input((4,))
    outputs = layers.Dense(1)(ops.log(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model, positive(), Y


@fault("shared#2", "overflow of exp")
def second_call_of_a_shared_layer():
    inputs = keras.Input((4,))
    shared = Exp(name="shared")
    outputs = layers.Dense(1)(shared(100 + shared(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model, X, Y


@fault("deep", "division by zero")
def inside_a_nested_model():
    inner = keras.Sequential([keras.Input((4,)), Share(name="deep")], name="inner")
    return sequential(inner, layers.Activation("tanh")), positive(), Y


# The loss stays finite and does not move.


@fault("hidden", "dead ReLUs", stagnant=True)
def dead_relus():
    bias = keras.initializers.Constant(-100.0)
    return sequential(layers.Dense(8, "relu", bias_initializer=bias, name="hidden")), X, Y


@fault("hidden", "sigmoid saturated", stagnant=True)
def sigmoid_saturation():
    wide = keras.initializers.RandomNormal(stddev=500.0, seed=1)
    hidden = layers.Dense(8, "sigmoid", kernel_initializer=wide, name="hidden")
    return sequential(hidden, optimizer=keras.optimizers.SGD(1e-5)), X, Y


@fault(("hidden", "out"), "initialised to a constant", stagnant=True)
def zero_initialisation():
    zeros = {"kernel_initializer": "zeros"}
    hidden, out = layers.Dense(8, "tanh", name="hidden", **zeros), layers.Dense(3, **zeros)
    model = keras.Sequential([keras.Input((4,)), hidden, out])
    model.compile("sgd", "mse")
    return model, X, np.repeat(Y, 3, axis=1)


@fault(("hidden", "out"), "every layer is frozen", stagnant=True)
def frozen_layers():
    model = sequential(layers.Dense(8, "tanh", name="hidden"))
    for layer in model.layers:
        layer.trainable = False
    model.compile("sgd", "mse")
    return model, X, Y


@fault("optimizer", "the learning rate is 0", stagnant=True)
def learning_rate_of_zero():
    return sequential(layers.Dense(8), optimizer=keras.optimizers.SGD(0.0)), X, Y


@fault("optimizer", "the learning rate is too small", stagnant=True)
def learning_rate_too_small():
    return sequential(layers.Dense(8), optimizer=keras.optimizers.SGD(1e-9)), X, Y


@fault("loss sparse_categorical_crossentropy", "logits given to a loss", stagnant=True)
def logits_without_from_logits():
    model = classifier(last=None, optimizer=keras.optimizers.SGD(1e-6))
    return model, X, LABELS


@fault(
    "loss sparse_categorical_crossentropy",
    "probabilities given to a loss",
    stagnant=True,
)
def probabilities_with_from_logits():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return classifier(loss=loss, optimizer=keras.optimizers.SGD(1e-6)), X, LABELS


@fault("target", "constant targets", stagnant=True)
def constant_targets():
    model = sequential(layers.Dense(8), optimizer=keras.optimizers.SGD(1e-6))
    return model, X, np.full_like(Y, 2.0)


@fault("input", "constant inputs", stagnant=True)
def constant_inputs():
    model = sequential(layers.Dense(8), optimizer=keras.optimizers.SGD(1e-6))
    return model, np.ones_like(X), Y


@fault("input", "unscaled inputs", stagnant=True)
def unscaled_inputs():
    model = sequential(layers.Dense(8, "tanh"), optimizer=keras.optimizers.SGD(1e-6))
    return model, 1e4 + 1e3 * X, Y


@fault(("dense", "deep"), "the gradient vanishes", stagnant=True)
def vanishing_gradient():
    stack = [layers.Dense(8, "sigmoid") for _ in range(10)]
    return sequential(*stack, optimizer=keras.optimizers.SGD(1e-5)), X, Y


def growing(factor):
    rnn = layers.SimpleRNN(
        4,
        activation="linear",
        recurrent_initializer=keras.initializers.Identity(factor),
        name="rnn",
    )
    x = np.repeat(X[:, None], 30, axis=1)
    adam = keras.optimizers.Adam(1e-7)
    return sequential(rnn, shape=(30, 4), optimizer=adam), x, Y


@fault(("rnn", "out", "simple_rnn_cell"), "the gradient explodes", stagnant=True)
def exploding_gradient_in_an_rnn():
    return growing(1.7)


@fault(("optimizer", "simple_rnn_cell"), "the gradient explodes")
def gradient_whose_square_overflows_in_adam():
    return growing(3.0)


@fault(
    "loss binary_crossentropy",
    "a label out of range",
    stagnant=True,
    absent={"torch": "an error of the operation ends the step"},
)
def binary_labels_of_minus_one():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, "sigmoid", name="out")])
    model.compile(keras.optimizers.SGD(1e-6), "binary_crossentropy")
    return model, X, np.sign(Y)
