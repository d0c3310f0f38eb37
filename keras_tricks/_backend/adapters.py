"""What data is, and how it is read: the part of reading that needs Keras's or a backend's own code.

No backend is imported for looking: an object of TensorFlow or PyTorch is known by the module of
its class, and whoever made it has imported its package already.
"""

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Literal

import keras
import numpy as np

# Keras tells the kinds of data apart with these; asking the same functions keeps our answer equal
# to that of `fit`. None of them is public.
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

Kind = Literal[
    "array", "tf.data.Dataset", "PyDataset", "DataLoader", "iterator", "iterable", "function"
]


def kind(data: Any) -> Kind | None:
    """Returns what `data` is; `None` for anything that cannot be read.

    Args:
        data: One object, not a structure of them.
    """
    checks: dict[Kind, Callable[[], bool]] = {
        "array": lambda: data is not None and array_slicing.can_slice_array(data),
        "tf.data.Dataset": lambda: data_adapters.is_tf_dataset(data),
        "PyDataset": lambda: isinstance(data, keras.utils.PyDataset),
        "DataLoader": lambda: data_adapters.is_torch_dataloader(data),
        "iterator": lambda: isinstance(data, Iterator),
        "iterable": lambda: isinstance(data, Iterable) and not isinstance(data, str | bytes),
        # Not any callable: a model or a class in this place is a mistake.
        "function": lambda: inspect.isroutine(data) or isinstance(data, partial),
    }
    # The dataset of a `tf.distribute` strategy gives one value per replica, not a batch.
    if type(data).__name__.startswith("Distributed") and data_adapters.is_tf_dataset(data):
        return None
    return next((kind for kind, holds in checks.items() if holds()), None)


def length(data: Any) -> float | None:
    """Returns how many batches one pass has: `math.inf` if it never ends, `None` if unknown."""
    match kind(data):
        case "tf.data.Dataset":
            count = int(data.cardinality())
            return {-1: math.inf, -2: None}.get(count, count)
        case "PyDataset":
            try:
                return math.inf if data.num_batches is None else int(data.num_batches)
            except NotImplementedError:  # neither `__len__` nor `num_batches`
                return math.inf
        case _:
            try:
                return len(data)
            except TypeError:
                return None


def batches(data: Any) -> Generator[Any, None, None]:
    """Reads one pass of a dataset, as its own elements.

    Whatever stops the pass, the end of the data, an error or a consumer that has enough, the
    iterator is closed: workers end and a `PyDataset` hears `on_epoch_end`, once a pass.

    Args:
        data: A dataset of any kind but `"array"`. An `"iterator"` stays open, it is its owner's.
    """
    if isinstance(data, keras.utils.PyDataset):
        yield from _py_dataset_batches(data)
        return
    iterator = iter(data() if kind(data) == "function" else data)
    try:
        # Not `yield from`, which closes the iterator together with this generator.
        for element in iterator:  # noqa: UP028
            yield element
    finally:
        close = getattr(iterator, "close", None)
        if iterator is not data and callable(close):
            close()


def _py_dataset_batches(dataset: keras.utils.PyDataset) -> Iterator[Any]:
    adapter = PyDatasetAdapter(dataset)
    # Stopping waits for the batches under way and raises what one of them raised; a second call
    # does nothing. So it comes before `on_epoch_end`, which stops and then tells the dataset.
    stop = adapter.enqueuer.stop if adapter.enqueuer is not None else lambda: None
    with ExitStack() as ending:
        ending.callback(stop)
        adapter.on_epoch_begin()
        ending.callback(adapter.on_epoch_end)
        ending.callback(stop)
        # Private, because the public iterators convert every leaf, which loses bfloat16.
        yield from ending.enter_context(closing(adapter._get_iterator()))


def peek(dataset: keras.utils.PyDataset) -> Any:
    """Reads the first batch by its index, without a pass, since `on_epoch_end` may reshuffle."""
    return PyDatasetAdapter(dataset)._standardize_batch(dataset[0])


def host(leaf: Any) -> Any:
    """Returns a leaf of a batch as a NumPy array, sharing its memory where that is possible.

    Sparse and ragged leaves become what Keras hands to the model on this backend: a tensor that
    has no dense rows to pad, or a dense array where the backend knows nothing else.

    Args:
        leaf: An array or tensor of any library.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(leaf, np.ndarray):
        return np.asarray(leaf)  # a plain view of a matrix or of a memory map
    if data_adapter_utils.is_torch_tensor(leaf):
        return _from_torch(leaf)
    if data_adapter_utils.is_tensorflow_ragged(leaf):
        return leaf if keras.backend.backend() == "tensorflow" else np.asarray(leaf.to_tensor())
    if is_sparse(leaf):
        return _native_sparse(leaf)
    if not hasattr(leaf, "__array__"):
        raise TypeError(f"an array was expected, got {type(leaf).__name__}")
    return np.asarray(leaf)


def _from_torch(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        import ml_dtypes  # NumPy's bfloat16, a dependency of Keras

        # NumPy refuses a bfloat16 tensor; float32 holds each of its values.
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()


def is_sparse(leaf: Any) -> bool:
    """Whether a leaf is a sparse matrix of TensorFlow, JAX or SciPy."""
    return bool(
        data_adapter_utils.is_tensorflow_sparse(leaf)
        or data_adapter_utils.is_jax_sparse(leaf)
        or data_adapter_utils.is_scipy_sparse(leaf)
    )


def _native_sparse(leaf: Any) -> Any:
    of_tensorflow = data_adapter_utils.is_tensorflow_sparse(leaf)
    of_jax = data_adapter_utils.is_jax_sparse(leaf)
    match keras.backend.backend():
        case "tensorflow":
            if of_tensorflow:
                return leaf
            convert = "jax_sparse_to_tf_sparse" if of_jax else "scipy_sparse_to_tf_sparse"
            return getattr(data_adapter_utils, convert)(leaf)
        case "jax":
            if of_jax:
                return leaf
            convert = "tf_sparse_to_jax_sparse" if of_tensorflow else "scipy_sparse_to_jax_sparse"
            return getattr(data_adapter_utils, convert)(leaf)
        case _:
            if of_tensorflow:
                import tensorflow as tf

                return np.asarray(tf.sparse.to_dense(leaf))
            return np.asarray(leaf.todense())


def rows(leaf: Any) -> int | None:
    """Returns the length of a leaf's first axis; `None` for a scalar, which has none."""
    if data_adapter_utils.is_tensorflow_ragged(leaf):
        return int(leaf.nrows())
    shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
    return int(shape[0]) if len(shape) else None


def cut(leaf: Any, start: int, stop: int) -> Any:
    """Returns the rows `start` to `stop` of a leaf that came from `host`, as a view if dense."""
    if data_adapter_utils.is_tensorflow_sparse(leaf):
        return array_slicing.TensorflowSparseSliceable(leaf)[start:stop]
    return leaf[start:stop]


def join(leaves: list[Any]) -> Any:
    """Returns leaves that came from `host`, one below the other."""
    leaf = leaves[0]
    if len(leaves) == 1:
        return leaf
    if data_adapter_utils.is_tensorflow_ragged(leaf):
        import tensorflow as tf

        return tf.concat(leaves, axis=0)
    if data_adapter_utils.is_tensorflow_sparse(leaf):
        import tensorflow as tf

        return tf.sparse.concat(0, leaves)
    if data_adapter_utils.is_jax_sparse(leaf):
        from jax.experimental import sparse

        return sparse.bcoo_concatenate(leaves, dimension=0)
    return np.concatenate(leaves)


def reader(leaf: Any) -> Callable[[int, int], Any]:
    """Prepares a whole array, of any library, for being read in slices.

    As Keras does for arrays (not for datasets), floating numbers come out in `keras.config.floatx`
    and a pandas Series as a column. Only the slice is converted: a memory-mapped file stays one.

    Args:
        leaf: An array, tensor, DataFrame, Series or sparse matrix of shape `[rows, ...]`.

    Returns:
        A function of `(start, stop)` that gives those rows as `host` does.
    """
    if _needs_keras(leaf):
        sliceable = array_slicing.convert_to_sliceable(leaf)
        of_pandas = isinstance(sliceable, array_slicing.PandasSliceable)

        def piece(start: int, stop: int) -> Any:
            part = sliceable[start:stop]
            return host(sliceable.convert_to_numpy(part) if of_pandas else part)

        return piece
    if data_adapter_utils.is_jax_array(leaf) or data_adapter_utils.is_tensorflow_tensor(leaf):
        # One transfer, without a copy on a CPU; slicing on the device would be a program each.
        leaf = np.asarray(leaf)
    elif not (hasattr(leaf, "shape") and hasattr(leaf, "__getitem__")):
        leaf = np.asarray(leaf)
    return lambda start, stop: _as_floatx(host(leaf[start:stop]))


def _needs_keras(leaf: Any) -> bool:
    of_pandas = type(leaf).__module__.split(".")[0] == "pandas"
    return of_pandas or data_adapter_utils.is_tensorflow_ragged(leaf) or is_sparse(leaf)


def _as_floatx(array: np.ndarray) -> np.ndarray:
    # "V" is the kind of bfloat16, which NumPy does not know by itself.
    floating = array.dtype.kind in "fV" and array.dtype.name.startswith(("float", "bfloat"))
    return array.astype(keras.config.floatx(), copy=False) if floating else array
