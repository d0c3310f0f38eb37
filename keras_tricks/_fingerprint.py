"""What must be the same for an interrupted run to go on: the model, its optimizer, its data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_tricks._backend import keras_private

# Names and seeds are given anew in each process; a rate may be changed while training goes on.
_OMITTED = ("name", "seed", "build_config", "learning_rate", "inner_optimizer", "module")


def fingerprint(
    model: keras.Model, data: Mapping[str, Any], *, begun: bool = False
) -> dict[str, Any]:
    """What is compared before an interrupted run goes on, as values that JSON can hold.

    Args:
        model: The model. What is not built yet is left out.
        data: Sizes of the data.
        begun: Whether this process has trained it, so that callbacks may have changed the rate.
    """
    built = keras_private.is_built(model)
    return {
        "layers": _layers(model),
        "weights": [f"{v.name} {list(v.shape)} {v.dtype}" for v in model.weights] if built else [],
        "optimizer": _optimizers(model),
        "rate": None if begun else _rate(model),
        "data": dict(data),
    }


def refusal(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why a run cannot go on, with the value that changed, now and before; None if it can."""
    for name, what in (("layers", "`model`"), ("weights", "`model`"), ("optimizer", "`optimizer`")):
        if saved[name] and now[name] and saved[name] != now[name]:
            return _first_difference(what, saved[name], now[name])
    if None not in (saved["rate"], now["rate"]) and saved["rate"] != now["rate"]:
        return _sentence("`optimizer`", "a learning rate of " + now["rate"], saved["rate"])
    for name, value in now["data"].items():
        before = saved["data"].get(name)
        if value is not None and before is not None and value != before:
            return _sentence("`x`", f"{value} ({name})", f"{before}")
    return None


def _first_difference(what: str, saved: Sequence[str], now: Sequence[str]) -> str:
    for old, new in zip(saved, now, strict=False):
        if old != new:
            return _sentence(what, *_short(new, old))
    return _sentence(what, f"{len(now)} parts", f"{len(saved)}")


def _short(new: str, old: str) -> tuple[str, str]:
    """Two configurations without the entries that they share."""
    name, _, own = new.rstrip(")").partition("(")
    before, _, other = old.rstrip(")").partition("(")
    pairs = list(zip(own.split("; "), other.split("; "), strict=False))
    differing = [(a, b) for a, b in pairs if a != b]
    if name != before or own.count("; ") != other.count("; ") or not differing:
        return new, old
    now, was = ("; ".join(texts) for texts in zip(*differing, strict=True))
    return f"{name}({now})", f"{name}({was})"


def _sentence(what: str, now: str, before: str) -> str:
    return f"{what} must be what the interrupted run had, {before}, got {now}"


def _layers(model: keras.Model) -> list[str]:
    """A line for each layer that has no layers in it: its class and its configuration."""
    return [
        f"{type(layer).__name__}({_config(layer)})"
        for layer in keras_private.flatten_layers(model)
        # A `Sequential` has one more when it is built.
        if len(keras_private.flatten_layers(layer)) == 1
        and not isinstance(layer, keras.layers.InputLayer)
    ]


def _optimizers(model: keras.Model) -> list[str]:
    """The optimizers, the outer one first: class and configuration."""
    optimizer, found = getattr(model, "optimizer", None), []
    while optimizer is not None:
        found.append(f"{type(optimizer).__name__}({_config(optimizer)})")
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


def _rate(model: keras.Model) -> str | None:
    """The learning rate, or its schedule."""
    optimizer = keras_private.innermost_optimizer(getattr(model, "optimizer", None))
    if optimizer is None:
        return None
    try:
        rate = optimizer.get_config()["learning_rate"]
    except (KeyError, NotImplementedError):
        return None
    return _text(rate) if isinstance(rate, Mapping) else f"{float(rate):.7g}"


def _config(part: Any) -> str:
    try:
        config = part.get_config()
    except (NotImplementedError, TypeError, ValueError):
        return ""
    pairs = (f"{name}={_text(value)}" for name, value in config.items() if name not in _OMITTED)
    return "; ".join(pairs)


def _text(value: Any) -> str:
    """A value of a configuration, without what differs from process to process."""
    text = json.dumps(_bare(value), default=str)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _bare(v) for k, v in value.items() if k not in _OMITTED and v is not None}
    if isinstance(value, (list, tuple)):
        return [_bare(entry) for entry in value]
    return value
