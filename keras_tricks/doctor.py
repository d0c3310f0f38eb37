"""`kt.doctor`: what is inexact, ragged or fragile in a setup, in numbers from running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_tricks import _backend, _checks, host
from keras_tricks._arguments import checks_keywords
from keras_tricks._backend.keeping import ERRORS, kept_functions, quiet
from keras_tricks._backend.randomness import OwnRandomness
from keras_tricks._checks import GIB, Exam, Finding
from keras_tricks._rows import Data
from keras_tricks._sample import Sample, read_sample, rows_of, without_padding
from keras_tricks._trials import Trials
from keras_tricks.pad_batches import weighted

LIMIT_SECONDS = 100.0
TRAIN = {"batches": 8, "seconds": 10.0, "limit_bytes": GIB // 4}
VALIDATION = {"batches": 10_000, "seconds": 20.0, "limit_bytes": GIB // 2}
# All runs over the evaluated batches together may take so long, and there are so many of them.
PASSES_SECONDS, PASSES = 20.0, 6
# Characters of an error of Keras that are quoted.
REASON = 120

Check = Callable[[Exam], list[Finding]]

# Most important first, each with its cost in first evaluations, which compile as well.
CHECKS: tuple[tuple[Check, str, float], ...] = (
    (_checks.check_exactness, "model.evaluate as it is", 2),
    (_checks.check_padding, "padding with zero weights", 2),
    (_checks.check_notes, "what cannot be exact, at two batch sizes", 1),
    (_checks.check_shapes, "the cost of a second batch shape", 6),
    (_checks.check_batch_norm, "batch normalisation", 3),
    (_checks.check_weights, "sample weights", 2),
    (_checks.check_inside_epoch, "model.evaluate inside an epoch", 4),
)


@dataclass(frozen=True)
class Report:
    """What `kt.doctor` found; `str(report)` is what it printed.

    Attributes:
        headline: The exact loss, and memory at its peak.
        findings: Most important first; each has `name`, `sentence`, `advice`, `numbers`.
        numbers: Loss and metrics by `kt.evaluate`, memory in bytes.
        skipped: What there was no time for.
        seconds: How long it all took.
    """

    headline: str
    findings: list[Finding]
    numbers: dict[str, float] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        """Whether nothing has to be done, as long as nothing is changed."""
        return all(finding.would for finding in self.findings)

    def __str__(self) -> str:
        others = [str(finding) for finding in self.findings if not finding.would]
        would = [str(finding) for finding in self.findings if finding.would]
        if self.skipped:
            would.append(f"Not measured, for want of time: {', '.join(self.skipped)}.")
        if self.well:
            return " ".join([f"kt.doctor: all is well: {self.headline}.", *would])
        return "\n- ".join([f"kt.doctor: {self.headline}.", *others, *would])


@checks_keywords
def doctor(model: keras.Model, train: Any, validation: Any = None) -> Report:
    """Says what is inexact, ragged or fragile in a setup, before anything is changed.

    Every number comes from running the model on a few batches of the data, with plain Keras and
    exactly. It takes at most two minutes, apart from the compilation that happens to be running
    then; what there was no time for is named.

    - what `model.evaluate` reads, and would read if the last batch were padded with zero weights,
      against the exact values;
    - losses and metrics that cannot be exact;
    - batch shapes, and what XLA takes to compile for one more;
    - batch normalisation over few rows, or not synchronised over replicas;
    - sample weights in training only. A `class_weight` given to `fit` does the same and cannot be
      seen from here;
    - what `model.evaluate` inside an epoch would do to the training metrics;
    - memory at its peak against the machine's, the container's or the device's.

    The model is the same afterwards, bit for bit: weights, optimizer, metrics, random state. One
    that was not built is built then; its first `fit`, which need not do so any more, may draw other
    random numbers for that. Data that shuffles itself anew at each pass has been read once more.

    Args:
        model: A model, compiled with a loss and an optimizer.
        train: What `fit` takes as `x`; `(x, y)` or `(x, y, sample_weight)` for arrays, which are
            taken in batches of 32, as `fit` does.
        validation: What `fit(validation_data=...)` takes. None evaluates on `train`.

    Returns:
        A report, which is also printed. One line says so if all is well.

    Raises:
        TypeError: If `model` or the data is of the wrong kind.
        ValueError: If the model is not compiled, or there is no example.

    Example:
        >>> x = np.arange(40, dtype="float32")[:, None] / 40
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> report = keras_tricks.doctor(model, (x, x))  # doctest: +ELLIPSIS
        kt.doctor: loss ...
        >>> report.findings[0].sentence  # doctest: +ELLIPSIS
        'Pad the last batch (8 of 32 rows) with zero weights and your loss will read ...
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model, got {type(model).__name__}.")
    if not model.compiled or model.optimizer is None:
        raise ValueError(
            "`model` must be compiled with an optimizer. Call "
            '`model.compile("adam", loss=...)` first.'
        )
    began = host.clock()
    with OwnRandomness().reading(), quiet():
        samples = _read(train, validation)
        _backend.sync(model)
        _backend.build(model, samples[0].batches[0])
        with kept_functions(model):
            report = _examine(model, *samples, began)
    host.say(str(report))
    return report


def _read(train: Any, validation: Any) -> tuple[Sample, Sample]:
    training = read_sample(train, "train", **TRAIN)  # type: ignore[arg-type]
    if validation is None:
        return training, training
    return training, read_sample(validation, "validation", **VALIDATION)  # type: ignore[arg-type]


def _examine(model: keras.Model, train: Sample, evaluated: Sample, began: float) -> Report:
    """Makes the checks in their order, as far as there is time."""
    trials = Trials(model)
    first_began = host.clock()
    trials.exact(without_padding(evaluated.reduced(3).batches))
    cost = host.clock() - first_began
    reduced = _affordable(trials, evaluated)
    train = reduced if train is evaluated else train
    exam = _exam(model, trials, train, reduced)
    findings, skipped = [], []
    for check, label, factor in CHECKS:
        if host.clock() - began + factor * cost > LIMIT_SECONDS:
            skipped.append(label)
        else:
            findings += _result(check, label, exam)
    peak, limit = host.peak_process_bytes(), host.memory_limit_bytes()
    findings = [*_checks.check_memory(peak, limit, _backend.peak_device_bytes()), *findings]
    numbers = {f"{exam.prefix}{name}": value for name, value in exam.exact.items()}
    numbers.update(host_peak_bytes=peak, host_limit_bytes=limit)
    memory = f"memory at peak {peak / GIB:.3g} of {limit / GIB:.3g} GiB"
    loss = f"{exam.prefix}loss {exam.exact['loss']:.4g}{' exactly' * exam.is_exact('loss')}"
    return Report(
        f"{loss}{_part(reduced)}, {memory}", findings, numbers, skipped, host.clock() - began
    )


def _part(sample: Sample) -> str:
    """On how much of the data, where that is not all."""
    if sample.whole:
        return ""
    count = f"{sample.count}{'' if sample.ended else ' or more'}"
    return f" on {len(sample.batches)} of {count} batches of `{sample.name}`"


def _result(check: Check, label: str, exam: Exam) -> list[Finding]:
    """What a check found; that plain Keras fails at it is a finding as well."""
    try:
        return check(exam)
    except ERRORS as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".:")
        reason = f"{reason}." if len(reason) <= REASON else f"{reason[:REASON]}…"
        text = f"Plain Keras failed in this trial, {label}: {type(error).__name__}: {reason}"
        return [
            Finding(
                "failure", text, "The same data in batches of one shape may pass: `kt.pad_batches`."
            )
        ]


def _affordable(trials: Trials, sample: Sample) -> Sample:
    """As many batches as can be run over several times."""
    few = sample.reduced(3)
    began = host.clock()
    trials.exact(without_padding(few.batches))
    seconds = (host.clock() - began) / len(few.batches)
    return sample.reduced(max(3, int(PASSES_SECONDS / PASSES / seconds)))


def _exam(model: keras.Model, trials: Trials, train: Sample, evaluated: Sample) -> Exam:
    real = without_padding(evaluated.batches)
    return Exam(
        model=model,
        trials=trials,
        train=train,
        evaluated=evaluated,
        real=real,
        padded=_padded(real),
        exact=trials.exact(real),
        prefix="" if train is evaluated else "val_",
    )


def _padded(batches: list[Data]) -> list[Data] | None:
    """The last batch padded with zero weights, None where that is nothing to think of."""
    full = rows_of(batches[0])
    if len(batches) < 2 or rows_of(batches[-1]) >= full or batches[0][1] is None:
        return None
    return [weighted(data, max(full, rows_of(data))) for data in batches]
