"""Statistics of single tensors, and what its inputs say about an output that is not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

INPUT, TARGET, SAMPLE_WEIGHT = "input", "target", "sample weight"
OUTPUT, LOSS, METRIC = "output", "loss", "metric"
WEIGHT, GRADIENT, RATIO = "weight", "gradient", "update ratio"
KINDS = (INPUT, TARGET, SAMPLE_WEIGHT, OUTPUT, LOSS, METRIC, WEIGHT, GRADIENT, RATIO)
"""Kinds of rows in the order of a table."""


@dataclass(frozen=True)
class Row:
    """One tensor.

    Attributes:
        name: Name of the tensor; a layer's second call ends with `#2`.
        kind: One of `KINDS`.
        shape: Its shape.
        dtype: Its type, such as `"float32"`.
        mean: Mean over the finite values; NaN without one. The same holds for the next three.
        std: Standard deviation.
        min: Smallest value.
        max: Largest value.
        zeros: Share of zeros among all values, 0 to 1.
        nans: How many values are NaN.
        infs: How many are infinite.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    min: float
    max: float
    zeros: float
    nans: int
    infs: int

    @property
    def finite(self) -> bool:
        """Whether every value is finite."""
        return not (self.nans or self.infs)

    @property
    def largest(self) -> float:
        """Largest finite magnitude, NaN without a finite value."""
        return max(abs(self.min), abs(self.max))

    @property
    def size(self) -> int:
        """How many values there are."""
        return int(np.prod(self.shape, dtype=np.int64))


def statistics(name: str, kind: str, array: Any, dtype: str | None = None) -> Row:
    """Describes an array.

    Args:
        name: Name of the tensor.
        kind: One of `KINDS`.
        array: Numbers or booleans of any shape; text gives a row without numbers.
        dtype: Its type where the array has another one than the tensor.
    """
    array = np.asarray(array)
    shown, shape = dtype or array.dtype.name, tuple(array.shape)
    nan = float("nan")
    if array.dtype.kind in "SUOMm":
        return Row(name, kind, shape, shown, nan, nan, nan, nan, 0.0, 0, 0)
    # Types of 16 bits, some of which NumPy has from elsewhere, would overflow in the sums.
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    flat = wide.reshape(-1)
    finite = flat
    nans = infs = 0
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduce(flat, dtype=np.float64)
    if flat.size and not np.isfinite(total):
        mask = np.isfinite(flat)
        finite, nans = flat[mask], int(np.isnan(flat).sum())
        infs = flat.size - finite.size - nans
    zeros = (flat.size - np.count_nonzero(flat)) / flat.size if flat.size else 0.0
    if not finite.size:
        return Row(name, kind, shape, shown, nan, nan, nan, nan, float(zeros), nans, infs)
    low, high = float(finite.min()), float(finite.max())
    with np.errstate(over="ignore"):  # beyond the largest float64 the deviation is infinite
        mean = float(finite.mean(dtype=np.float64))
        std = float(finite.std(dtype=np.float64))
    return Row(name, kind, shape, shown, mean, std, low, high, float(zeros), nans, infs)


@dataclass(frozen=True)
class Relation:
    """Which inputs belong to the values of an output that are not finite.

    Attributes:
        where: `"zero"`, `"negative"`, `"not positive"`, `"large"`, `"row of zeros"`,
            `"constant row"`, `"constant column"`, `"one example"` or `""`.
        what: `"nan"`, `"inf"`, `"-inf"` or `"mixed"`: what the output is there.
        values: Smallest and largest of those inputs.
    """

    where: str
    what: str
    values: tuple[float, float]


def relation(inputs: list[np.ndarray], output: np.ndarray) -> Relation | None:
    """Says what distinguishes the inputs at the places where `output` is not finite.

    Args:
        inputs: Inputs of a layer, all finite.
        output: Its output, not finite somewhere.

    Returns:
        The first relation that holds exactly, in both directions, for one of the inputs; None
        without inputs.
    """
    found = None
    output = _wide(output)
    bad = ~np.isfinite(output)
    what = _kind_of(output[bad])
    for array in inputs:
        if array.dtype.kind not in "fiubV" or not array.size:
            continue
        found = _related(_wide(array), bad, what)
        if found.where:
            return found
    return found


def _related(x: np.ndarray, bad: np.ndarray, what: str) -> Relation:
    lines = _of_lines(x, bad) if x.ndim > 1 and bad.ndim and len(x) == len(bad) else ""
    if x.shape != bad.shape:
        return Relation(lines, what, (float(x.min()), float(x.max())))
    at, elsewhere = x[bad], x[~bad]
    values = (float(at.min()), float(at.max()))
    signs = {"zero": x == 0, "negative": x < 0, "not positive": x <= 0}
    where = next((name for name, holds in signs.items() if np.array_equal(holds, bad)), lines)
    # Where everything is bad, being large is no distinction; what exp of a float32 can hold is.
    largest = elsewhere.max() if elsewhere.size else 80.0
    if not where and at.min() > max(largest, 0.0):
        where = "large"
    return Relation(where, what, values)


def _of_lines(x: np.ndarray, bad: np.ndarray) -> str:
    """What the rows or columns have in common in which something is bad."""
    rows, bad_rows = x.reshape(len(x), -1), bad.reshape(len(bad), -1).any(axis=1)
    if np.array_equal((rows == 0).all(axis=1), bad_rows):
        return "row of zeros"
    if rows.shape[1] > 1 and np.array_equal(np.ptp(rows, axis=1) == 0, bad_rows):
        return "constant row"
    if len(x) == 1:
        return "one example"
    if x.shape[-1] == bad.shape[-1]:
        columns = np.ptp(x.reshape(-1, x.shape[-1]), axis=0) == 0
        if np.array_equal(columns, bad.reshape(-1, bad.shape[-1]).any(axis=0)):
            return "constant column"
    return ""


def _kind_of(values: np.ndarray) -> str:
    for name, holds in (
        ("nan", np.isnan(values)),
        ("inf", np.isposinf(values)),
        ("-inf", np.isneginf(values)),
    ):
        if holds.all():
            return name
    return "mixed"


def _wide(array: np.ndarray) -> np.ndarray:
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def first_bad(array: np.ndarray) -> tuple[int, ...]:
    """Index of the first value that is not finite: the example, then its place in it."""
    return tuple(int(i) for i in np.argwhere(~np.isfinite(_wide(np.asarray(array))))[0])


def rows_equal(array: np.ndarray) -> bool:
    """Whether several examples are all the same."""
    array = np.asarray(array)
    return len(array) > 1 and bool((array == array[:1]).all())
