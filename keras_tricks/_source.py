"""Two ways to read examples: whole arrays, cut when asked, and datasets, drawn batch by batch."""

import math
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import chain, islice
from typing import Any

import keras
import numpy as np

from keras_tricks._backend import adapters
from keras_tricks._rows import PARTS, Data, count_rows, leaves, named_leaves, rebatched

KERAS_BATCH_SIZE = 32  # what `fit` and `evaluate` take for arrays


class ArraySource:
    """Whole arrays, cut into batches when they are asked for.

    Args:
        data: `(x, y, sample_weight)`.
        name: What the user calls it, for the messages.

    Attributes:
        runs_here: Whether reading runs code of the user's on this thread.
    """

    runs_here = False

    def __init__(self, data: Data, name: str) -> None:
        x, y, sample_weight = data
        if keras.tree.is_nested(x) and not leaves(x):
            raise ValueError(no_rows(name))
        for place, leaf in named_leaves(data):
            if adapters.kind(leaf) != "array":
                raise TypeError(not_data(leaf, name, place))
        self.data = (x, y, weights_for_each(y, sample_weight))
        self._readers: list[Callable[[int, int], Any] | None] | None = None
        self.rows = count_rows(self.data, name)
        if not self.rows:
            raise ValueError(no_rows(name))

    def cut(self, start: int, stop: int) -> Data:
        """Returns `(x, y, sample_weight)` of some rows."""
        if self._readers is None:
            self._readers = [
                None if leaf is None else adapters.reader(leaf)
                for leaf in keras.tree.flatten(self.data)
            ]
        pieces = [None if read is None else read(start, stop) for read in self._readers]
        return keras.tree.pack_sequence_as(self.data, pieces)

    def first(self, batch_size: int) -> Data:
        """Returns the first batch."""
        return self.cut(0, min(batch_size, self.rows))

    def parts(
        self, batch_size: int | None, default: int, steps: int | None
    ) -> Generator[Data, None, None]:
        """Yields `(x, y, sample_weight)`, batch by batch."""
        size = batch_size or default
        for start in islice(range(0, self.rows, size), steps):
            yield self.cut(start, min(start + size, self.rows))


class StreamSource:
    """A dataset that gives batches.

    Args:
        data: Any kind of it.
        name: What the user calls it, for the messages.
        once: Whether it may be readable only once.
        endless: Whether it may be without an end.

    Attributes:
        runs_here: Whether reading runs code of the user's on this thread. A `tf.data` pipeline
            has threads of its own.
    """

    rows = None

    def __init__(self, data: Any, name: str, *, once: bool, endless: bool) -> None:
        kind = adapters.kind(data)
        if kind is None:
            raise TypeError(not_data(data, name))
        if kind == "iterator" and not once:
            raise ValueError(
                f"`{name}` must be readable more than once, got a {type(data).__name__}. Pass a "
                "list of its batches, a `tf.data.Dataset`, an object whose `__iter__` begins "
                "anew, or a function that makes it, `lambda: generate()`."
            )
        batches = adapters.length(data)
        if batches == 0:
            raise ValueError(no_rows(name))
        if batches == math.inf and not endless:
            raise ValueError(
                f"`{name}` must end if `steps` is None, got a {type(data).__name__} without an "
                "end. Pass `steps=100` to take its first 100 batches."
            )
        self.data = data
        self.runs_here = kind != "tf.data.Dataset"
        self._name = name
        self._read_once = kind == "iterator"
        self._ahead: list[Any] = []

    def first(self, batch_size: int) -> Data | None:
        """Returns the first batch that is not empty, as it is; `None` if there is none."""
        if self._read_once:
            ahead, self._ahead = self._ahead, []
            for element in chain(ahead, self.data):
                self._ahead.append(element)
                data = on_host(element, self._name)
                if count_rows(data, self._name):
                    return data
            return None
        if isinstance(self.data, keras.utils.PyDataset):
            data = on_host(adapters.peek(self.data), self._name)
            if count_rows(data, self._name):
                return data
        with closing(self.parts(None, batch_size, None)) as parts:
            return next(parts, None)

    def parts(
        self, batch_size: int | None, default: int, steps: int | None
    ) -> Generator[Data, None, None]:
        """Yields `(x, y, sample_weight)`, batch by batch, of `batch_size` rows if that is given."""
        ahead, self._ahead = self._ahead, []
        with closing(adapters.batches(self.data)) as elements:
            data = (on_host(some, self._name) for some in islice(chain(ahead, elements), steps))
            parts = (part for part in data if count_rows(part, self._name))
            yield from rebatched(parts, batch_size, self._name) if batch_size else parts


def on_host(element: Any, name: str) -> Data:
    """Returns a batch of any library as `(x, y, sample_weight)` of NumPy arrays.

    Raises:
        TypeError: If it holds something else than arrays.
        ValueError: If it is a tuple of another length than 1, 2 or 3.
    """
    data = unpacked(element, name)
    try:
        return keras.tree.map_structure(
            lambda leaf: None if leaf is None else adapters.host(leaf), data
        )
    except TypeError as error:
        raise TypeError(
            f"`{name}` must give batches of arrays: {error}. Convert it with `numpy.asarray` where "
            "the batch is made."
        ) from error


def source(
    x: Any, y: Any, sample_weight: Any, name: str, *, once: bool = False, endless: bool = False
) -> ArraySource | StreamSource:
    """Decides how data is read.

    Args:
        x: The data, or the inputs alone.
        y: The targets, for arrays.
        sample_weight: The weights, for arrays.
        name: What the user calls `x`.
        once: Whether an iterator is taken.
        endless: Whether data without an end is taken.
    """
    alone = y is None and sample_weight is None
    if isinstance(x, tuple) and alone:
        x, y, sample_weight = unpacked(x, name)
        alone = y is None and sample_weight is None
    batches = isinstance(x, list) and alone and bool(x) and all(isinstance(e, tuple) for e in x)
    if adapters.kind(x) == "array" or (keras.tree.is_nested(x) and not batches):
        return ArraySource((x, y, sample_weight), name)
    for argument, value in zip(PARTS[1:], (y, sample_weight), strict=True):
        if value is not None and adapters.kind(x) is not None:
            kind = type(x).__name__
            raise ValueError(
                f"`{argument}` must be None when `{name}` is a {kind}, got "
                f"{type(value).__name__}. Let the {kind} give `(x, y)` or `(x, y, sample_weight)`."
            )
    return StreamSource(x, name, once=once, endless=endless)


def unpacked(element: Any, name: str) -> Data:
    """Returns `(x, y, sample_weight)` of a batch as `fit` reads it.

    Raises:
        ValueError: If it is a tuple of another length than 1, 2 or 3.
    """
    if not isinstance(element, tuple | list):
        return element, None, None
    if not 1 <= len(element) <= 3:
        raise ValueError(
            f"`{name}` must be `(x,)`, `(x, y)` or `(x, y, sample_weight)`, got "
            f"{len(element)} parts. Put several inputs into one list or dict: `([a, b], y)`."
        )
    return (*element, None, None)[:3]


def weights_for_each(y: Any, sample_weight: Any) -> Any:
    """Returns the weights in the structure of the targets, as Keras arranges them for arrays.

    Raises:
        ValueError: If their structures differ, or one array for several targets has more than one
            weight per example.
    """
    if sample_weight is None or not keras.tree.is_nested(y):
        return sample_weight
    if keras.tree.is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except ValueError as error:
            raise ValueError(
                "`sample_weight` must be arranged as `y` is, got "
                f"{shape_of(sample_weight)} for {shape_of(y)}. Pass one array for all targets, or "
                "one for each."
            ) from error
        return sample_weight
    if tuple(sample_weight.shape[1:]) not in ((), (1,)):
        raise ValueError(
            "`sample_weight` must have the shape [rows] when `y` is several targets, got "
            f"{tuple(sample_weight.shape)}. Pass one array of weights for each target."
        )
    return keras.tree.map_structure(lambda _: sample_weight, y)


def shape_of(structure: Any) -> str:
    """Returns a structure with its arrays' shapes in their places."""
    return str(
        keras.tree.map_structure(lambda a: None if a is None else str(tuple(a.shape)), structure)
    )


def check_count(name: str, value: int | None) -> int | None:
    """Returns a number of batches or of examples, or `None`.

    Raises:
        TypeError: If it is not a whole number.
        ValueError: If it is below 1.
    """
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be a whole number, got {value!r}. Pass `{name}=32`.")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value!r}. Pass `{name}=32`.")
    return int(value)


def no_rows(name: str) -> str:
    """Returns the message for data without a single example."""
    return (
        f"`{name}` must have at least one example, got none. Look whether its files were found, "
        "and whether it can be read more than once."
    )


def not_data(value: Any, name: str, place: str = "") -> str:
    """Returns the message for what cannot be read as data."""
    where = f" in {place}" if place else ""
    return (
        f"`{name}` must be arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a torch "
        f"`DataLoader` or a re-iterable of batches, got {type(value).__name__}{where}. Convert "
        "lists of numbers with `numpy.asarray`; wrap a torch `Dataset` in a `DataLoader`."
    )
