"""Situations: how a loss is reduced, with and without the user's weights."""

import keras

from tests.exact import arithmetic as np64
from tests.exact.situation import compiled, dense, features, regression, situation, targets, weights

STEPS = 3


def plain(rng):
    """Examples without weights."""
    return features(rng), targets(rng), None


def weighted(rng):
    """Examples with weights `[n]`."""
    return features(rng), targets(rng), weights(rng, 1001)


def weighted_column(rng):
    """Examples with weights `[n, 1]`."""
    return features(rng), targets(rng), weights(rng, 1001, 1)


def weighted_steps(rng):
    """Sequences `[n, time]` with a weight per time step."""
    x = features(rng, 4 * STEPS).reshape(-1, STEPS, 4)
    return x, targets(rng, STEPS)[..., None], weights(rng, 1001, STEPS)


def value(reduction):
    """Returns the calculation of the mean squared error under `reduction`."""

    def right(r):
        values = np64.squared(r.y, r.predictions)
        return {"loss": np64.loss(values, r.weight, reduction=reduction, batch_size=r.batch_size)}

    return right


def register(name, data, reduction):
    """Registers a regression with this reduction."""

    @situation(name, data, right=value(reduction))
    def build(jit_compile, batch_size):
        return regression(jit_compile, loss=keras.losses.MeanSquaredError(reduction=reduction))


register("sum_over_batch_size", plain, "sum_over_batch_size")
register("mean, weights [n,1]", weighted_column, "mean")
register("sum, weights [n]", weighted, "sum")
register("mean_with_sample_weight, weights [n]", weighted, "mean_with_sample_weight")


def register_steps(name, data, reduction):
    """Registers a regression per time step with this reduction."""

    @situation(name, data, right=value(reduction))
    def build(jit_compile, batch_size):
        net = keras.Sequential([keras.Input((STEPS, 4)), dense(1, 3)])
        return compiled(net, jit_compile, loss=keras.losses.MeanSquaredError(reduction=reduction))


register_steps("sum_over_batch_size, weights [n,time]", weighted_steps, "sum_over_batch_size")
register_steps(
    "mean_with_sample_weight, weights [n,time]", weighted_steps, "mean_with_sample_weight"
)
