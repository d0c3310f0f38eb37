"""A small model with everything random in it, its data, and its whole state as NumPy arrays."""

import random

import keras
import numpy as np

BACKEND = keras.backend.backend()
ROWS, BATCH_SIZE = 50, 8
STEPS = 7  # of an epoch: six whole batches and one of two examples


def examples(rows=ROWS, seed=0):
    """Images `[rows, 6, 6, 1]` and labels `[rows]` of three classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 6, 6, 1)).astype("float32")
    return x, generator.integers(0, 3, rows)


def noisy_model(**options):
    """Dropout, noise, batch norm, and Adam that clips; not built before its first batch."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.GaussianNoise(0.1),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01, clipnorm=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def regression(learning_rate=0.0, **options):
    """One weight of 1, so that the prediction is `x` as long as nothing is learned."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(learning_rate), **{"loss": "mse", **options})
    return model


def column(values):
    """Values as `[rows, 1]`."""
    return np.asarray(values, "float32").reshape(-1, 1)


def numbers(rows=20):
    """`x` and `y` of the regression: the loss of example i is `(i / 10) ** 2` at a weight of 1."""
    return column(np.arange(rows) / 10), column(np.zeros(rows))


def state_of(model):
    """Weights, seeds, metrics, optimizer and RNN states, as bytes and by name."""
    states = [getattr(layer, "states", None) for layer in model.layers]
    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    variables += [state for state in keras.tree.flatten(states) if state is not None]
    return {
        f"{place} {variable.path}": [as_bytes(part) for part in replicas(variable.value)]
        for place, variable in enumerate(variables)
    }


def replicas(value):
    """The value of each replica of a TensorFlow strategy, or the only one there is."""
    parts = getattr(value, "values", None)
    return parts if isinstance(parts, tuple) else [value]


def as_bytes(tensor):
    """Every bit of a tensor."""
    return keras.ops.convert_to_numpy(tensor).tobytes()


def draws():
    """The next numbers of the process's generators: Python's, NumPy's, Keras's, the backend's."""
    drawn = [random.random(), np.random.random(), keras.random.uniform(())]  # noqa: NPY002
    if BACKEND == "torch":
        import torch

        drawn.append(torch.rand(()))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        drawn.append(tf.random.uniform(()))
    return [float(number) for number in drawn]


class AtStep(keras.callbacks.Callback):
    """Calls `act(model)` before the batch with this number, on the training thread."""

    def __init__(self, batch, act):
        super().__init__()
        self.batch = batch
        self.act = act

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            self.act(self.model)
