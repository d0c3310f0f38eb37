"""The process's generators of random numbers, kept apart from what reads evaluation data."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import keras
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


def captured(generators: Sequence[Any] = ()) -> dict[str, Any]:
    """The states of all generators of the process, as values that JSON can hold.

    Args:
        generators: PyTorch's generators that belong to the data.
    """
    numpy_state = dict(np.random.get_state(legacy=False))  # noqa: NPY002 - users draw from it
    inner = dict(numpy_state["state"])
    inner["key"] = inner["key"].tolist()
    torch = sys.modules.get("torch")
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": inner},
        "keras": _keras_state(),
        "tensorflow": _tensorflow_state(),
        "torch": [] if torch is None else _torch_states(torch),
        "data": [_text(generator.get_state()) for generator in generators],
    }


def put_back(
    states: dict[str, Any], generators: Sequence[Any] = (), *, of_python: bool = True
) -> None:
    """Takes up what `captured` gave.

    Args:
        states: From this process or another.
        generators: As given to `captured`.
        of_python: Whether to set those from which Python code that reads data may draw. False
            sets the backend's alone.
    """
    torch = sys.modules.get("torch")
    _set_keras_state(states["keras"])
    if of_python:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        inner = dict(states["numpy"]["state"])
        inner["key"] = np.asarray(inner["key"], "uint32")
        np.random.set_state({**states["numpy"], "state": inner})  # noqa: NPY002
        for generator, text in zip(generators, states["data"], strict=False):
            generator.set_state(_tensor(torch, text))
    if _backend.NAME == "tensorflow" and states["tensorflow"] is not None:
        generator = _backend.random_state()
        if generator is not None:
            version, words, gauss = states["tensorflow"]
            generator.setstate((version, tuple(words), gauss))
    if torch is not None and states["torch"] and (of_python or _backend.NAME == "torch"):
        own, *gpus = (_tensor(torch, text) for text in states["torch"])
        torch.random.set_rng_state(own)
        if gpus and len(gpus) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(gpus)


def _keras_state() -> list[int] | None:
    generator = keras_private.global_seed_generator()
    if generator is None:
        return None
    return [int(n) for n in keras.ops.convert_to_numpy(_backend.read(generator.state)).ravel()]


def _set_keras_state(state: list[int] | None) -> None:
    if state is None:
        return
    generator = keras_private.global_seed_generator()
    if generator is None:
        generator = keras.random.SeedGenerator(seed=0)
        keras_private.set_global_seed_generator(generator)
    generator.state.assign(np.asarray(state, generator.state.dtype))


def _tensorflow_state() -> Any:
    generator = _backend.random_state() if _backend.NAME == "tensorflow" else None
    return None if generator is None else generator.getstate()


def _torch_states(torch: Any) -> list[str]:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [_text(state) for state in (torch.random.get_rng_state(), *gpus)]


def _text(state: Any) -> str:
    return str(state.cpu().numpy().tobytes().hex())


def _tensor(torch: Any, text: str) -> Any:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
