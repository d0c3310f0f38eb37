"""The process's generators of random numbers, kept apart from what reads evaluation data."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import keras_private

Element = TypeVar("Element")


class OwnRandomness:
    """States for one reader, in the place of the training's as long as it reads.

    A user's generator, `PyDataset` or `DataLoader` may shuffle or augment with the generators
    that the training draws from: Python's, NumPy's, Keras's and the backend's. The reader
    begins where they stand, goes on from batch to batch, and they never move.

    Only while it reads, not for the whole evaluation: a thread that prepares training batches
    meanwhile keeps what it draws.
    """

    def __init__(self) -> None:
        self._own: Any = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts, the process draws from the reader's states."""
        training = _states()
        _set_states(_begun(training) if self._own is None else self._own)
        try:
            yield
        finally:
            self._own = _states()
            _set_states(training)

    def elements(self, stream: Generator[Element, None, None]) -> Generator[Element, None, None]:
        """Yields the elements of `stream`, which runs with the reader's states alone."""
        try:
            while True:
                with self.reading():
                    try:
                        element = next(stream)
                    except StopIteration:
                        return
                yield element
        finally:
            with self.reading():
                stream.close()


def _states() -> tuple[Any, ...]:
    return (
        random.getstate(),
        np.random.get_state(legacy=False),  # noqa: NPY002 - users draw from it
        keras_private.global_seed_generator(),
        _backend.random_state(),
    )


def _set_states(states: tuple[Any, ...]) -> None:
    of_python, of_numpy, of_keras, of_backend = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    keras_private.set_global_seed_generator(of_keras)
    _backend.set_random_state(of_backend)


def _begun(training: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a reader begins with.

    Keras's generator is a variable, which is replaced and not copied; the reader's is made
    when it is first asked for.
    """
    of_python, of_numpy, _, of_backend = training
    return of_python, of_numpy, None, _backend.own_random_state(of_backend)
