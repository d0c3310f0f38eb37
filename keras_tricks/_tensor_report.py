"""`kt.TensorReport`: every tensor of one step, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from keras_tricks._backend.tensor_rows import Row
from keras_tricks._tensor_table import MOST_ROWS, lines, select

STATISTICS = ("mean", "std", "min", "max", "zeros")
# Relative difference from which two statistics are called different.
APART = 1e-3


@dataclass(frozen=True)
class Difference:
    """A statistic in which two models differ.

    Attributes:
        name: Name of the tensor.
        kind: Its kind.
        statistic: Which one, such as `"std"`.
        mine: Value in the report.
        other: Value it was compared with.
    """

    name: str
    kind: str
    statistic: str
    mine: float
    other: float

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.statistic} {self.mine:.4g}, not {self.other:.4g}"


@dataclass(frozen=True)
class TensorReport:
    """Every tensor of one step, and what they say; `str(report)` is the text.

    Attributes:
        step: Training batches that the model has consumed, this one included.
        reason: Why the report was made, such as `"the loss is NaN"`.
        producer: Name of what gave the first value that is not finite, None where all are finite
            or it is not known.
        propagators: Names of layers that only passed it on.
        cause: The likely cause in a few words, empty where there is none to name.
        diagnosis: A sentence for each sign: what was seen, then what it means.
        rows: A row for each tensor, in the order of the forward pass; each has `name`, `kind`,
            `shape`, `dtype`, `mean`, `std`, `min`, `max`, `zeros`, `nans`, `infs`.
        notes: What could not be had.
    """

    step: int
    reason: str
    producer: str | None = None
    propagators: list[str] = field(default_factory=list)
    cause: str = ""
    diagnosis: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = MOST_ROWS) -> str:
        """The report in lines of at most 100 characters.

        Args:
            rows: At most so many rows of the table; the rest is counted.
        """
        return "\n".join([*self.headline(), "", *lines(*select(self.rows, self.producer, rows))])

    def headline(self) -> list[str]:
        """The sentences without the table."""
        found = [f"step {self.step}: {self.reason}.", self.diagnosis]
        if self.propagators:
            shown = ", ".join(self.propagators[:6])
            more = len(self.propagators) - 6
            found.append(f"Passed on by {shown}{f' and {more} more' if more > 0 else ''}.")
        return [line for line in [*found, *self.notes] if line]

    def as_dict(self) -> dict[str, Any]:
        """The report as values that JSON can hold; NaN stands as None."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rows"}
        return {**values, "rows": [_plain(asdict(row)) for row in self.rows]}

    def compare(
        self, other: TensorReport | Mapping[str, Mapping[str, float] | float]
    ) -> list[Difference]:
        """Says where two models part.

        Args:
            other: Another report; or numbers, from a paper for example: names of outputs with
                their statistics, `{"conv1": {"mean": 0.0, "std": 1.0}}`. A number alone is a mean.

        Returns:
            The differences of more than 0.1 %, in the order of the forward pass, so that the first
            tells where the models part. A tensor that the other has under another name or not at
            all is left out.

        Raises:
            ValueError: If no tensor is in both.
        """
        mine = {(row.kind, row.name): row for row in self.rows}
        pairs = list(_pairs(mine, other))
        if not pairs:
            names = ", ".join(name for kind, name in mine if kind == "output")
            raise ValueError(
                f"`other` must have a tensor of this report, got none. Its outputs are {names}."
            )
        return [
            Difference(row.name, row.kind, statistic, getattr(row, statistic), value)
            for row, statistics in pairs
            for statistic, value in statistics.items()
            if _apart(getattr(row, statistic), value, row)
        ]


def _pairs(mine: dict[tuple[str, str], Row], other: Any) -> Any:
    if isinstance(other, TensorReport):
        theirs = {(row.kind, row.name): row for row in other.rows}
        for key, row in mine.items():
            if key in theirs:
                yield row, {name: getattr(theirs[key], name) for name in STATISTICS}
        return
    for (kind, name), row in mine.items():
        if kind == "output" and name in other:
            given = other[name]
            yield row, dict(given) if isinstance(given, Mapping) else {"mean": float(given)}


def _apart(a: float, b: float, row: Row) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) != math.isnan(b)
    # A mean near zero differs by rounding: the scale is that of the whole tensor.
    scale = max(abs(a), abs(b), abs(row.std) if row.std == row.std else 0.0)
    return abs(a - b) > APART * scale


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
