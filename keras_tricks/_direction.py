"""Whether a metric is better when it is lower or when it is higher."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Direction = Literal["min", "max"]

# Names as Keras gives them, without underscores: an alias ("MSE"), a class ("MeanSquaredError") and
# the name of an instance ("mean_squared_error") are then found alike.
_LOWER_NAMES = """
loss
bce binarycrossentropy binaryfocalcrossentropy categoricalcrossentropy
categoricalfocalcrossentropy categoricalgeneralizedcrossentropy categoricalhinge ce circle
crossentropy ctc dice falsenegatives falsepositives hinge huber huberloss kld kldivergence
kullbackleiblerdivergence logcosh logcosherror mae mape meanabsoluteerror
meanabsolutepercentageerror meansquarederror meansquaredlogarithmicerror mse msle poisson rmse
rootmeansquarederror sparsecategoricalcrossentropy squaredhinge tversky
"""
_HIGHER_NAMES = """
acc accuracy auc binaryaccuracy binaryiou categoricalaccuracy concordancecorrelation
cosinesimilarity f1score fbetascore iou meaniou onehotiou onehotmeaniou pearsoncorrelation
precision precisionatrecall r2score recall recallatprecision sensitivityatspecificity
sparsecategoricalaccuracy sparsetopkcategoricalaccuracy specificityatsensitivity
topkcategoricalaccuracy truenegatives truepositives
"""
_LOWER = frozenset(_LOWER_NAMES.split())
_HIGHER = frozenset(_HIGHER_NAMES.split())


def direction_of_metric(name: str) -> Direction | None:
    """The direction of a metric of Keras, None for any other.

    Args:
        name: Its class, its alias, or the name that an instance gets from Keras, the `_1` of a
            second one included. Any name that ends in `_loss` is a loss.
    """
    plain = re.sub(r"_\d+$", "", name)
    key = plain.replace("_", "").lower()
    if key in _LOWER or plain.lower().endswith("_loss"):
        return "min"
    return "max" if key in _HIGHER else None


def direction_of(
    name: str,
    *,
    prefix: str = "val_",
    known: Mapping[str, Direction | None] | None = None,
    outputs: Iterable[str] = (),
) -> Direction | None:
    """The direction of a value in the logs.

    Args:
        name: Such as `val_loss`, `val_digit_accuracy`, `auc_1`.
        prefix: What the names of an evaluation's values begin with; it may be missing.
        known: Results of the model by name without prefix, with the direction of the metric behind
            each, None where that is not one of Keras's.
        outputs: Names of the model's outputs, which stand before the metric's.

    Returns:
        None if it cannot be known.

    Example:
        >>> direction_of("val_digit_auc_1", outputs=["digit"])
        'max'
    """
    plain = name.removeprefix(prefix)
    found = (known or {}).get(plain)
    if found is not None:
        return found
    # The longest output first: `digit_left_loss` belongs to "digit_left", not to "digit".
    fitting = [f"{output}_" for output in outputs if plain.startswith(f"{output}_")]
    for before in [*sorted(fitting, key=len, reverse=True), ""]:
        rest = plain.removeprefix(before)
        for candidate in (rest, rest.removeprefix("weighted_")):
            found = direction_of_metric(candidate)
            if found is not None:
                return found
    return None
