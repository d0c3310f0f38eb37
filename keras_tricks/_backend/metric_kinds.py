"""Which of Keras's metrics stands behind each name in the logs."""

from __future__ import annotations

import inspect
from typing import Any

import keras


def metric_kinds(model: keras.Model) -> dict[str, str]:
    """The results of a model's metrics by name, without a prefix.

    Returns:
        For each name the class or function of Keras behind it, "loss" for any loss, and an empty
        string for what is not Keras's.
    """
    kinds: dict[str, str] = {}
    compiled = getattr(model, "_compile_metrics", None)
    for metric in model.metrics:
        # Private: the compiled metrics are one, whose parts know their outputs.
        if metric is not compiled:
            kinds.setdefault(metric.name, "loss" if metric.name == "loss" else _kind(metric))
    if compiled is not None and compiled.built:
        for name, metric in _named(compiled):
            kinds[name] = _kind(metric)
    return kinds


def _named(compiled: Any) -> list[tuple[str, Any]]:
    """The compiled metrics with the names that `CompileMetrics.result` gives them."""
    named: list[tuple[str, Any]] = []
    counts: dict[str, int] = {}

    def add(name: str, metric: Any) -> None:
        number = counts.get(name, 0)
        counts[name] = number + 1
        named.append((f"{name}_{number}" if number else name, metric))

    for weighted, groups in (
        (False, compiled._flat_metrics),
        (True, compiled._flat_weighted_metrics),
    ):
        for group in groups:
            for metric in group.metrics if group else ():
                before = f"{group.output_name}_" if group.output_name else ""
                name = f"{before}{metric.name}"
                if weighted and name in counts:
                    name = f"{before}weighted_{metric.name}"
                add(name, metric)
    return named


def _kind(metric: Any) -> str:
    if type(metric) is keras.metrics.MeanMetricWrapper:
        function = metric._fn
        if isinstance(function, keras.losses.Loss):
            return "loss"
        module = getattr(function, "__module__", "")
        if module.startswith("keras.src.losses"):
            return "loss"
        return str(function.__name__) if module.startswith("keras.src.") else ""
    keras_own = inspect.getmodule(type(metric))
    name = "" if keras_own is None else keras_own.__name__
    return type(metric).__name__ if name.startswith("keras.src.") else ""
