"""The same examples in every form that `kt.evaluate` takes."""

from typing import Any

import keras
import numpy as np

from tests.exact.situation import first_leaf

EVERYWHERE = (
    "arrays",
    "tf.data-known",
    "tf.data-unknown",
    "tf.data-rebatched",
    "PyDataset",
    "PyDataset-workers",
    "re-iterable-steps",
)
TORCH_ONLY = ("DataLoader",)
REBATCH_FROM = 13  # rows of the batches that `batch_size` cuts anew


def given(x: Any, y: Any, weight: Any) -> tuple[Any, ...]:
    """Returns `(x, y)` or `(x, y, weight)`."""
    return (x, y) if weight is None else (x, y, weight)


def with_tuples(data: Any) -> Any:
    """Returns a structure with tuples for lists: a dataset's list would mean one stacked tensor."""
    if isinstance(data, dict):
        return {key: with_tuples(value) for key, value in data.items()}
    return tuple(map(with_tuples, data)) if isinstance(data, (list, tuple)) else data


def cut(data: Any, start: int, stop: int) -> Any:
    """Returns some rows of every leaf; `None` stays."""
    return keras.tree.map_structure(lambda a: None if a is None else a[start:stop], data)


class Sliced(keras.utils.PyDataset):
    """Batches cut from arrays."""

    def __init__(self, data: tuple[Any, ...], size: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.data, self.size = data, size

    def __len__(self) -> int:
        return -(-len(first_leaf(self.data)) // self.size)

    def __getitem__(self, index: int) -> Any:
        return cut(self.data, index * self.size, (index + 1) * self.size)


class Endless:
    """Batches cut from arrays, then batches of something else, without an end."""

    def __init__(self, data: tuple[Any, ...], size: int) -> None:
        self.sliced = Sliced(data, size)

    def __iter__(self) -> Any:
        for index in range(len(self.sliced)):
            yield self.sliced[index]
        while True:
            first = self.sliced[0]
            yield keras.tree.map_structure(lambda a: None if a is None else a * 0 + 1, first)


def tf_dataset(data: tuple[Any, ...], size: int) -> Any:
    """Returns a `tf.data.Dataset` of known length; `None` leaves stay `None`."""
    import tensorflow as tf

    leaves = keras.tree.flatten(data)
    present = [leaf for leaf in leaves if leaf is not None]

    def whole(*tensors: Any) -> Any:
        waiting = iter(tensors)
        filled = [None if leaf is None else next(waiting) for leaf in leaves]
        return keras.tree.pack_sequence_as(data, filled)

    with tf.device("cpu"):
        dataset = tf.data.Dataset.from_tensor_slices(tuple(present)).batch(size)
        return dataset.map(whole)


def of_unknown_length(dataset: Any) -> Any:
    """Returns the same batches from a dataset that does not know how many there are."""
    return dataset.filter(lambda *_: True)


class Examples:
    """A map-style dataset for torch's `DataLoader`."""

    def __init__(self, data: tuple[Any, ...]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(first_leaf(self.data))

    def __getitem__(self, index: int) -> Any:
        return keras.tree.map_structure(lambda a: np.asarray(a[index]), self.data)


def in_form(form: str, data: tuple[Any, ...], size: int) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Returns the arguments after the model for `kt.evaluate`, positional and by name."""
    if form == "arrays":
        return data, {"batch_size": size}
    data = with_tuples(data)
    if form.startswith("tf.data"):
        rebatched = form == "tf.data-rebatched"
        dataset = tf_dataset(data, REBATCH_FROM if rebatched else size)
        dataset = of_unknown_length(dataset) if form == "tf.data-unknown" else dataset
        return (dataset,), {"batch_size": size} if rebatched else {}
    if form == "PyDataset":
        return (Sliced(data, size),), {}
    if form == "PyDataset-workers":
        return (Sliced(data, size, workers=2),), {}
    if form == "re-iterable-steps":
        return (Endless(data, size),), {"steps": -(-len(first_leaf(data)) // size)}
    if form == "DataLoader":
        import torch

        return (torch.utils.data.DataLoader(Examples(data), batch_size=size),), {}
    raise ValueError(f"`form` must be one of {EVERYWHERE + TORCH_ONLY}, got {form!r}.")
