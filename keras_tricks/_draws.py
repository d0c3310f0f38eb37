"""Batches drawn from the rows of one, to see what a single batch may hide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tricks._backend import passes

DRAWS = 3


def resamples(
    runner: Any, data: Any, forward: passes.Forward, rows: int
) -> Iterator[tuple[Any, passes.Forward]]:
    """Batches of the same shapes whose targets and outputs do not belong together.

    Rows are drawn with replacement, for targets and for outputs apart, from a generator of
    its own.

    Args:
        runner: Moves tensors to the host and back.
        data: `(x, y, sample_weight)` of a batch.
        forward: Its forward pass.
        rows: Rows to draw from and to fill.
    """
    x, y, sample_weight = data
    generator = np.random.default_rng(0)

    def drawn(structure: Any, index: np.ndarray) -> Any:
        def pick(leaf: Any) -> Any:
            return None if leaf is None else runner.to_host(leaf)[index]

        return runner.place(keras.tree.map_structure(pick, structure))

    size = next(leaf.shape[0] for leaf in keras.tree.flatten(forward.y_pred))
    for _ in range(DRAWS):
        targets, outputs = (generator.integers(0, rows, size) for _ in range(2))
        weights = drawn(sample_weight, targets)
        y_pred, masks = drawn(forward.y_pred, outputs), drawn(forward.masks, outputs)
        yield (
            (x, drawn(y, targets), weights),
            passes.Forward(y_pred, masks, forward.losses, forward.carried),
        )
