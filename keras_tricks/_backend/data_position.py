"""Where a running `fit` is in its data, and how to get there again in another process."""

from __future__ import annotations

import contextlib
import queue
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

# Keras tells the kinds of data apart by their adapters, which are not public.
from keras.src.trainers import data_adapters

from keras_tricks import _backend
from keras_tricks._backend import keras_private

KINDS = {
    data_adapters.ArrayDataAdapter: "arrays",
    data_adapters.TFDatasetAdapter: "tf.data.Dataset",
    data_adapters.PyDatasetAdapter: "PyDataset",
    data_adapters.TorchDataLoaderAdapter: "DataLoader",
    data_adapters.GeneratorDataAdapter: "generator",
}


@dataclass(frozen=True)
class Passed:
    """What some epochs have done to the data.

    Attributes:
        made: Iterators that Keras made, without one that the next epoch goes on with.
        begun: Those of them of which something was read.
        carried: Whether the next epoch goes on with an iterator.
        seen: Batches that were read of it.
    """

    made: int
    begun: int
    carried: bool
    seen: int


def passed(
    epochs: int, *, steps_per_epoch: int | None, num_batches: int | None, at_once: int
) -> Passed:
    """What `epochs` epochs have done, by Keras's rules, whose iterators can span epochs.

    Args:
        epochs: How many.
        steps_per_epoch: As given to `fit`; None for a pass in each epoch.
        num_batches: Batches in a pass, None where Keras does not know.
        at_once: Batches of an execution.
    """
    if steps_per_epoch is None:
        # Keras makes another one at the end of an epoch whose length it knows, and does not use it.
        made = epochs if num_batches is None else 2 * epochs
        return Passed(made, epochs, carried=False, seen=0)
    made, begun, current, seen = 0, 0, False, 0
    for _ in range(epochs):
        if not current:
            made, current, seen = made + 1, True, 0
        for _ in range(0, steps_per_epoch, at_once):
            if num_batches and seen >= num_batches:
                break
            begun += seen == 0
            seen += at_once
        if num_batches and seen >= num_batches:
            made, seen = made + 1, 0
    return Passed(made - current, begun - (seen > 0), carried=current, seen=seen)


class DataPosition:
    """The data of the `fit` that is beginning.

    Args:
        fit: Local variables of that `fit`: see `keras_private.running_fit`.
        at_once: Batches of an execution.

    Attributes:
        kind: What the data is.
        first_epoch: Epoch at which a `fit` begins that was not interrupted.
        facts: What must be the same in the next process: sizes, where they are known.
    """

    def __init__(self, fit: dict[str, Any], at_once: int) -> None:
        self._iterator = fit["epoch_iterator"]
        self._adapter = self._iterator.data_adapter
        self._at_once = at_once
        self._passed = Passed(0, 0, carried=False, seen=0)
        self._forget_early_batches()
        self.kind = next(
            (name for kind, name in KINDS.items() if isinstance(self._adapter, kind)), "other"
        )
        self.first_epoch = int(fit.get("initial_epoch") or 0)
        self.facts = {
            "kind": self.kind,
            "examples": keras_private.array_rows(self._adapter),
            "batches per epoch": self._iterator.num_batches,
            "`steps_per_epoch`": self._iterator.steps_per_epoch,
        }

    @property
    def learned_batches(self) -> int | None:
        """Batches of a pass as far as Keras knows by now."""
        return keras_private.known_batches(self._iterator)

    @property
    def between_passes(self) -> bool:
        """Whether the epoch that begins starts a pass."""
        return keras_private.between_passes(self._iterator)

    @property
    def reads_ahead(self) -> bool:
        """Whether Python code that reads the data runs in other threads, ahead of the training."""
        if self.kind not in ("PyDataset", "generator", "DataLoader", "other"):
            return False
        workers = getattr(getattr(self._adapter, "py_dataset", None), "workers", 1)
        return _backend.NAME == "tensorflow" or workers > 1

    def _forget_early_batches(self) -> None:
        """Drops what the workers of a `PyDataset` fetched when Keras built the model.

        Keras would hand it out in the first epoch, as much as there was time for, and leave out
        as many batches at its end: no two processes would train on the same.
        """
        enqueuer = getattr(self._adapter, "enqueuer", None)
        if enqueuer is None or enqueuer.is_running():
            return
        with contextlib.suppress(queue.Empty):
            while True:
                enqueuer.ready_queue.get_nowait()

    def batch_spec(self) -> Any:
        """A batch without values, from which TensorFlow's `fit`, which builds late, can build."""
        dataset = keras_private.tf_read(self._iterator)
        return None if dataset is None else keras.tree.map_structure(_symbol, dataset.element_spec)

    def unseeded(self) -> str | None:
        """What in a `tf.data.Dataset` draws another order in each process, None for nothing."""
        waiting = [keras_private.tf_dataset(self._adapter)]
        while waiting:
            dataset = waiting.pop()
            if dataset is None:
                continue
            seeds = keras_private.tf_seeds(dataset)
            if seeds is not None and not any(_number(seed) for seed in seeds):
                return type(dataset).__name__.strip("_").removesuffix("Dataset").lower()
            waiting.extend(keras_private.tf_inputs(dataset))
        return None

    def settle_order(self, model: keras.Model, seed: int | None) -> int | None:
        """Gives the order of shuffled arrays a seed where TensorFlow has none.

        Args:
            model: The model.
            seed: The seed of the process before, None in the first.

        Returns:
            The seed, None where the order has one already.
        """
        if _backend.NAME != "tensorflow" or self.kind != "arrays":
            return None
        if not keras_private.shuffles_arrays(self._adapter):
            return None
        if seed is None:
            if _backend.global_seed() is not None:
                return None
            seed = random.SystemRandom().randrange(1, 2**31)
        dataset = _backend.with_seed(seed, self._adapter.get_tf_dataset)
        distribute = model.distribute_strategy.experimental_distribute_dataset
        keras_private.set_tf_dataset(self._iterator, distribute(dataset))
        return seed

    def pass_over(self, epoch: int, learned_batches: int | None) -> int:
        """Does to the data what the epochs before `epoch` did, as far as it is not reading it.

        Args:
            epoch: Epoch at which `fit` is to begin.
            learned_batches: What Keras had counted.

        Returns:
            Batches to read before that epoch begins: see `read_on`.
        """
        epochs = epoch - self.first_epoch
        if epochs <= 0:
            return 0
        done = passed(
            epochs,
            steps_per_epoch=self._iterator.steps_per_epoch,
            num_batches=self.learned_batches,
            at_once=self._at_once,
        )
        if self.kind == "PyDataset":
            for _ in range(epochs):  # which may put their order at random
                self._adapter.py_dataset.on_epoch_begin()
                self._adapter.py_dataset.on_epoch_end()
        dataset = keras_private.tf_dataset(self._adapter)
        if dataset is not None:  # each iterator takes the next order of a shuffled dataset
            if _backend.NAME == "tensorflow":
                for _ in range(done.made):
                    keras_private.new_pass(self._iterator)
            else:  # there it is made when the first batch is read
                for _ in range(done.begun):
                    iter(dataset)
        self._passed = done
        keras_private.set_known_batches(self._iterator, learned_batches)
        return done.seen

    def read_on(self, put_back: Callable[[], object]) -> None:
        """Reads what the epochs before have read of a pass that spans them.

        Args:
            put_back: Sets the random state in which that pass began.

        Raises:
            ValueError: If there are not so many.
        """
        first, batches = self._passed.made == 0, self._passed.seen
        if not self._passed.carried:
            put_back()
            return
        if first:  # Keras makes it when its first epoch has begun, any other before that
            put_back()
        iterator = keras_private.new_pass(self._iterator)
        keras_private.carry_pass(self._iterator, iterator, batches)
        if not first:
            put_back()
        for count in range(batches):
            try:
                next(iterator)
            except _backend.STOP as error:
                raise ValueError(
                    f"the training data ended after {count} batches, of which {batches} were used "
                    "before the interruption. Pass the data that the run began with."
                ) from error

    def generators(self) -> list[Any]:
        """Generators of random numbers that the data has for itself (a torch `DataLoader`'s)."""
        loader = keras_private.torch_loader(self._adapter)
        if loader is None:
            return []
        batch_sampler = getattr(loader, "batch_sampler", None)
        owners = [loader, loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
        found = {
            id(owner.generator): owner.generator
            for owner in owners
            if getattr(owner, "generator", None) is not None
        }
        torch = sys.modules["torch"]
        return [g for g in found.values() if isinstance(g, torch.Generator)]


def _symbol(spec: Any) -> Any:
    shape = getattr(spec, "shape", None)
    if shape is None or not hasattr(spec, "dtype"):  # an optional part that is never there
        return None
    if shape.rank is None:
        raise ValueError(
            "`model` must be built before a `fit` on data of unknown rank is resumed. Call the "
            "model on one batch before `fit`."
        )
    return keras.KerasTensor(tuple(shape.as_list()), dtype=spec.dtype.name)


def _number(seed: Any) -> int:
    return 0 if seed is None else int(seed)
