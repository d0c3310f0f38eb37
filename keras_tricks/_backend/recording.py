"""Sees every call of a model's layers and operations while a step is replayed eagerly."""

from __future__ import annotations

import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_tricks._backend import keras_private, tensors
from keras_tricks._backend.tensor_rows import OUTPUT, Row, relation, statistics
from keras_tricks._backend.tensor_trace import Call, Trace

# An RNN calls its cell for every step of a sequence.
MOST_CALLS = 3
BOUNDED = {"sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0)}
# A sigmoid or tanh this close to its end passes on less than a hundredth of a gradient.
SATURATED_WITHIN = 0.01


def host(tensor: Any) -> np.ndarray:
    """A tensor as an array of the host."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if getattr(tensor, "requires_grad", False):
        tensor = tensor.detach()
    array: np.ndarray = np.asarray(keras.ops.convert_to_numpy(tensor))
    return array


def dtype_of(tensor: Any) -> str:
    """Name of a tensor's type as Keras has it."""
    dtype: str = keras.backend.standardize_dtype(tensor.dtype)
    return dtype


def tensors_in(structure: Any) -> list[Any]:
    """The tensors of a structure whose values can be read, without those that have none."""
    leaves = keras.tree.flatten(structure)
    return [leaf for leaf in leaves if hasattr(leaf, "shape") and tensors.concrete(leaf)]


def source_of(thing: Any) -> str:
    """Python text of a function or method, empty where there is none to be had."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return ""


def is_own(kind: type) -> bool:
    """Whether a class or function is not one of Keras's."""
    return not str(getattr(kind, "__module__", "")).startswith("keras.")


class Recorder:
    """Notes the outputs of calls, and the gradients that come back to them, in a trace."""

    def __init__(self, trace: Trace, sink: Callable[[str, str, np.ndarray], None]) -> None:
        self.trace = trace
        self.sink = sink
        self.values = self.gradients = True
        self._counts: dict[int, int] = {}
        self._bad: set[int] = set()
        self._latest: Any = None

    @contextlib.contextmanager
    def watching(self, model: keras.Model, *, values: bool, gradients: bool) -> Iterator[None]:
        """While this lasts, every call of a part of `model` is noted."""
        self.values, self.gradients = values, gradients
        self._counts.clear()
        operations = keras_private.operations(model)
        for operation in operations:
            # Python finds it before the method of the class; Keras's own way of setting an
            # attribute would track it.
            operation.__dict__["call"] = self._watched(operation)
        try:
            yield
        finally:
            for operation in operations:
                operation.__dict__.pop("call", None)

    def _watched(self, operation: Any) -> Any:
        original = operation.call

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            outputs = original(*args, **kwargs)
            if keras_private.has_layers(operation) and outputs is self._latest:
                return outputs  # of its last layer, which has a row
            name = self._name(operation)
            if self.values:
                self._note(operation, name, (args, kwargs), outputs)
            if self.gradients:
                outputs = self._probed(name, outputs)
            self._latest = outputs
            return outputs

        return call

    def _name(self, operation: Any) -> str:
        count = self._counts[id(operation)] = self._counts.get(id(operation), 0) + 1
        return str(operation.name) if count == 1 else f"{operation.name}#{count}"

    def _probed(self, name: str, outputs: Any) -> Any:
        """The outputs, which tell when a gradient reaches them."""

        def note(gradient: Any) -> None:
            if name not in self.trace.backward:
                self.trace.backward.append(name)
            if not np.isfinite(_float(host(gradient))).all():
                self.trace.bad_gradients.append(name)

        def probe(leaf: Any) -> Any:
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                return leaf
            mask = keras_private.get_mask(leaf)
            out = tensors.probed(leaf, note)
            if mask is not None and out is not leaf:
                keras_private.set_mask(out, mask)
            return out

        return keras.tree.map_structure(probe, outputs)

    def _note(self, operation: Any, name: str, given: Any, outputs: Any) -> None:
        found = tensors_in(outputs)
        if not found:
            return
        arrays = [host(tensor) for tensor in found]
        rows = [
            statistics(name if i == 0 else f"{name}[{i}]", OUTPUT, array, dtype_of(tensor))
            for i, (tensor, array) in enumerate(zip(found, arrays, strict=True))
        ]
        bad = next((i for i, row in enumerate(rows) if not row.finite), None)
        if self._counts[id(operation)] > MOST_CALLS and (bad is None or id(operation) in self._bad):
            return
        if bad is not None:
            self._bad.add(id(operation))
        for i, row in enumerate(rows):
            if i == (bad or 0):
                self.trace.calls.append(
                    _call(operation, row, arrays[i], given if bad is not None else None)
                )
            self.trace.rows.append(row)
            self.sink(OUTPUT, row.name, arrays[i])


def _call(operation: Any, row: Row, array: np.ndarray, given: Any) -> Call:
    """What is kept of a call; `given` are its arguments where its output is not finite."""
    kind = type(operation)
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", "") if activation is not None else ""
    name = name or kind.__name__.lower()
    facts: dict[str, Any] = {}
    if given is not None:
        facts = _inputs(row, array, given)
    return Call(
        name=row.name,
        layer=kind.__name__,
        row=row,
        activation=name,
        source=source_of(kind.call) if is_own(kind) else "",
        saturated=_saturated(name, array),
        dead=_dead(name, array),
        own=is_own(kind),
        composite=keras_private.has_layers(operation),
        bad_weights=_bad_weights(operation) if given is not None else (),
        **facts,
    )


def _inputs(row: Row, array: np.ndarray, given: Any) -> dict[str, Any]:
    found = tensors_in(given)
    arrays = [host(tensor) for tensor in found]
    rows = tuple(
        statistics(f"{row.name} input {i}", OUTPUT, a, dtype_of(t))
        for i, (t, a) in enumerate(zip(found, arrays, strict=True))
    )
    masks = [keras_private.get_mask(tensor) for tensor in found]
    masks += [t for t in found if dtype_of(t) == "bool"]
    masked = 0
    for mask in masks:
        if mask is not None and len(mask.shape) > 1:
            lines = host(mask)
            masked = max(masked, int((~lines.reshape(len(lines), -1).any(axis=1)).sum()))
    finite = all(r.finite for r in rows)
    found_relation = relation(arrays, array) if finite else None
    return {"inputs": rows, "relation": found_relation, "masked_rows": masked}


def _bad_weights(operation: Any) -> tuple[str, ...]:
    """Paths of the weights of a layer that are not finite."""
    return tuple(
        str(weight.path)
        for weight in getattr(operation, "weights", ())
        if not np.isfinite(_float(host(weight.value))).all()
    )


def _float(array: np.ndarray) -> np.ndarray:
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _saturated(activation: str, array: np.ndarray) -> float:
    """Share of outputs at an end of the activation's range."""
    if activation not in BOUNDED or not array.size:
        return 0.0
    low, high = BOUNDED[activation]
    values = _float(array)
    ends = (values < low + SATURATED_WITHIN) | (values > high - SATURATED_WITHIN)
    if activation == "softmax":
        ends = _float(array).max(axis=-1) > high - SATURATED_WITHIN
    return float(ends.mean())


def _dead(activation: str, array: np.ndarray) -> float:
    """Share of units that are zero for every example."""
    if activation not in ("relu", "relu6") or array.ndim < 2:
        return 0.0
    return float((array.reshape(-1, array.shape[-1]) == 0).all(axis=0).mean())
