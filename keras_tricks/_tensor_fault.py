"""Why a step is not finite: the producer, those that passed it on, and the likely cause."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from keras_tricks._backend.tensor_rows import GRADIENT, WEIGHT, Relation, Row
from keras_tricks._backend.tensor_trace import Call, LossFact, Trace

UNKNOWN = "not determined"
# Largest finite numbers of the types that overflow in practice.
LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.40e38, "float64": 1.8e308}
# A weight, output or gradient of this size has left what training makes of a healthy model.
DIVERGED = 1e6


@dataclass(frozen=True)
class Verdict:
    """What a trace shows.

    Attributes:
        producer: Name of the layer, tensor or loss where the first bad value came up, None where
            it is not known.
        propagators: Names of those that only passed it on.
        cause: A few words; `"not determined"` where nothing is known.
        saw: What was seen.
        advice: What to do.
    """

    producer: str | None = None
    propagators: list[str] = field(default_factory=list)
    cause: str = UNKNOWN
    saw: str = ""
    advice: str = ""

    @property
    def sentence(self) -> str:
        """One sentence: what was seen, then what it means."""
        if not self.saw:
            return "Nothing unusual."
        end = f": {self.cause}." if self.cause != UNKNOWN else ". The cause is not determined."
        return f"{self.saw}{end}{' ' * bool(self.advice)}{self.advice}"


def explain(trace: Trace) -> Verdict:
    """Finds where the first value that is not finite came up. The first rule that holds wins."""
    bad = [call for call in trace.calls if not call.row.finite]
    passed_on = [call.name for call in bad]
    rules = (_bad_data, _bad_weight, _bad_call, _bad_loss, _bad_gradient, _bad_update, _bad_metric)
    for rule in rules:
        verdict = rule(trace)
        if verdict is not None:
            names = [name for name in passed_on if name != verdict.producer]
            return Verdict(verdict.producer, names, verdict.cause, verdict.saw, verdict.advice)
    return Verdict(None, passed_on)


def _bad_data(trace: Trace) -> Verdict | None:
    for name, place in trace.places:
        row = next(row for row in trace.rows if row.name == name)
        what = _what(row)
        where = f"example {place[0]}" if place else "the only value"
        if len(place) > 1:
            where += f", column {', '.join(str(i) for i in place[1:])}"
        return Verdict(
            name,
            cause=f"{what} in the {row.kind}",
            saw=f"The {name} holds {row.nans + row.infs} values that are not finite, the first "
            f"at {where}",
            advice="Clean the data.",
        )
    return None


def _bad_weight(trace: Trace) -> Verdict | None:
    rows = [row for row in trace.of_kind(WEIGHT) if not row.finite]
    first = next((c for c in trace.calls if not c.row.finite), None)
    used = set(first.bad_weights) if first is not None else set()
    for row in rows:
        if row.name in used and trace.weights_gone:
            return Verdict(
                saw="The weights from before this step are gone, and those after it are not finite",
                advice="Pass guard=True.",
            )
        if row.name in used:
            return Verdict(
                first.name if first is not None else row.name,
                cause=f"{_what(row)} in the weights before this step",
                saw=f"The weight {row.name} holds {row.nans + row.infs} values that are not finite",
                advice="Restore an earlier checkpoint.",
            )
    return None


def _bad_call(trace: Trace) -> Verdict | None:
    for call in trace.calls:
        if call.row.finite or not all(row.finite for row in call.inputs):
            continue
        cause, advice = _cause_of_call(call, trace)
        return Verdict(
            call.name,
            cause=cause,
            saw=f"{call.name} ({call.layer}) is the first to give {_what(call.row)}, "
            f"{call.row.nans + call.row.infs} of {call.row.size} values, from finite inputs"
            f"{_range_of(call.inputs)}",
            advice=advice,
        )
    return None


def _cause_of_call(call: Call, trace: Trace) -> tuple[str, str]:
    """The cause and the advice for a layer that gave something bad from finite inputs."""
    text = _without_comments(call.source) or call.layer.lower()
    largest = max((row.largest for row in call.inputs if row.size), default=0.0)
    if call.masked_rows:
        return (
            f"{call.masked_rows} examples have every step masked",
            "Drop empty sequences, or keep one step.",
        )
    if call.relation is not None:
        found = _from_relation(call.relation, text, call)
        if found is not None:
            return found
    limit = LARGEST.get(call.row.dtype, LARGEST["float32"])
    if call.row.dtype == "float16" and largest > 50:
        return (
            "overflow in float16, which ends at 65504",
            "Compute this layer in float32, or scale its inputs.",
        )
    if largest > DIVERGED and largest > limit**0.25:
        return _diverged(trace)
    found_weight = max((r.largest for r in trace.of_kind(WEIGHT) if r.size), default=0.0)
    if found_weight > DIVERGED:
        return _diverged(trace)
    return UNKNOWN, ""


def _from_relation(found: Relation, text: str, call: Call) -> tuple[str, str] | None:
    """The cause, from which inputs belong to the bad outputs and what the code mentions."""
    log, root, divides, exp = _mentions(text)
    where, what = found.where, found.what
    at_zero = where in ("zero", "not positive", "row of zeros")
    log_at_zero = log and where != "row of zeros" and not (divides and what in ("nan", "inf"))
    lines = {"constant row": "a row whose values are equal", "one example": "one example"}
    variance = f"division by a variance of zero, of {lines.get(where, 'a column that is constant')}"
    rules = (
        (
            at_zero and (log_at_zero or (where == "zero" and what == "-inf")),
            "logarithm of zero" + " or less" * (where != "zero"),
            _KEEP_POSITIVE,
        ),
        (where == "negative" and log, "logarithm of a negative number", _KEEP_POSITIVE),
        (where == "negative" and root, "square root of a negative number", _KEEP_POSITIVE),
        (
            at_zero and (divides or what in ("nan", "inf")),
            "division by zero",
            "Add a small number to the divisor, or use divide_no_nan.",
        ),
        (
            where.startswith("constant") or (where == "one example" and divides),
            variance,
            "Add an epsilon to the variance.",
        ),
        (
            where == "large" and exp and call.row.dtype != "float16",
            f"overflow of exp at inputs from {found.values[0]:.3g}",
            "Subtract the largest input first, or clip.",
        ),
    )
    return next(((cause, advice) for holds, cause, advice in rules if holds), None)


_KEEP_POSITIVE = "Clip its input above zero, for example ops.maximum(x, 1e-7)."


def _diverged(trace: Trace) -> tuple[str, str]:
    rate = trace.learning_rate
    return (
        f"the training diverged, at a learning rate of {rate:g}"
        if rate is not None
        else "the training diverged",
        "Lower the learning rate, or clip gradients with clipnorm=1.0.",
    )


def _bad_loss(trace: Trace) -> Verdict | None:
    row = trace.loss
    if (row is None or row.finite) and not trace.error:
        return None
    for loss in trace.losses:
        found = _cause_of_loss(loss, trace)
        if found is not None:
            cause, saw, advice = found
            name = loss.name if loss.name == "loss" else f"loss {loss.name}"
            return Verdict(name, cause=cause, saw=saw, advice=advice)
    if row is None:
        return None
    if trace.regularizers:
        return Verdict(
            "loss",
            cause="a loss that a layer or a regulariser adds",
            saw=f"The outputs are finite and {trace.regularizers[0]} is not",
        )
    return Verdict("loss", saw=f"Every output is finite and the loss is {_what(row)}")


def _cause_of_loss(loss: LossFact, trace: Trace) -> tuple[str, str, str] | None:
    """Cause, what was seen, and advice for a loss that is not finite while its outputs are."""
    saw = f"Every output is finite and {loss.name} is not"
    if loss.weight is not None and not abs(loss.weight) < float("inf"):
        return f"its loss weight is {loss.weight}", saw, "Compile with a finite loss_weights."
    if labels_out_of_range(loss):
        first, last = loss.target or (0.0, 0.0)
        return (
            f"a label out of range, of {loss.classes} classes",
            f"The labels go from {first:g} to {last:g}",
            f"Labels must lie in 0 to {loss.classes - 1}.",
        )
    return None if trace.error else _arithmetic_of_loss(loss, trace, saw)


def _arithmetic_of_loss(loss: LossFact, trace: Trace, saw: str) -> tuple[str, str, str] | None:
    log, root, divides, _ = _mentions(_without_comments(loss.source))
    low, high = loss.output or (float("nan"), float("nan"))
    target_low, target_high = loss.target or (0.0, 0.0)
    size, target = max(abs(low), abs(high)), max(abs(target_low), abs(target_high))
    log = log or loss.kind in ("poisson", "kldivergence")
    zero = low <= 0 <= high or target_low <= 0 <= target_high
    diverged, advice = _diverged(trace)
    rules = (
        (
            target > 1e18 and size <= target,
            "targets too large to be squared",
            f"{saw}, with targets to {target:.3g}",
            "Scale the targets.",
        ),
        (size > 1e18, diverged, f"{saw}, with outputs to {size:.3g}", advice),
        (
            log and low <= 0,
            "logarithm of zero" + " or less" * (low < 0),
            f"{saw}, with outputs from {low:.3g}",
            _KEEP_POSITIVE,
        ),
        (
            root and low < 0,
            "square root of a negative number",
            f"{saw}, with outputs from {low:.3g}",
            _KEEP_POSITIVE,
        ),
        (divides and zero, "division by zero", saw, "Add a small number to the divisor."),
    )
    return next((tuple(rest) for holds, *rest in rules if holds), None)  # type: ignore[return-value]


def labels_out_of_range(loss: LossFact) -> bool:
    """Whether a sparse label has no place among the outputs, or a binary one is no share."""
    if loss.target is None or not loss.classes:
        return False
    low, high = loss.target
    if loss.kind == "sparsecategoricalcrossentropy":
        return low < 0 or high >= loss.classes
    return loss.kind == "binarycrossentropy" and (low < 0 or high > 1)


def _bad_gradient(trace: Trace) -> Verdict | None:
    rows = [row for row in trace.of_kind(GRADIENT) if not row.finite]
    if not rows:
        return None
    bad = set(trace.bad_gradients)
    calls = {call.name: call for call in trace.calls}
    # Backwards from the loss: the last call whose output still got a finite gradient made it bad.
    before = None
    for name in trace.backward:
        if name in bad:
            break
        before = name
    else:
        before = before if trace.backward else None
    if before is None:
        return _from_loss(trace, rows[0])
    call = calls.get(before)
    cause, advice = _cause_of_gradient(call, trace)
    kind = f" ({call.layer})" if call is not None else ""
    return Verdict(
        before,
        cause=cause,
        saw=f"Outputs and loss are finite; going back, {before}{kind} is the first to give a "
        f"gradient of {_what(rows[0])}",
        advice=advice,
    )


def _from_loss(trace: Trace, row: Row) -> Verdict:
    text = " ".join(_without_comments(loss.source) for loss in trace.losses)
    _, root, divides, _ = _mentions(text)
    huge = any(max(map(abs, loss.output or (0.0,))) > DIVERGED for loss in trace.losses)
    name = trace.losses[0].name if trace.losses else "loss"
    cause, advice = UNKNOWN, ""
    if root:
        cause, advice = "the derivative of a square root at zero", _INSIDE_ROOT
    elif huge:
        cause, advice = _diverged(trace)
    elif divides:
        cause, advice = "division by zero in the derivative", ""
    return Verdict(
        name if name == "loss" else f"loss {name}",
        cause=cause,
        saw=f"Outputs and loss are finite; the gradient of the loss itself is {_what(row)}",
        advice=advice,
    )


_INSIDE_ROOT = "Add a small number inside the root, for example ops.sqrt(x + 1e-7)."


def _cause_of_gradient(call: Call | None, trace: Trace) -> tuple[str, str]:
    if call is None:
        return UNKNOWN, ""
    log, root, divides, exp = _mentions(_without_comments(call.source) or call.layer.lower())
    recurrent = any(word in call.layer for word in ("RNN", "LSTM", "GRU"))
    rules = (
        (root, "the derivative of a square root at zero", _INSIDE_ROOT),
        (
            log or divides,
            "an infinite derivative at zero",
            "Keep the input away from zero before the call.",
        ),
        (
            recurrent,
            "the gradient explodes through the steps of the sequence",
            "Clip it with clipnorm=1.0.",
        ),
        (
            call.row.dtype == "float16",
            "overflow in float16, which ends at 65504",
            "Use a LossScaleOptimizer.",
        ),
        (exp or call.row.largest > DIVERGED, *_diverged(trace)),
    )
    return next(((cause, advice) for holds, cause, advice in rules if holds), (UNKNOWN, ""))


def _bad_update(trace: Trace) -> Verdict | None:
    rate = trace.learning_rate
    if rate is not None and not abs(rate) < float("inf"):
        return Verdict(
            "optimizer", cause=f"the learning rate is {rate}", saw="Loss and gradients are finite"
        )
    if trace.slots:
        return Verdict(
            "optimizer",
            cause="the optimizer's state was not finite before this step",
            saw=f"Loss and gradients are finite, and {trace.slots[0]} is not",
        )
    if trace.updates_finite:
        return None
    largest = max(trace.of_kind(GRADIENT), key=lambda row: row.largest, default=None)
    if largest is not None and largest.largest > 1e15:
        return Verdict(
            layer_of(largest.name),
            cause="the gradient explodes, so that its square overflows in the optimizer",
            saw=f"Loss and gradients are finite; the gradient of {largest.name} reaches "
            f"{largest.largest:.3g}",
            advice="Clip it with clipnorm=1.0.",
        )
    cause, advice = _diverged(trace)
    return Verdict(
        "optimizer",
        cause=cause,
        saw="Loss and gradients are finite, the update is not",
        advice=advice,
    )


def layer_of(path: str) -> str:
    """The layer that a weight belongs to, from its path."""
    parts = path.split("/")
    return parts[-2] if len(parts) > 1 else path


def _bad_metric(trace: Trace) -> Verdict | None:
    if not trace.metrics:
        return None
    name = trace.metrics[0]
    return Verdict(
        f"metric {name}",
        cause="the metric's own arithmetic",
        saw=f"Loss, gradients and weights are finite; the metric {name} is not",
        advice="The training itself is not affected; guard the metric's division or logarithm.",
    )


def _mentions(text: str) -> tuple[bool, bool, bool, bool]:
    """Whether code, or a name, speaks of a logarithm, a root, a division, an exponential."""
    text = text.lower()
    return (
        bool(re.search(r"log(?!its|istic|ical|ger|s\b)", text)),
        "sqrt" in text or "norm" in text or bool(re.search(r"\*\*\s*0?\.5", text)),
        "/" in text or "divide" in text or "reciprocal" in text,
        bool(re.search(r"exp(?!and|ect)", text)),
    )


def _without_comments(text: str) -> str:
    text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    return re.sub(r"#.*", "", text)


def _what(row: Row) -> str:
    return "NaN" if row.nans and not row.infs else "Inf" if not row.nans else "NaN and Inf"


def _range_of(rows: tuple[Row, ...]) -> str:
    sized = [row for row in rows if row.size and row.min == row.min]
    if not sized:
        return ""
    low, high = min(row.min for row in sized), max(row.max for row in sized)
    return f" of {low:.3g} to {high:.3g}"
