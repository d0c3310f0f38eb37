"""From a model and a batch to a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import keras

from keras_tricks._backend.replay import Data, replay
from keras_tricks._backend.tensor_rows import OUTPUT, Row
from keras_tricks._backend.tensor_trace import Trace
from keras_tricks._tensor_fault import UNKNOWN, Verdict, explain
from keras_tricks._tensor_report import TensorReport
from keras_tricks._tensor_signs import signs

Layers = str | Sequence[str] | None
MOST_SIGNS = 3


def check_layers(layers: Any) -> Layers:
    """Validates the argument `layers`."""
    if layers is None:
        return None
    if isinstance(layers, str):
        try:
            re.compile(layers)
        except re.error as error:
            raise ValueError(
                f"`layers` must be a regular expression or a list of names, got {layers!r} "
                f'({error}). Pass `layers=["{layers}"]` for the layer of that name.'
            ) from error
        return layers
    names = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`layers` must be names or a regular expression, got {layers!r}. "
            "Pass `layers=[layer.name]`."
        )
    return names


def chosen(rows: list[Row], layers: Layers) -> list[Row]:
    """The rows of the layers that were asked for, and those that belong to none."""
    if layers is None:
        return rows
    wanted: Callable[[str], bool]
    if isinstance(layers, str):
        pattern = re.compile(layers)
        wanted = lambda part: pattern.fullmatch(part) is not None  # noqa: E731
    else:
        names = set(layers)
        wanted = names.__contains__
    kept = [row for row in rows if any(wanted(part) for part in _parts(row))]
    if not kept:
        known = dict.fromkeys(_parts(row)[0] for row in rows if row.kind == OUTPUT)
        raise ValueError(
            f"`layers` must name a layer of this model, got {layers!r}. "
            f"Its layers are {', '.join(known)}."
        )
    return kept


def _parts(row: Row) -> list[str]:
    return [re.sub(r"(#\d+)?(\[\d+\])?$", "", part) for part in row.name.split("/")]


def look(model: keras.Model, data: Data, **options: Any) -> tuple[Trace, Verdict]:
    """Replays a step on a batch and says where it is not finite."""
    trace = replay(model, data, **options)
    return trace, explain(trace)


def fault_report(
    step: int, trace: Trace, verdict: Verdict, layers: Layers, notes: list[str]
) -> TensorReport:
    """The report of a step that was not finite."""
    notes = [*notes, *trace.notes]
    if trace.error:
        notes.append(f"The replay ended with {trace.error}.")
    seen = verdict.saw or verdict.propagators
    sentence = verdict.sentence if verdict.saw else "The cause is not determined."
    if not seen and not trace.calls:
        sentence = "The cause is not determined without the batch."
    elif not seen and not trace.error:
        sentence = (
            "The eager replay of this batch is finite, the compiled step was not: the cause is "
            "not determined."
        )
    return TensorReport(
        step=step,
        reason=reason_of(trace),
        producer=verdict.producer,
        propagators=verdict.propagators,
        cause=verdict.cause if verdict.saw else UNKNOWN,
        diagnosis=sentence,
        rows=chosen(trace.rows, layers),
        notes=notes,
    )


def reason_of(trace: Trace) -> str:
    """What was not finite, in a few words."""
    loss = trace.loss
    if loss is not None and not loss.finite:
        return f"the loss is {'NaN' if loss.nans else 'infinite'}"
    for kind in ("gradient", "update ratio"):
        if any(not row.finite for row in trace.of_kind(kind)):
            name = "a gradient" if kind == "gradient" else "an update"
            return f"{name} is not finite, and the loss is"
    if trace.metrics:
        return f"the metric {trace.metrics[0]} is not finite, and the loss is"
    return "the training step was not finite"


def plain_report(step: int, reason: str, trace: Trace, layers: Layers) -> TensorReport:
    """The report of a step in which nothing was noticed."""
    verdict = explain(trace)
    notes = list(trace.notes)
    if trace.error:
        notes.append(f"The replay ended with {trace.error}.")
    if not verdict.saw:
        found = list(islice(signs(trace), MOST_SIGNS))
        return TensorReport(
            step,
            reason,
            cause=found[0].cause if found else "",
            diagnosis=" ".join(f.sentence for f in found) if found else "Nothing unusual.",
            rows=chosen(trace.rows, layers),
            notes=notes,
        )
    return TensorReport(
        step,
        reason,
        producer=verdict.producer,
        propagators=verdict.propagators,
        cause=verdict.cause,
        diagnosis=verdict.sentence,
        rows=chosen(trace.rows, layers),
        notes=notes,
    )
