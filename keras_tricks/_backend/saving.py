"""Keras's own savers, writing a snapshot instead of the live model, in another thread."""

from __future__ import annotations

import functools
import threading
import zipfile
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
from keras.src.saving import saving_lib
from keras.src.saving.keras_saveable import KerasSaveable

from keras_tricks._backend.snapshot import Snapshot

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
_CHUNK_BYTES = 1 << 22


def saved_variables(model: keras.Model) -> list[keras.Variable]:
    """Every variable that a file of the model holds: weights, optimizers, metrics, seeds."""
    found: dict[int, keras.Variable] = {}
    with _known_attributes():
        for part in _parts(model):
            for variable in getattr(part, "variables", ()):
                if isinstance(variable, keras.Variable):
                    found[id(variable)] = variable
    return list(found.values())


def check_configuration(model: keras.Model) -> None:
    """Raises what Keras raises for a model whose configuration cannot be written."""
    saving_lib._serialize_model_as_json(model)


def write_weights(model: keras.Model, path: Path, snapshot: Snapshot) -> None:
    """Writes a `.weights.h5` file, the optimizer's state included."""
    with _reading(snapshot):
        _write_h5(model, path, snapshot, assets=None)


def write_model(model: keras.Model, path: Path, snapshot: Snapshot) -> None:
    """Writes a `.keras` file."""
    weights = path.with_name(f"{path.name}.weights.h5")
    try:
        with _reading(snapshot), zipfile.ZipFile(path, "w") as archive:
            config, metadata = saving_lib._serialize_model_as_json(model)
            archive.writestr(saving_lib._METADATA_FILENAME, metadata)
            archive.writestr(saving_lib._CONFIG_FILENAME, config)
            assets = saving_lib.DiskIOStore(saving_lib._ASSETS_DIRNAME, archive=archive, mode="w")
            try:
                _write_h5(model, weights, snapshot, assets)
                _add_file(archive, weights, saving_lib._VARS_FNAME_H5)
            except BaseException:
                assets.archive = None  # then nothing is added when its folder is removed
                raise
            finally:
                assets.close()
    finally:
        weights.unlink(missing_ok=True)


def _write_h5(model: keras.Model, path: Path, snapshot: Snapshot, assets: Any) -> None:
    store = _SnapshotStore(path, snapshot)
    try:
        saving_lib._save_state(
            model,
            weights_store=store,
            assets_store=assets,
            inner_path="",
            visited_saveables=set(),
        )
    finally:
        store.close()


def _add_file(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    """Adds a file as it is. Larger pieces than `ZipFile.write` takes: fewer turns of the GIL."""
    with (
        path.open("rb", buffering=0) as source,
        archive.open(name, "w", force_zip64=True) as target,
    ):
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)


class _SnapshotStore(saving_lib.H5IOStore):
    """Takes the value of a variable from the snapshot, without a copy, and lets it go."""

    def __init__(self, path: Path, snapshot: Snapshot) -> None:
        super().__init__(path, mode="w")
        self._snapshot = snapshot

    def __setitem__(self, key: str, value: Any) -> None:
        if not self._h5_entry_initialized:
            self._create_h5_group(self._h5_entry_path)
        array = self._array(value)
        dataset = self._h5_entry_group.create_dataset(key, data=array)
        if array.dtype.name == "bfloat16":  # HDF5 has no such type; Keras reads this mark
            dataset.attrs["dtype"] = "bfloat16"
        if isinstance(value, keras.Variable):
            self._snapshot.written(value, dataset)

    def _array(self, value: Any) -> np.ndarray:
        if isinstance(value, keras.Variable):
            return self._snapshot.array(value)
        if isinstance(value, np.ndarray):
            return value
        array: np.ndarray = keras.ops.convert_to_numpy(value)
        return array


class _Scope(keras.StatelessScope):
    """Makes every variable read as it was when the snapshot was taken, in this thread alone."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(initialize_variables=False)
        self._snapshot = snapshot

    def get_current_value(self, variable: keras.Variable) -> Any:
        return self._snapshot.value(variable)


@contextmanager
def _reading(snapshot: Snapshot) -> Iterator[None]:
    with _known_attributes(), _Scope(snapshot):
        yield


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
