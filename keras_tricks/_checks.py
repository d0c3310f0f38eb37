"""What `kt.doctor` looks at: each check runs the model both ways and says what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import keras_private
from keras_tricks._backend.keeping import ERRORS
from keras_tricks._rows import Data
from keras_tricks._sample import Sample, rows_of, shape_of, shown_shape
from keras_tricks._trials import Results, Trial, Trials

# Below, two values are the same but for rounding; 16-bit floats carry three digits.
TOLERANCE = {"float32": 1e-4, "float64": 1e-4}
COARSE_TOLERANCE = 1e-2
# At this and below, batch statistics cost accuracy: Wu and He, Group Normalization, 2018, figure 1.
SMALL_BATCH = 16
# Shares of the capacity from which the next larger batch or buffer ends the run.
HOST_SHARE, DEVICE_SHARE = 0.9, 0.95
GIB = 2**30
ONE_SHAPE_ADVICE = "Train on `kt.pad_batches(train)`, or drop the remainder."
EXACT_ADVICE = "`kt.StepEvaluation` and `kt.evaluate` are exact."


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: Its kind: `exactness`, `padding`, `not exact`, `shapes`, `devices`, `batch norm`,
            `weights`, `inside an epoch`, `memory` or `failure`.
        sentence: What is so, with its numbers.
        advice: What to do about it.
        numbers: The same numbers, by name.
        would: Whether it says what a step not yet taken would do; all may be well nevertheless.
    """

    name: str
    sentence: str
    advice: str
    numbers: dict[str, float] = field(default_factory=dict)
    would: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}"


@dataclass(frozen=True)
class Exam:
    """What the checks are given.

    Attributes:
        model: The model, built.
        trials: Runs it.
        train: Training batches.
        evaluated: Batches that are evaluated, as the user has them.
        real: The same without padding at the end.
        padded: The same with the last one padded, None where that changes nothing.
        exact: The exact values on `real`.
        prefix: What the user calls these values: `val_` of validation data.
    """

    model: keras.Model
    trials: Trials
    train: Sample
    evaluated: Sample
    real: list[Data]
    padded: list[Data] | None
    exact: Results
    prefix: str

    @cached_property
    def as_it_is(self) -> Trial | Exception:
        """What `model.evaluate` gives on the data as the user has it, or how it fails."""
        try:
            return self.trials.evaluate(self.evaluated.batches)
        except ERRORS as error:
            return error

    @property
    def padding(self) -> int:
        """Rows at the end of the data that have no weight."""
        return sum(map(rows_of, self.evaluated.batches)) - sum(map(rows_of, self.real))

    def is_exact(self, name: str) -> bool:
        """Whether a value is exact; the loss is not if a part of it cannot be."""
        notes = self.trials.notes
        return name not in notes and (name != "loss" or all(note in self.exact for note in notes))

    def differing(self, reads: Results) -> list[tuple[str, float, float]]:
        """Name, value read and exact value of all that differ by more than rounding.

        What cannot be exact has a check of its own.
        """
        tolerance = TOLERANCE.get(self.model.compute_dtype, COARSE_TOLERANCE)
        return [
            (self.prefix + name, float(reads[name]), float(value))
            for name, value in self.exact.items()
            if name in reads and self.is_exact(name) and differs(reads[name], value, tolerance)
        ]


def differs(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two numbers differ, relative to the larger; what is no number never does."""
    if np.ndim(a) or np.ndim(b):
        return False
    scale = max(abs(float(a)), abs(float(b)))
    return bool(np.isfinite(scale)) and abs(float(a) - float(b)) > max(tolerance * scale, 1e-7)


def pair(a: float, b: float) -> tuple[str, str]:
    """Two numbers with four digits, or as many as show that they differ."""
    for digits in range(4, 9):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def numbers_of(found: list[tuple[str, float, float]]) -> dict[str, float]:
    """Values by name, the exact ones under `exact_<name>`."""
    reads = {name: read for name, read, _ in found}
    return {**reads, **{f"exact_{name}": exact for name, _, exact in found}}


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count} {noun}" + ("s" if count != 1 else "")


def check_exactness(exam: Exam) -> list[Finding]:
    """What `model.evaluate` reads on the data as it is."""
    trial = exam.as_it_is
    if isinstance(trial, Exception):
        return [_failed(exam, trial)]
    found = exam.differing(trial.results)
    if not found:
        return []
    values = ". ".join("{} reads {}; it is {}".format(n, *pair(a, b)) for n, a, b in found)
    if exam.padding:
        ends = f"`{exam.evaluated.name}` ends in {exam.padding} rows of weight zero"
        advice = f"Give the data without its padding. {EXACT_ADVICE}"
        return [Finding("exactness", f"{ends}: {values}.", advice, numbers_of(found))]
    sentence = f"`model.evaluate` in batches of {rows_of(exam.real[0])} is not exact: {values}."
    return [Finding("exactness", sentence, EXACT_ADVICE, numbers_of(found))]


def _failed(exam: Exam, error: Exception) -> Finding:
    devices = exam.trials.devices
    rows = next((n for n in map(rows_of, exam.real) if n % devices), None)
    if rows is None:
        raise error
    return Finding(
        "devices",
        f"`model.evaluate` ends in {type(error).__name__}: a batch of {rows} rows cannot be shared "
        f"equally by {devices} devices.",
        EXACT_ADVICE,
        {"rows": rows, "devices": devices},
    )


def check_padding(exam: Exam) -> list[Finding]:
    """What padding the last batch with zero weights would do to the numbers."""
    if exam.padded is None or exam.padding:
        return []
    found = exam.differing(exam.trials.evaluate(exam.padded).results)
    if not found:
        return []
    size = f"{rows_of(exam.real[-1])} of {rows_of(exam.padded[-1])} rows"
    values = ["{} will read {}; it is {}".format(n, *pair(a, b)) for n, a, b in found]
    sentence = f"Pad the last batch ({size}) with zero weights and your {'. Your '.join(values)}."
    return [Finding("padding", sentence, EXACT_ADVICE, numbers_of(found))]


def check_notes(exam: Exam) -> list[Finding]:
    """Losses and metrics that no calculation over batches makes exact."""
    notes = exam.trials.notes
    if not notes:
        return []
    rows = sum(map(rows_of, exam.real))
    small = rows_of(exam.real[0])
    large = min(rows, 8 * small)
    others = exam.trials.exact(exam.real, batch_size=large) if large > small else {}
    return [_note(exam, name, text, (small, large), others) for name, text in notes.items()]


def _note(exam: Exam, name: str, text: str, sizes: tuple[int, int], others: Results) -> Finding:
    key = name if name in exam.exact else "loss"
    shown = exam.prefix + key
    if text.startswith("not decomposable"):
        cause = "it is one number for each batch"
        advice = (
            "Write it as a `keras.metrics.Metric` that keeps sums, as `keras.metrics.F1Score` does."
        )
    else:
        cause = f"`{name}` depends on the batch as a whole"
        advice = "Compare its values at one batch size only."
    sentence = f"{shown} cannot be exact: {cause}"
    values = {f"{shown}_at_{sizes[0]}": exam.exact[key]}
    if key in others and differs(exam.exact[key], others[key], 1e-6):
        a, b = pair(exam.exact[key], others[key])
        sentence += f", {a} in batches of {sizes[0]} and {b} in batches of {sizes[1]}"
        values[f"{shown}_at_{sizes[1]}"] = others[key]
    return Finding("not exact", f"{sentence}.", advice, values)


def check_shapes(exam: Exam) -> list[Finding]:
    """What a second batch shape costs, and whether devices can share each batch."""
    found = [_undivided(exam)]
    if exam.trials.compiles:
        found += [_training_shapes(exam), _evaluation_shapes(exam)]
    return [finding for finding in found if finding is not None]


def _undivided(exam: Exam) -> Finding | None:
    devices = exam.trials.devices
    rows = next((n for n in map(rows_of, exam.train.shapes.values()) if n % devices), None)
    if rows is None:
        return None
    return Finding(
        "devices",
        f"A training batch of {rows} rows cannot be shared equally by {devices} devices.",
        ONE_SHAPE_ADVICE,
        {"rows": rows, "devices": devices},
    )


def _training_shapes(exam: Exam) -> Finding | None:
    shapes = list(exam.train.shapes.values())[:2]
    if len(shapes) < 2 or any(rows_of(data) % exam.trials.devices for data in shapes):
        return None
    first, second = shapes
    seconds = exam.trials.fit([first, first, second, second]).seconds
    return _compilation(exam.train, seconds[2] - seconds[3], seconds[3], ONE_SHAPE_ADVICE)


def _evaluation_shapes(exam: Exam) -> Finding | None:
    """From the run over the data as it is, in which each shape was met for the first time."""
    trial = exam.as_it_is
    if exam.train is exam.evaluated or isinstance(trial, Exception):
        return None
    shapes = list(map(shape_of, exam.evaluated.batches))
    times = list(enumerate(trial.seconds))
    first = [seconds for place, seconds in times if shapes[place] not in shapes[:place]][1:]
    later = [seconds for place, seconds in times if shapes[place] in shapes[:place]]
    if not first or not later:
        return None
    step = float(np.median(later))
    return _compilation(
        exam.evaluated, max(first) - step, step, "`kt.StepEvaluation` compiles one."
    )


def _compilation(sample: Sample, cost: float, step: float, advice: str) -> Finding:
    # Whether a shape is one too many does not depend on the clock; it only tells the price.
    cost = max(cost, 0.0)
    first, second, *others = sample.shapes.values()
    more = f" and {len(others)} more" if others else ""
    sentence = (
        f"`{sample.name}` has batches of {shown_shape(first)}, {shown_shape(second)}{more}: "
        f"compiling for one more shape took {cost:.2g} s, a batch {step:.2g} s."
    )
    numbers = {"shapes": len(sample.shapes), "compile_seconds": cost, "batch_seconds": step}
    return Finding("shapes", sentence, advice, numbers)


def check_batch_norm(exam: Exam) -> list[Finding]:
    """Batch normalisation over few rows, or over a replica's share of them."""
    layers = [
        layer
        for layer in keras_private.flatten_layers(exam.model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    rows = exam.train.full_rows
    # On JAX a sharded batch is one array, whose statistics are those of all devices.
    replicas = exam.trials.devices if _backend.NAME == "tensorflow" else 1
    alone = replicas > 1 and not all(layer.synchronized for layer in layers)
    share = rows // replicas if alone else rows
    if not layers or (share > SMALL_BATCH and not alone):
        return []
    batch = exam.train.full[:1]
    training = exam.trials.fit(batch).first["loss"]
    inference = exam.trials.exact(batch)["loss"]
    a, b = pair(training, inference)
    where = f", its own part of {rows} on each of {replicas} replicas" if alone else ""
    sentence = (
        f"Batch normalisation ({plural(len(layers), 'layer')}) takes its statistics from {share} "
        f"rows{where}: the loss of one batch is {a} in training mode and {b} in inference mode."
    )
    advice = "Take `LayerNormalization` or `GroupNormalization`, which need no batch."
    if alone:
        advice = "Pass `synchronized=True`, or take `LayerNormalization`, which needs no batch."
    numbers = {"rows": share, "training_loss": training, "inference_loss": inference}
    return [Finding("batch norm", sentence, advice, numbers)]


def check_weights(exam: Exam) -> list[Finding]:
    """Weights that only training has, or that no metric sees."""
    weighted = exam.evaluated.batches[0][2] is not None
    if weighted and not exam.padding:
        return _unseen_weights(exam)
    if weighted or exam.train is exam.evaluated or exam.train.batches[0][2] is None:
        return []
    values = exam.trials.exact(exam.train.full)["loss"], _unweighted(exam, exam.train.full)["loss"]
    if not differs(*values, 1e-3):
        return []
    sentence = (
        f"`train` has sample weights and `{exam.evaluated.name}` has none: on the same training "
        "examples the loss is {} with them and {} without.".format(*pair(*values))
    )
    advice = "Compare val_loss with the latter, or weight the validation data as well."
    numbers = dict(zip(("weighted_loss", "loss"), values, strict=True))
    return [Finding("weights", sentence, advice, numbers)]


def _unseen_weights(exam: Exam) -> list[Finding]:
    plain = _unweighted(exam, exam.real)
    values = exam.exact["loss"], plain["loss"]
    metrics = [name for name in exam.exact if name != "loss" and not name.endswith("_loss")]
    seen = [name for name in metrics if differs(exam.exact[name], plain[name], 1e-6)]
    if not metrics or seen or not differs(*values, 1e-3):
        return []
    names = ", ".join(f"{exam.prefix}{name} {exam.exact[name]:.4g}" for name in metrics)
    sentence = (
        f"No metric sees the sample weights of `{exam.evaluated.name}`: {names} with and without "
        "them, where {0}loss is {1} with and {2} without.".format(exam.prefix, *pair(*values))
    )
    advice = "Pass metrics that should see them as `weighted_metrics=[...]`."
    numbers = dict(zip(("weighted_loss", "loss"), values, strict=True))
    return [Finding("weights", sentence, advice, numbers)]


def _unweighted(exam: Exam, batches: list[Data]) -> Results:
    return exam.trials.exact([(x, y, None) for x, y, _ in batches])


def check_inside_epoch(exam: Exam) -> list[Finding]:
    """What `model.evaluate` in a callback would do to the training metrics."""
    devices = exam.trials.devices
    batches = [data for data in exam.train.full[:4] if not rows_of(data) % devices]
    between = [data for data in exam.evaluated.full[:2] if not rows_of(data) % devices]
    if exam.train is exam.evaluated or len(batches) < 2 or not between:
        return []
    right = exam.trials.fit(batches).results
    wrong = exam.trials.fit(batches, between=between).results
    found = [
        (name, float(wrong[name]), float(right[name]))
        for name in sorted(right, key=lambda name: (name != "loss", name))
        if differs(wrong[name], right[name], COARSE_TOLERANCE / 10)
    ]
    if not found:
        return []
    values = ["{} {} instead of {}".format(n, *pair(read, exact)) for n, read, exact in found]
    sentence = (
        "`model.evaluate` called inside an epoch would spoil the training metrics: after "
        f"{len(batches)} batches they read {', '.join(values)}."
    )
    advice = "`kt.StepEvaluation` leaves them alone."
    return [Finding("inside an epoch", sentence, advice, numbers_of(found), would=True)]


def check_memory(peak: int, limit: int, device: tuple[int, int] | None) -> list[Finding]:
    """Peaks against capacities, in bytes; a device that does not tell its limit says 0."""
    places = [
        (
            "process",
            peak,
            limit,
            HOST_SHARE,
            "Hold less at once: a smaller shuffle buffer, fewer workers, no cache in memory.",
        )
    ]
    if device is not None and device[1]:
        places.append(
            (
                "first device",
                *device,
                DEVICE_SHARE,
                "Make the batch smaller, or compute in `mixed_bfloat16`.",
            )
        )
    return [
        Finding(
            "memory",
            f"The {place} had {top / GIB:.3g} of {capacity / GIB:.3g} GiB in use at its peak, "
            f"{top / capacity:.0%}.",
            advice,
            {"peak_bytes": top, "limit_bytes": capacity},
        )
        for place, top, capacity, share, advice in places
        if top >= share * capacity
    ]
