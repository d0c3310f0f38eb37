"""A few batches of a dataset, and what shapes the others have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import keras
import numpy as np

from keras_tricks import host
from keras_tricks._backend import adapters
from keras_tricks._rows import Data, copied, count_rows, cut, layout, leaves
from keras_tricks._source import KERAS_BATCH_SIZE, ArraySource, no_rows, source


@dataclass
class Sample:
    """Batches of one pass over a dataset, on the host.

    Attributes:
        name: What the user calls the dataset.
        batches: Its first batches and, where the pass was read to its end, its last.
        shapes: The first batch of each shape, in the order in which they came.
        count: Batches that were looked at.
        ended: Whether these are all that the pass has.
    """

    name: str
    batches: list[Data] = field(default_factory=list)
    shapes: dict[str, Data] = field(default_factory=dict)
    count: int = 0
    ended: bool = True

    @property
    def whole(self) -> bool:
        """Whether `batches` are all of the pass."""
        return self.ended and len(self.batches) == self.count

    @property
    def full_rows(self) -> int:
        """Examples in the largest batch."""
        return max(map(rows_of, self.batches))

    @property
    def full(self) -> list[Data]:
        """The batches of the shape that the first one has."""
        first = shape_of(self.batches[0])
        return [data for data in self.batches if shape_of(data) == first]

    def reduced(self, count: int) -> Sample:
        """At most so many batches, the last among them."""
        if len(self.batches) <= count:
            return self
        batches = [*self.batches[: count - 1], self.batches[-1]]
        return Sample(self.name, batches, self.shapes, self.count, self.ended)


def rows_of(data: Data) -> int:
    """Examples in a batch."""
    return count_rows(data, "batch")


def shape_of(data: Data) -> str:
    """A text that two batches share if one compiled step serves both."""
    return f"{rows_of(data)} {layout(data)}"


def read_sample(data: Any, name: str, *, batches: int, seconds: float, limit_bytes: int) -> Sample:
    """Reads one pass of a dataset, as far as time allows.

    Args:
        data: What `fit` takes. Arrays are read in batches of 32, as `fit` does.
        name: What the user calls it.
        batches: How many to hold.
        seconds: When to stop reading.
        limit_bytes: How much of it to hold.

    Raises:
        ValueError: If there is no example, or the data can be read only once.
        TypeError: If it is no data.
    """
    read = source(data, None, None, name, endless=True)
    if isinstance(read, ArraySource):
        return _of_arrays(read, name, batches)
    end = host.clock() + seconds
    sample, held, last = Sample(name), 0, None
    with closing(read.parts(None, KERAS_BATCH_SIZE, None)) as parts:
        for part in parts:
            # A copy, since a dataset may write its next batch into the same memory.
            last = _add(sample, copied(part))
            held += _bytes(last)
            if len(sample.batches) < batches and held <= limit_bytes:
                sample.batches.append(last)
                last = None
            if host.clock() > end:
                sample.ended = False
                break
    if last is not None and sample.ended:
        sample.batches.append(last)
    if not sample.count:
        raise ValueError(no_rows(name))
    sample.batches = sample.batches or list(sample.shapes.values())[:1]
    return sample


def _of_arrays(read: ArraySource, name: str, batches: int) -> Sample:
    """The shapes of arrays are known without reading them."""
    sample = Sample(name)
    for start in _starts(read.rows, batches):
        sample.batches.append(
            _add(sample, read.cut(start, min(start + KERAS_BATCH_SIZE, read.rows)))
        )
    sample.count = -(-read.rows // KERAS_BATCH_SIZE)
    return sample


def _starts(rows: int, batches: int) -> Iterator[int]:
    starts = range(0, rows, KERAS_BATCH_SIZE)
    yield from islice(starts, batches - 1)
    if len(starts) >= batches:
        yield starts[-1]


def _add(sample: Sample, data: Data) -> Data:
    sample.count += 1
    sample.shapes.setdefault(shape_of(data), data)
    return data


def _bytes(data: Data) -> int:
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves(data))


def without_padding(batches: list[Data]) -> list[Data]:
    """The same batches without the rows at their end that have no weight."""
    *others, last = batches
    rows = rows_of(last) - _trailing_zeros(last)
    if rows == 0 and others:
        return without_padding(others)
    return [*others, cut(last, 0, rows)] if 0 < rows < rows_of(last) else batches


def _trailing_zeros(data: Data) -> int:
    weights = [leaf for leaf in keras.tree.flatten(data[2]) if isinstance(leaf, np.ndarray)]
    if not weights:
        return 0
    rows = rows_of(data)
    used = sum(np.abs(leaf.astype("float64")).reshape(rows, -1).sum(axis=1) for leaf in weights)
    return rows - int(np.max(np.flatnonzero(used), initial=-1)) - 1


def shown_shape(data: Data) -> str:
    """The shape of the first input of a batch."""
    first = leaves(data)[0]
    return str(tuple(first.shape)) if hasattr(first, "shape") else f"({adapters.rows(first)}, …)"
