"""Why a finite loss does not move: signs in a replayed step, the strongest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keras_tricks._backend.tensor_rows import GRADIENT, INPUT, RATIO, WEIGHT, Row
from keras_tricks._backend.tensor_trace import Trace
from keras_tricks._tensor_fault import Verdict, labels_out_of_range, layer_of

# Share of units, or of values, from which a layer passes on nothing to speak of.
MOST = 0.9
# Standardised inputs lie within a few units; pictures of 0 to 255 and raw measures do not.
UNSCALED = 30.0
# First kernel's gradient over the last one's. A sigmoid passes on at most a quarter.
VANISHED = 1e-4
EXPLODED = 1e4
# Updates are commonly a thousandth of their weight.
SMALL_RATIO, LARGE_RATIO = 1e-6, 0.1


def signs(trace: Trace) -> Iterator[Verdict]:
    """Every sign in the trace, the strongest first."""
    for rule in _RULES:
        yield from rule(trace)


def _nothing_learns(trace: Trace) -> Iterator[Verdict]:
    if trace.learning_rate == 0:
        yield Verdict(
            "optimizer",
            cause="the learning rate is 0",
            saw="No weight would move",
            advice="Set a learning rate, 1e-3 to begin with.",
        )
    if trace.frozen and not trace.trainable:
        yield Verdict(
            trace.frozen[0],
            cause="every layer is frozen",
            saw="No weight is trained",
            advice="Set layer.trainable = True and compile again.",
        )


def _data(trace: Trace) -> Iterator[Verdict]:
    for name in trace.constant:
        kind = "targets" if name.startswith("target") else "inputs"
        yield Verdict(
            name,
            cause=f"constant {kind}",
            saw=f"Every example of the batch has the same {name}",
            advice="Shuffle, and look at how the data is made.",
        )
    for loss in trace.losses:
        if labels_out_of_range(loss):
            low, high = loss.target or (0.0, 0.0)
            yield Verdict(
                f"loss {loss.name}",
                cause="a label out of range",
                saw=f"The targets of {loss.name} go from {low:g} to {high:g}",
                advice="Binary targets must lie in 0 to 1."
                if loss.kind.startswith("binary")
                else f"Labels must lie in 0 to {loss.classes - 1}.",
            )


def _logits(trace: Trace) -> Iterator[Verdict]:
    for loss in trace.losses:
        if loss.from_logits is None and "crossentropy" not in loss.kind:
            continue
        low, high = loss.output or (0.0, 1.0)
        if not loss.from_logits and (low < -1e-3 or high > 1 + 1e-3):
            yield Verdict(
                f"loss {loss.name}",
                cause="logits given to a loss that expects probabilities",
                saw=f"{loss.name} gets outputs of {low:.3g} to {high:.3g}",
                advice="Pass from_logits=True to the loss, or end with a softmax or sigmoid.",
            )
        bounded = loss.activation in ("softmax", "sigmoid")
        if loss.from_logits and bounded:
            yield Verdict(
                f"loss {loss.name}",
                cause="probabilities given to a loss that expects logits",
                saw=f"{loss.name} gets outputs of a {loss.activation}, {low:.3g} to {high:.3g}",
                advice="Leave out from_logits=True, or the activation.",
            )


def _zero_kernels(trace: Trace) -> Iterator[Verdict]:
    kernels = [row for row in trace.of_kind(WEIGHT) if _is_kernel(row)]
    gradients = {row.name: row for row in trace.of_kind(GRADIENT)}
    for row in kernels:
        if row.min == row.max and row.name in gradients and row.shape[-1] > 1:
            yield Verdict(
                layer_of(row.name),
                cause="initialised to a constant, so that all units stay alike",
                saw=f"Every value of {row.name} is {row.min:g}",
                advice='Use the default kernel_initializer, "glorot_uniform".',
            )


def _dead_units(trace: Trace) -> Iterator[Verdict]:
    for call in trace.calls:
        if call.dead >= MOST:
            yield Verdict(
                call.name,
                cause="dead ReLUs",
                saw=f"{call.dead:.0%} of the units of {call.name} are zero for every example",
                advice="Lower the learning rate, or use leaky_relu; look at the bias before it.",
            )


def _unscaled(trace: Trace) -> Iterator[Verdict]:
    for row in trace.of_kind(INPUT):
        if row.dtype.startswith("float") and row.largest > UNSCALED:
            yield Verdict(
                row.name,
                cause="unscaled inputs",
                saw=f"The {row.name} lies in {row.min:.3g} to {row.max:.3g}",
                advice="Standardise it, with keras.layers.Normalization for example.",
            )


def _saturated(trace: Trace) -> Iterator[Verdict]:
    for call in trace.calls:
        if call.saturated >= MOST:
            yield Verdict(
                call.name,
                cause=f"{call.activation} saturated",
                saw=f"{call.saturated:.0%} of the outputs of {call.name} lie at an end of its "
                "range",
                advice="Scale its inputs, or initialise its weights smaller.",
            )


def _gradients(trace: Trace) -> Iterator[Verdict]:
    rows = [row for row in trace.of_kind(GRADIENT) if _is_kernel(row)]
    if len(rows) < 2:
        return
    first, last = (_rms(rows[0]), _rms(rows[-1]))
    if last > 0 and first / last < VANISHED:
        yield Verdict(
            layer_of(rows[0].name),
            cause="the gradient vanishes towards the input",
            saw=f"The gradient of {rows[0].name} is {first:.2g}, that of {rows[-1].name} "
            f"{last:.2g}",
            advice="Use relu or gelu, residual connections, or batch normalisation.",
        )
    elif first > EXPLODED * max(last, 1e-3):
        yield Verdict(
            layer_of(rows[0].name),
            cause="the gradient explodes towards the input",
            saw=f"The gradient of {rows[0].name} is {first:.2g}, that of {rows[-1].name} "
            f"{last:.2g}",
            advice="Clip it with clipnorm=1.0.",
        )


def _exploded(trace: Trace) -> Iterator[Verdict]:
    for row in trace.of_kind(GRADIENT):
        if row.largest > EXPLODED:
            yield Verdict(
                layer_of(row.name),
                cause="the gradient explodes",
                saw=f"The gradient of {row.name} reaches {row.largest:.3g}",
                advice="Clip it with clipnorm=1.0, and scale inputs and targets.",
            )
            return


def _frozen(trace: Trace) -> Iterator[Verdict]:
    for name in trace.frozen:
        if trace.trainable:
            yield Verdict(
                name,
                cause="a frozen layer",
                saw=f"{name} has weights that are not trained",
                advice="Set layer.trainable = True and compile again, if that is not meant.",
            )


def _ratios(trace: Trace) -> Iterator[Verdict]:
    rows = [row for row in trace.of_kind(RATIO) if row.finite and "bias" not in row.name]
    if not rows:
        return
    values = sorted(row.mean for row in rows)
    middle = values[len(values) // 2]
    if middle < SMALL_RATIO:
        yield Verdict(
            "optimizer",
            cause="the learning rate is too small",
            saw=f"Updates are {middle:.2g} of their weights, commonly 1e-3",
            advice="Raise the learning rate.",
        )
    elif middle > LARGE_RATIO:
        yield Verdict(
            "optimizer",
            cause="the learning rate is too large",
            saw=f"Updates are {middle:.2g} of their weights, commonly 1e-3",
            advice="Lower the learning rate.",
        )


_RULES: tuple[Callable[[Trace], Iterator[Verdict]], ...] = (
    _nothing_learns,
    _data,
    _logits,
    _zero_kernels,
    _unscaled,
    _dead_units,
    _saturated,
    _gradients,
    _exploded,
    _frozen,
    _ratios,
)


def _is_kernel(row: Row) -> bool:
    return len(row.shape) > 1 and row.size > 1


def _rms(row: Row) -> float:
    return float((row.mean**2 + row.std**2) ** 0.5)
