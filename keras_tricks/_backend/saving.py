"""Keras's own savers, writing a snapshot instead of the live model, in another thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Private: `save_model` and `save_weights_only` hold the whole file in memory as well as the
# snapshot, and read each variable into a copy. The walk through a model's parts, its place in the
# file and its configuration are theirs all the same.
from keras.src.backend.common import global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving import saving_lib
from keras.src.saving.keras_saveable import KerasSaveable

from keras_tricks._backend.archive import ROOM, around
from keras_tricks._backend.snapshot import Snapshot
from keras_tricks.host import Quiet, Sink

_KINDS = (
    "Operation",
    "Layer",
    "Functional",
    "Sequential",
    "Metric",
    "Optimizer",
    "Loss",
    "Cross",
    "Feature",
)
_LARGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 24


class Saver:
    """Writes snapshots of one model, whose parts it looks up once.

    Attributes:
        variables: Every variable that a file of the model holds: weights, optimizers, metrics,
            seeds.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        found: dict[int, keras.Variable] = {}
        self._passed_on: set[int] = set()
        with _known_attributes():
            for part in _parts(model):
                own = [v for v in getattr(part, "variables", ()) if isinstance(v, keras.Variable)]
                found.update({id(variable): variable for variable in own})
                if _hands_on(part):
                    self._passed_on |= {id(variable) for variable in own}
        self.variables = list(found.values())

    def write_weights(self, path: Path, snapshot: Snapshot, quiet: Quiet) -> None:
        """Writes a `.weights.h5` file, the optimizer's state included."""
        with _known_attributes(), _Scope(snapshot, self._passed_on):
            self._write_h5(_SnapshotStore(path, snapshot, quiet, room=0), assets=None)

    def write_model(self, path: Path, snapshot: Snapshot, quiet: Quiet) -> None:
        """Writes a `.keras` file."""
        with _known_attributes(), _Scope(snapshot, self._passed_on):
            config, metadata = saving_lib._serialize_model_as_json(self._model)
            # It looks at the archive when it is closed; until then anything will do.
            assets = saving_lib.DiskIOStore(saving_lib._ASSETS_DIRNAME, archive=True, mode="w")
            try:
                self._write_h5(_SnapshotStore(path, snapshot, quiet, room=ROOM), assets)
                with around(path, saving_lib._VARS_FNAME_H5, quiet) as archive:
                    archive.writestr(saving_lib._METADATA_FILENAME, metadata)
                    archive.writestr(saving_lib._CONFIG_FILENAME, config)
                    assets.archive = archive
                    assets.close()
            finally:
                if assets.archive is True:
                    assets.archive = None  # nothing is added when its folder is removed
                    assets.close()

    def _write_h5(self, store: _SnapshotStore, assets: Any) -> None:
        try:
            saving_lib._save_state(
                self._model,
                weights_store=store,
                assets_store=assets,
                inner_path="",
                visited_saveables=set(),
            )
        finally:
            store.close()


def check_configuration(model: keras.Model) -> None:
    """Raises what Keras raises for a model whose configuration cannot be written."""
    saving_lib._serialize_model_as_json(model)


class _SnapshotStore(saving_lib.H5IOStore):
    """Takes the value of a variable from the snapshot, without a copy.

    Args:
        path: The file.
        snapshot: The values.
        quiet: Runs what takes long.
        room: Bytes to leave free before the content.
    """

    def __init__(self, path: Path, snapshot: Snapshot, quiet: Quiet, *, room: int) -> None:
        self._sink = Sink(path, room=room)
        self._snapshot = snapshot
        self._quiet = quiet
        super().__init__(path, mode="w")

    def _get_h5_file(self, path_or_io: Any, mode: str | None = None) -> Any:
        # Keras's own, which is imported when it is first used.
        return saving_lib.h5py.File(self._sink, mode=mode or self.mode)

    def close(self) -> None:
        super().close()
        self._sink.close()

    def __setitem__(self, key: str, value: Any) -> None:
        if self._sink.error is not None:
            raise self._sink.error
        if not self._h5_entry_initialized:
            self._create_h5_group(self._h5_entry_path)
        array = self._array(value)
        dataset = self._h5_entry_group.create_dataset(key, array.shape, array.dtype)
        if array.dtype.name == "bfloat16":  # HDF5 has no such type; Keras reads this mark
            dataset.attrs["dtype"] = "bfloat16"
        if array.nbytes < _LARGE_BYTES:
            dataset[...] = array
            return
        rows = max(1, _PIECE_BYTES // (array.nbytes // array.shape[0]))
        for start in range(0, array.shape[0], rows):
            piece = np.s_[start : start + rows]
            self._quiet(lambda piece=piece: dataset.write_direct(array, piece, piece))  # type: ignore[misc]

    def _array(self, value: Any) -> np.ndarray:
        """The value as a contiguous array."""
        if isinstance(value, keras.Variable):
            value = self._snapshot.array(value)
        elif not isinstance(value, np.ndarray):
            value = keras.ops.convert_to_numpy(value)
        if value.dtype == object and value.ndim == 0 and isinstance(value[()], _Whole):
            value = value[()].array
        return np.ascontiguousarray(value).reshape(value.shape)


class _Whole:
    """Stands for a large value where Keras's optimizers would make a copy of it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        """What a TensorFlow variable asks for: an array of no dimension that holds this object."""
        holder = np.empty((), object)
        holder[()] = self
        return holder

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy()


class _Scope(keras.StatelessScope):
    """Makes every variable read as it was when the snapshot was taken, in this thread alone."""

    def __init__(self, snapshot: Snapshot, passed_on: set[int]) -> None:
        super().__init__(initialize_variables=False)
        self._snapshot = snapshot
        self._passed_on = passed_on

    def get_current_value(self, variable: keras.Variable) -> Any:
        array = self._snapshot.array(variable)
        if id(variable) in self._passed_on and array.nbytes >= _LARGE_BYTES:
            return _Whole(array)
        return keras.ops.convert_to_tensor(array, dtype=variable.dtype)


def _hands_on(part: Any) -> bool:
    """Whether an optimizer gives its values to the store as they are, so that nothing is lost."""
    base = BaseOptimizer.save_own_variables
    return isinstance(part, BaseOptimizer) and type(part).save_own_variables is base


@contextmanager
def _known_attributes() -> Iterator[None]:
    """Tells Keras's walk which attributes to pass over.

    `get_attr_skipset` looks under this name and remembers under another, so that it makes a
    reference object for each part of a model, each time. An `Optimizer` creates a variable, which
    is an error in a stateless scope.
    """
    names = {f"saving_attr_skiplist_{kind}": found for kind, found in _skip_sets().items()}
    before = {name: global_state.get_global_attribute(name) for name in names}
    for name, found in names.items():
        global_state.set_global_attribute(name, found)
    try:
        yield
    finally:
        for name, found in before.items():
            global_state.set_global_attribute(name, found)


@functools.cache
def _skip_sets() -> dict[str, set[str]]:
    """Attributes of each kind of part that hold nothing to save."""
    found: dict[str, set[str]] = {}

    def collect() -> None:
        found.update({kind: saving_lib.get_attr_skipset(kind) for kind in _KINDS})

    # Keras counts its automatic names by thread: the reference objects take none of the user's.
    thread = threading.Thread(target=collect, name="keras_tricks-names")
    thread.start()
    thread.join()
    return found


def _parts(model: keras.Model) -> list[Any]:
    """All that Keras's savers visit: layers, optimizers, metrics, losses, wherever they hang."""
    found: list[Any] = []
    seen: dict[int, Any] = {}  # keeps what it has seen alive, so that no number comes twice
    waiting: list[Any] = [model]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, KerasSaveable):
            seen[id(thing)] = thing
            found.append(thing)
            waiting.extend(child for _, child in saving_lib._walk_saveable(thing))
        elif isinstance(thing, (list, tuple, dict)):
            seen[id(thing)] = thing
            waiting.extend(thing.values() if isinstance(thing, dict) else thing)
    return found
