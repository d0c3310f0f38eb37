"""Losses, reductions and metrics over single examples, in NumPy and float64.

Nothing here calls Keras. `values` are per element, shape `[n]` or `[n, time]`; `weight` is
`[n]`, `[n, 1]` or `[n, time]`; `mask` is boolean, `[n, time]`.
"""

import numpy as np

EPSILON = 1e-7  # Keras's fuzz factor: probabilities are clipped to [EPSILON, 1 - EPSILON]


def exact(array):
    """Returns `array` as float64."""
    return np.asarray(array, "float64")


def batches(rows, size):
    """Returns the slices that cut `rows` examples into batches of `size`, the last one ragged."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def by_rows(per_batch, rows, size):
    """Returns the mean of `per_batch(slice)` over the batches, weighted by their rows."""
    parts = batches(rows, size)
    return sum(exact(per_batch(part)) * (part.stop - part.start) for part in parts) / rows


# Per element ------------------------------------------------------------------------------------


def squared(y, prediction):
    """Squared error, mean over the last axis."""
    return np.mean((exact(prediction) - exact(y)) ** 2, axis=-1)


def absolute(y, prediction):
    """Absolute error, mean over the last axis."""
    return np.mean(np.abs(exact(prediction) - exact(y)), axis=-1)


def binary_crossentropy(y, prediction):
    """Cross entropy of probabilities, mean over the last axis."""
    y, p = exact(y), np.clip(exact(prediction), EPSILON, 1 - EPSILON)
    return np.mean(-(y * np.log(p) + (1 - y) * np.log(1 - p)), axis=-1)


def crossentropy(labels, prediction):
    """Cross entropy of class probabilities `[n, classes]` with integer `labels` `[n]`."""
    p = np.clip(exact(prediction), EPSILON, 1 - EPSILON)
    return -np.log(p[np.arange(len(p)), np.asarray(labels).ravel()])


# Losses -----------------------------------------------------------------------------------------


def _beside(weight, values):
    """Returns `weight` in a shape that multiplies `values`: `[n]` and `[n, 1]` mean the same."""
    weight = exact(weight)
    if weight.ndim > values.ndim:
        return weight[..., 0]
    return weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))


def loss(values, weight=None, *, mask=None, reduction="sum_over_batch_size", batch_size=None):
    """Returns the loss as one sum over one sum.

    The denominator is the number of elements, of valid elements under a mask, or for
    `mean_with_sample_weight` the sum of the weights. `sum` has the scale of a batch: the sums of
    the batches of `batch_size`, weighted by their rows.
    """
    values = exact(values)
    valid = np.ones(values.shape) if mask is None else exact(mask)
    given = np.ones(values.shape) if weight is None else _beside(weight, values)
    weighted = values * given * valid
    if reduction == "sum":
        return by_rows(lambda part: weighted[part].sum(), len(values), batch_size)
    if reduction == "mean_with_sample_weight":
        # An `[n, 1]` weight for `[n, time]` values counts once a row, unless a mask spreads it.
        divisor = given.sum() if mask is None else (given * valid).sum()
    else:
        divisor = valid.sum()
    return weighted.sum() / divisor if divisor else 0.0


def penalty(model, l2):
    """Returns `l2` times the sum of squares of the model's kernels."""
    kernels = [exact(w) for w in model.get_weights() if w.ndim > 1]
    return l2 * sum((kernel**2).sum() for kernel in kernels)


# Metrics ----------------------------------------------------------------------------------------


def mean(values, weight=None, *, mask=None):
    """Returns the mean over elements, weighted if `weight` or `mask` is given."""
    values = exact(values)
    w = np.ones(values.shape)
    w = w if weight is None else w * _beside(weight, values)
    w = w if mask is None else w * exact(mask)
    return (values * w).sum() / w.sum() if w.sum() else 0.0


def auc(y, prediction, weight=None, thresholds=200):
    """Returns the area under the ROC curve by Keras's documented method.

    `thresholds` points, evenly spaced in [0, 1], each example positive above the threshold, and
    the trapezoidal rule between them.
    """
    y, p = exact(y).ravel(), exact(prediction).ravel()
    w = np.ones(len(p)) if weight is None else exact(weight).ravel()
    at = np.arange(thresholds) / (thresholds - 1)
    at[0], at[-1] = -EPSILON, 1 + EPSILON
    above = p[None, :] > at[:, None]
    true, false = (above * (w * y)).sum(1), (above * (w * (1 - y))).sum(1)
    if not true[0] or not false[0]:
        return 0.0  # one class only: a rate without a denominator counts as 0
    return -np.trapezoid(true / true[0], false / false[0])


def f1(y, prediction, weight=None):
    """Returns the macro F1 of one-hot `y`, the largest class probability being the prediction."""
    y, p = exact(y), exact(prediction)
    w = np.ones(len(p)) if weight is None else exact(weight).ravel()
    chosen = (p == p.max(-1, keepdims=True)) * w[:, None]
    true = (chosen * y).sum(0)
    both = chosen.sum(0) + (w[:, None] * y).sum(0)
    return np.mean(np.divide(2 * true, both, out=np.zeros_like(true), where=both > 0))
