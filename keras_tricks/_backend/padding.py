"""Padding inside a backend's own data pipeline: `tf.data` graphs and torch `DataLoader`s."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np


def padded_tf_dataset(dataset: Any, batch_size: int | None) -> Any:
    """Returns a `tf.data.Dataset` of `(x, y, sample_weight)` with one static batch size.

    Args:
        dataset: A batched `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`.
        batch_size: The size; re-batches first. `None` takes it from the element spec, or else from
            the first batch, which is read for it.

    Raises:
        ValueError: If there is no batch, or a leaf is sparse.
    """
    import tensorflow as tf

    specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if hasattr(spec, "shape")]
    if any(isinstance(spec, tf.SparseTensorSpec) for spec in specs):
        raise ValueError(
            "`data` must be dense to be padded, got a SparseTensor. Map `tf.sparse.to_dense` "
            "over it first."
        )
    static = specs[0].shape[0] if specs[0].shape.rank else None
    count = int(dataset.cardinality())
    if batch_size is not None:
        dataset = dataset.rebatch(batch_size)
        # Re-batching forgets the length, which Keras needs for its progress bar and its epochs.
        if count > 0 and static is not None:
            count = math.ceil(count * static / batch_size)
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        elif count == tf.data.INFINITE_CARDINALITY:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    size = batch_size or static or _first_size(dataset)
    return dataset.map(
        lambda *element: _padded_element(element, size),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _first_size(dataset: Any) -> int:
    import tensorflow as tf

    for element in dataset.take(1):
        return int(_rows(tf.nest.flatten(element)[0]))
    raise ValueError(
        "`data` must have at least one batch, got none. Look whether files were found."
    )


def _rows(leaf: Any) -> Any:
    import tensorflow as tf

    ragged = isinstance(leaf, tf.RaggedTensor)
    return leaf.nrows(out_type=tf.int32) if ragged else tf.shape(leaf)[0]


def _padded_element(element: tuple[Any, ...], size: int) -> tuple[Any, Any, Any]:
    """Pads one batch, as a graph: the last row again, with weight zero."""
    import tensorflow as tf

    x, y, sample_weight = (*element, None)[:3]
    flat = [leaf for leaf in tf.nest.flatten((x, y, sample_weight)) if leaf is not None]
    rows = _rows(flat[0])
    too_large = f"`batch_size` must be given if a batch is larger than the first one, of {size}."
    checks = [
        tf.debugging.assert_less_equal(rows, size, too_large),
        tf.debugging.assert_positive(rows, "`data` must not give a batch without examples."),
        *(tf.debugging.assert_equal(_rows(leaf), rows, "Unequal lengths.") for leaf in flat[1:]),
    ]
    with tf.control_dependencies(checks):
        index = tf.minimum(tf.range(size), rows - 1)
    real = tf.range(size) < rows

    def pad(leaf: Any) -> Any:
        if leaf is None:
            return None
        padded = tf.gather(leaf, index)
        if not isinstance(padded, tf.RaggedTensor) and leaf.shape.rank:
            padded.set_shape([size, *leaf.shape[1:]])
        return padded

    def weigh(leaf: Any) -> Any:
        if leaf is None:
            return tf.cast(real, tf.float32)
        weight = pad(leaf)
        # `where` and not a product: a weight that is not finite must not survive in a padded row.
        column = tf.reshape(real, [size] + [1] * (leaf.shape.rank - 1))
        return tf.where(column, weight, tf.zeros_like(weight))

    return (
        keras.tree.map_structure(pad, x),
        keras.tree.map_structure(pad, y),
        keras.tree.map_structure(weigh, sample_weight),
    )


def torch_loader(batches: Iterable[tuple[Any, ...]], count: int | None) -> Any:
    """Returns a torch `DataLoader` that gives these batches as tensors.

    Args:
        batches: A re-iterable of structures of NumPy arrays.
        count: How many there are in a pass; `None` if that is not known.
    """
    import torch

    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind in "OUS":
            return leaf
        if leaf.dtype.name == "bfloat16":
            # torch does not know NumPy's bfloat16; float32 holds each of its values.
            return torch.from_numpy(leaf.astype("float32")).bfloat16()
        return torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())

    class Unsized(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            for batch in batches:
                yield keras.tree.map_structure(tensor, batch)

    class Sized(Unsized):
        # A class of its own, since Keras takes a `__len__` for a known length.
        def __len__(self) -> int:
            return int(count or 0)

    dataset = Unsized() if count is None else Sized()
    return torch.utils.data.DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)
