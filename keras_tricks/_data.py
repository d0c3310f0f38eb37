"""Batches of one shape from whatever `fit(validation_data=...)` takes."""

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_tricks._backend.randomness import OwnRandomness
from keras_tricks._rows import count_rows, cut, layout, leaves, padded
from keras_tricks._source import KERAS_BATCH_SIZE, check_count, no_rows, source


@dataclass(frozen=True)
class Batch:
    """Examples that are evaluated together.

    Attributes:
        x: Structure of NumPy arrays `[size, ...]`. A sparse or ragged leaf stays a tensor of the
            backend; then `size` is `rows`.
        y: The same for the targets; `None` where there are none.
        sample_weight: The same for the weights; `None` where there are none.
        rows: Real examples. They come first.
        size: Rows of every leaf. Those from `rows` on are copies of the last real one.
    """

    x: Any
    y: Any
    sample_weight: Any
    rows: int
    size: int


class Batches:
    """Batches of one shape from whatever `fit(validation_data=...)` takes, as often as wanted.

    Reading moves no global generator of random numbers, whatever a generator of batches draws.

    - Arrays of NumPy, JAX, TensorFlow, PyTorch, pandas or SciPy, in any structure. A tuple `x` is
      `(x,)`, `(x, y)` or `(x, y, sample_weight)`; a list or a dict of arrays is several inputs.
    - A `tf.data.Dataset`, a `keras.utils.PyDataset` (with its workers), a torch `DataLoader`.
    - A re-iterable of batches: a list of tuples, an object whose `__iter__` begins anew each time,
      or a function without arguments that makes an iterator.

    A batch of a dataset is `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Args:
        x: The data.
        y: Targets, for arrays only.
        sample_weight: Weights, for arrays only. One array for several targets is for each of them.
        batch_size: Examples a batch; re-batches datasets too. `None`: datasets keep their batches.
        steps: At most so many batches: of arrays those given out, of datasets those drawn. Arrays
            with `steps` and no `batch_size` are divided into so many batches, as Keras does.
            `None`: all.
        name: What the caller calls `x`, for the messages.
        once: Whether an iterator, which can be read only once, is taken too.

    Attributes:
        rows: Examples in one pass, `None` unless known without reading.
        batch_size: As given, or what `steps` makes it for arrays; else `None`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If there are no examples, or no end of them and no `steps`; if arrays differ in
            length; if `y` or `sample_weight` come with a dataset; if `x` can be read only once.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        name: str = "x",
        once: bool = False,
    ) -> None:
        self.batch_size = check_count("batch_size", batch_size)
        self._steps = check_count("steps", steps)
        self._name = name
        self._source = source(x, y, sample_weight, name, once=once, endless=steps is not None)
        self.rows = self._source.rows
        if self.rows is not None and self._steps is not None:
            self.batch_size = self.batch_size or math.ceil(self.rows / self._steps)
            self.rows = min(self.rows, self.batch_size * self._steps)
        # Rows of the largest batch so far, by layout, kept so that a later pass starts with it.
        self._largest: dict[str, int] = {}

    def first(self) -> Batch:
        """Reads the first batch, unpadded; for arrays 32 rows where there is no `batch_size`.

        Raises:
            ValueError: If there is none.
        """
        with OwnRandomness().reading():
            data = self._source.first(self.batch_size or KERAS_BATCH_SIZE)
        if data is None:
            raise ValueError(no_rows(self._name))
        rows = count_rows(data, self._name)
        if self.batch_size is not None and self.batch_size < rows:
            rows, data = self.batch_size, cut(data, 0, self.batch_size)
        return Batch(*data, rows, rows)

    def iterate(
        self,
        default_batch_size: int = KERAS_BATCH_SIZE,
        *,
        multiple_of: int = 1,
        at_least: int = 0,
        pad: bool = True,
    ) -> Generator[Batch, None, None]:
        """Reads the data once.

        Args:
            default_batch_size: Rows of a batch of arrays if no `batch_size` was given.
            multiple_of: What the size of a padded batch is rounded up to a multiple of.
            at_least: Rows that a padded batch has at least.
            pad: Whether to fill every batch to one size, that of the largest so far. Examples of
                different shapes, as when sequences are bucketed by length, have a size for each
                shape. Ragged and sparse tensors are never padded.

        Yields:
            The batches, none of them empty.

        Raises:
            ValueError: If there is not one example, or a batch with leaves of different lengths.
            TypeError: If a batch holds something else than arrays.
        """
        if self.rows is not None:
            self._largest = {}  # arrays begin with their largest batch
        empty = True
        batch_size = self.batch_size
        parts = self._source.parts(batch_size, default_batch_size, self._steps)
        if self._source.runs_here:
            parts = OwnRandomness().elements(parts)
        with closing(parts):
            for data in parts:
                empty = False
                rows = size = count_rows(data, self._name)
                dense = all(isinstance(leaf, np.ndarray) for leaf in leaves(data))
                if pad and dense:
                    key = layout(data)
                    largest = self._largest[key] = max(rows, self._largest.get(key, 0))
                    size = math.ceil(max(largest, at_least) / multiple_of) * multiple_of
                yield Batch(*padded(data, size), rows, size)
        if empty:
            raise ValueError(no_rows(self._name))
