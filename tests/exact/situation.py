"""What a situation is: a model, its examples, and the right values for them."""

import functools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

ROWS = 1001  # of the largest set; smaller ones are its first rows
SITUATIONS: dict[str, "Situation"] = {}
Builder = Callable[[bool, int], keras.Model]


@dataclass(frozen=True)
class Reading:
    """What the independent calculation starts from.

    `predictions` are the model's, one row per example, from one call on all rows; everything
    after them is calculated in NumPy.
    """

    model: keras.Model
    x: Any
    y: Any
    weight: Any
    predictions: Any
    batch_size: int

    @property
    def rows(self) -> int:
        """Examples."""
        return len(first_leaf(self.x))

    def part(self, rows: slice) -> "Reading":
        """Returns the reading of some of the rows."""
        cut = functools.partial(keras.tree.map_structure, lambda leaf: at(leaf, rows))
        return replace(
            self,
            x=cut(self.x),
            y=cut(self.y),
            weight=cut(self.weight),
            predictions=cut(self.predictions),
        )


@dataclass(frozen=True)
class Situation:
    """One way to use Keras, with the right values for it.

    `build(jit_compile, batch_size)` returns a compiled model and `data(rng)` its 1001 examples
    `(x, y, sample_weight)`. `right(reading)` returns every key of the result with its value.
    `notes` are the names that must stand in `.notes`, each once. `fixed` says that the model
    knows its batch size. `without` are the forms of data in which Keras itself cannot express
    these examples. `rounds_when_compiled` says that the compiler decides what is rounded to half
    precision: then the predictions are the compiled model's.
    """

    name: str
    build: Builder
    data: Callable[[np.random.Generator], tuple[Any, Any, Any]]
    right: Callable[[Reading], dict[str, float]]
    notes: frozenset[str] = frozenset()
    fixed: bool = False
    without: frozenset[str] = frozenset()
    rounds_when_compiled: bool = False


def situation(
    name: str,
    data: Callable[[np.random.Generator], tuple[Any, Any, Any]],
    *,
    right: Callable[[Reading], dict[str, float]],
    notes: Iterable[str] = (),
    without: Iterable[str] = (),
    fixed: bool = False,
    rounds_when_compiled: bool = False,
) -> Callable[[Builder], Builder]:
    """Registers the decorated `build(jit_compile, batch_size)`; the rest as in `Situation`."""

    def register(build: Builder) -> Builder:
        SITUATIONS[name] = Situation(
            name,
            build,
            data,
            right,
            notes=frozenset(notes),
            without=frozenset(without),
            fixed=fixed,
            rounds_when_compiled=rounds_when_compiled,
        )
        return build

    return register


def first_leaf(structure: Any) -> np.ndarray:
    """Returns the first array of a structure."""
    return next(leaf for leaf in keras.tree.flatten(structure) if leaf is not None)


def at(leaf: Any, rows: slice) -> Any:
    """Returns a copy of some rows, so that nobody can change the originals; `None` stays."""
    return None if leaf is None else np.array(leaf[rows])


@functools.cache
def everything(name: str) -> tuple[Any, Any, Any]:
    """Returns the 1001 examples of a situation: `(x, y, sample_weight)`."""
    return SITUATIONS[name].data(np.random.default_rng(zlib.crc32(name.encode())))


def examples(name: str, rows: int) -> tuple[Any, Any, Any]:
    """Returns fresh copies of the first `rows` examples of a situation."""
    cut = functools.partial(keras.tree.map_structure, lambda leaf: at(leaf, slice(rows)))
    x, y, weight = everything(name)
    return cut(x), cut(y), cut(weight)


# Building blocks --------------------------------------------------------------------------------


def features(rng: np.random.Generator, width: int = 4, rows: int = ROWS) -> np.ndarray:
    """Returns inputs `[rows, width]` that drift, so that no batch resembles another."""
    drift = np.linspace(0.5, 2.0, rows)[:, None]
    return (rng.normal(size=(rows, width)) * drift).astype("float32")


def targets(rng: np.random.Generator, width: int = 1, rows: int = ROWS) -> np.ndarray:
    """Returns regression targets `[rows, width]` that drift as well."""
    return (rng.normal(size=(rows, width)) + np.linspace(0, 3, rows)[:, None]).astype("float32")


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns sample weights `shape`, a fifth of them zero, the first row's not."""
    drawn = rng.uniform(0.1, 2.0, size=shape) * (rng.uniform(size=shape) > 0.2)
    drawn[0] = 1.5
    return drawn.astype("float32")


def dense(units: int, seed: int, **settings: Any) -> keras.layers.Dense:
    """Returns a `Dense` layer with the same weights each time."""
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
        bias_initializer=keras.initializers.RandomUniform(-0.3, 0.3, seed=seed),
        **settings,
    )


def compiled(model: keras.Model, jit_compile: bool, **settings: Any) -> keras.Model:
    """Returns the model, compiled with SGD unless `settings` say otherwise."""
    model.compile(**{"optimizer": "sgd", "jit_compile": jit_compile, **settings})
    return model


def regression(jit_compile: bool, **settings: Any) -> keras.Model:
    """Returns a compiled net of two layers with one output."""
    layers = [keras.Input((4,)), dense(3, 1, activation="tanh"), dense(1, 2)]
    return compiled(keras.Sequential(layers), jit_compile, **settings)
