"""Every batch at one shape, with the padding weighted zero."""

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import keras
import numpy as np

from keras_tricks._arguments import checks_keywords
from keras_tricks._backend import adapters, padding
from keras_tricks._rows import Data, copied, count_rows, cut, joined, leaves, padded
from keras_tricks._source import (
    KERAS_BATCH_SIZE,
    ArraySource,
    StreamSource,
    check_count,
    on_host,
    source,
    unpacked,
)

NAME = "data"


@checks_keywords
def pad_batches(data: Any, batch_size: int | None = None) -> Any:
    """Returns the same examples in batches `(x, y, sample_weight)` that all have one shape.

    A batch that is too small, as the last one mostly is, is filled with copies of its last example
    whose `sample_weight` is 0. So XLA compiles once, and a data-parallel mesh or a set of replicas
    divides every batch.

    Weights given with the data are kept. Where there are none, they are float32 of shape
    `[batch]`, 1 for a real example.

    It does not make Keras's own `loss` and `val_loss` exact: Keras divides by the batch with its
    padding, and `metrics=[...]` never see a weight. Only `weighted_metrics=[...]` come out right.
    For exact numbers take `kt.evaluate`, which needs no padded data.

    | data | result |
    |---|---|
    | `tf.data.Dataset` | a `tf.data.Dataset` with a static batch size, of the same length |
    | arrays, `(x, y)`, a list of batches | a `keras.utils.PyDataset` of known length |
    | `keras.utils.PyDataset` | the same, with its workers; it hears each epoch begin and end |
    | torch `DataLoader` | a torch `DataLoader` |
    | another re-iterable of batches | a re-iterable of tuples, for `kt.evaluate` or your own loop |

    Arrays keep their order: `fit(shuffle=True)` shuffles batches then, not examples.

    Args:
        data: What `fit(validation_data=...)` takes, with targets.
        batch_size: Examples per batch, padding included; re-batches datasets too. `None`: 32 for
            arrays, and for datasets their own, which is the first batch's where nothing else says
            so (a `tf.data.Dataset` without a static batch size is read up to there). A `PyDataset`
            or a list of batches that is re-batched must have equally large batches, the last apart.

    Raises:
        TypeError: If `data` or `batch_size` is of the wrong kind.
        ValueError: If there are no examples or no targets, if `batch_size` is below 1, or if
            `data` can be read only once. While reading: if a batch is larger than the first.

    Example:
        >>> padded = keras_tricks.pad_batches((np.zeros((5, 2)), np.arange(5)), batch_size=3)
        >>> [weight.tolist() for x, y, weight in padded]
        [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    """
    batch_size = check_count("batch_size", batch_size)
    read = source(data, None, None, NAME, endless=True)
    if isinstance(read, ArraySource):
        size = batch_size or KERAS_BATCH_SIZE
        check_targets(read.data[1])
        return PaddedBatches(ArrayBatches(read, size), size)
    data = read.data
    match adapters.kind(data):
        case "tf.data.Dataset":
            check_targets(unpacked(data.element_spec, NAME)[1])
            return padding.padded_tf_dataset(data, batch_size)
        case "PyDataset":
            return PaddedBatches(data, batch_size)
        case "DataLoader":
            size = batch_size or data.batch_size
            return padding.torch_loader(
                PaddedStream(read, batch_size, size), loader_length(data, batch_size)
            )
    if isinstance(data, list):
        return PaddedBatches(ListBatches(data), batch_size)
    return PaddedStream(read, batch_size, batch_size)


class PaddedStream:
    """A re-iterable of padded batches.

    Args:
        read: The data.
        batch_size: As for `pad_batches`.
        size: Rows of every batch; `None` takes the first batch's.
    """

    def __init__(self, read: StreamSource, batch_size: int | None, size: int | None) -> None:
        self._read = read
        self._batch_size = batch_size
        self._size = size

    def __iter__(self) -> Iterator[Data]:
        size = self._size
        with closing(self._read.parts(self._batch_size, KERAS_BATCH_SIZE, None)) as parts:
            for data in parts:
                size = size or count_rows(data, NAME)
                yield weighted(data, size)


class PaddedBatches(keras.utils.PyDataset):
    """A `PyDataset` of padded batches.

    Args:
        batches: What is padded. Its workers are used, and it hears each epoch begin and end.
        batch_size: As for `pad_batches`.
    """

    def __init__(self, batches: keras.utils.PyDataset, batch_size: int | None) -> None:
        super().__init__(
            workers=batches.workers,
            use_multiprocessing=batches.use_multiprocessing,
            max_queue_size=batches.max_queue_size,
        )
        self._batches = batches
        self._batch_size = batch_size
        # The batch read last: two neighbours may both need it.
        self._recent: tuple[int, Data] = (-1, (None, None, None))
        # Rows of the first batch, and of the last among so many.
        self._full_rows = 0
        self._last_rows: tuple[int | None, int] = (None, 0)

    @property
    def num_batches(self) -> int | None:
        """Batches in an epoch; `None` without an end."""
        count = self._batches.num_batches
        if count is None or self._batch_size is None:
            return count
        return math.ceil(self._total_rows(count) / self._batch_size)

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("`data` has no length, since it never ends.")
        return self.num_batches

    def __getitem__(self, index: int) -> Data:
        """Returns `(x, y, sample_weight)`."""
        if self._batch_size is None:
            return weighted(self._read(index), self._first_rows())
        count = self._batches.num_batches
        full, total = self._first_rows(), self._total_rows(count)
        start = index * self._batch_size
        stop = int(min(start + self._batch_size, total))
        if start >= stop:
            raise IndexError(f"`index` must be below {self.num_batches}, got {index}.")
        pieces = []
        for place in range(start // full, math.ceil(stop / full)):
            data = self._read(place)
            rows = count_rows(data, NAME)
            if rows != full and place + 1 != count:
                raise ValueError(
                    f"`data` must have equally large batches if `batch_size` is given, got {full} "
                    f"and {rows} examples. Leave `batch_size` out to pad the batches as they are."
                )
            low, high = max(start - place * full, 0), min(stop - place * full, full)
            # A copy, since the next batch may be written into the same memory.
            pieces.append(copied(cut(data, low, high)))
        return weighted(joined(pieces), self._batch_size)

    def on_epoch_begin(self) -> None:
        """Passes the call on."""
        self._recent = (-1, (None, None, None))
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Passes the call on, which may change what the batches hold."""
        self._recent = (-1, (None, None, None))
        self._batches.on_epoch_end()

    def _read(self, index: int) -> Data:
        recent, data = self._recent
        if recent != index:
            data = on_host(self._batches[index], NAME)
            self._recent = (index, data)
        return data

    def _first_rows(self) -> int:
        self._full_rows = self._full_rows or count_rows(self._read(0), NAME)
        return self._full_rows

    def _total_rows(self, count: int | None) -> float:
        if count is None:
            return math.inf
        if self._last_rows[0] != count:
            self._last_rows = (count, count_rows(self._read(count - 1), NAME))
        return (count - 1) * self._first_rows() + self._last_rows[1]


class ArrayBatches(keras.utils.PyDataset):
    """Batches cut from arrays."""

    def __init__(self, read: ArraySource, batch_size: int) -> None:
        super().__init__()
        self._read = read
        self._batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(self._read.rows / self._batch_size)

    def __getitem__(self, index: int) -> Data:
        """Returns `(x, y, sample_weight)`."""
        start = index * self._batch_size
        return self._read.cut(start, min(start + self._batch_size, self._read.rows))


class ListBatches(keras.utils.PyDataset):
    """A list of batches."""

    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        """Returns the batch as it stands in the list."""
        return self._batches[index]


def weighted(data: Data, size: int) -> Data:
    """Returns data padded to `size` rows, its weights zero in the padding."""
    rows = count_rows(data, NAME)
    check_targets(data[1])
    if rows > size:
        raise ValueError(
            f"`batch_size` must be given if batches grow, got one of {rows} examples after one of "
            f"{size}. Pass `batch_size={rows}`."
        )
    if not all(isinstance(leaf, np.ndarray) for leaf in leaves(data)):
        raise TypeError(f"`{NAME}` must be dense to be padded, got a sparse or ragged tensor.")
    x, y, sample_weight = padded(data, size)
    real = np.arange(size) < rows

    def weigh(leaf: Any) -> Any:
        if leaf is None:
            return real.astype("float32")
        # `where` and not a product: a weight that is not finite must not survive in a padded row.
        return np.where(real.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, np.zeros((), leaf.dtype))

    return x, y, keras.tree.map_structure(weigh, sample_weight)


def check_targets(y: Any) -> None:
    """Raises `ValueError` if there are no targets."""
    if y is None:
        raise ValueError(
            f"`{NAME}` must have targets, got None: weights of zero have nothing to weigh. Pass "
            "`(x, y)`; zeros will do for a model that does not look at them."
        )


def loader_length(loader: Any, batch_size: int | None) -> int | None:
    """Returns how many batches a torch `DataLoader` will give, `None` if it cannot be known."""
    count = adapters.length(loader)
    if count is None or batch_size is None:
        return None if count is None else int(count)
    # Without a batch size of its own, or of an `IterableDataset`, it does not know its examples.
    if loader.batch_size is None or not hasattr(loader.sampler, "__len__"):
        return None
    rows = count * loader.batch_size if loader.drop_last else len(loader.sampler)
    return math.ceil(rows / batch_size)
