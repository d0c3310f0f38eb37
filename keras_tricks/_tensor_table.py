"""The table of a report: which rows are shown, and how."""

from __future__ import annotations

from dataclasses import replace

from keras_tricks._backend.tensor_rows import KINDS, LOSS, OUTPUT, Row

MOST_ROWS = 40
WIDTH = 100
_SHORT = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_HEADINGS = ("shape", "type", "mean", "std", "min", "max", "zero", "nan", "inf")
_WIDTHS = (15, 4, 9, 8, 9, 9, 4, 5, 5)
_NAME = WIDTH - sum(_WIDTHS) - len(_WIDTHS)


def select(rows: list[Row], producer: str | None, most: int) -> tuple[list[Row], list[Row]]:
    """Chooses the rows to show.

    First the producer, the data and the loss; then the first of each kind that are not finite,
    the two ends of each kind, and rows spread evenly between them.

    Args:
        rows: All rows.
        producer: Name of the producer, None without one.
        most: How many to show.

    Returns:
        The rows to show and the others, both in their order.
    """
    if len(rows) <= most:
        return rows, []
    ranks: dict[int, tuple[int, float]] = {}
    for kind in KINDS:
        of_kind = [index for index, row in enumerate(rows) if row.kind == kind]
        bad = 0
        for place, index in enumerate(of_kind):
            row, last = rows[index], len(of_kind) - 1
            bad += not row.finite
            if row.kind == OUTPUT and row.name == producer:
                rank = 0
            elif kind not in (OUTPUT, *KINDS[6:]):
                rank = 1 if place < 4 or kind == LOSS else 4
            elif not row.finite and bad <= 3:
                rank = 2
            else:
                rank = 3 if min(place, last - place) < 2 else 4
            ranks[index] = (rank, _spread(place))
    chosen = set(sorted(ranks, key=lambda index: (*ranks[index], index))[:most])
    shown = [row for index, row in enumerate(rows) if index in chosen]
    return shown, [row for index, row in enumerate(rows) if index not in chosen]


def _spread(place: int) -> float:
    """A number whose order visits places evenly: van der Corput's sequence."""
    return int(f"{place:b}"[::-1], 2) / 2 ** len(f"{place:b}")


def lines(rows: list[Row], left_out: list[Row]) -> list[str]:
    """The table; the kinds stand as headings above their rows."""
    found = [f"{'tensor':<{_NAME}}{_cells(_HEADINGS)}", "─" * WIDTH]
    rows, kind = _without_model(rows), ""
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            if sum(r.kind == kind for r in rows) > 1:
                found.append(f"{kind}s")
        found.append(_line(row, rows))
    if left_out:
        counts = {k: sum(row.kind == k for row in left_out) for k in KINDS}
        text = ", ".join(f"{n} {k}{'s' * (n > 1)}" for k, n in counts.items() if n)
        bad = sum(not row.finite for row in left_out)
        found.append(f"Left out: {text}; {bad} of them with values that are not finite.")
    return found


def _without_model(rows: list[Row]) -> list[Row]:
    """The rows, without the model's own name before the names of all weights."""
    names = [row.name for row in rows if row.kind in KINDS[6:]]
    first = names[0].partition("/")[0] + "/" if names else ""
    if not all(name.startswith(first) and len(name.split("/")) > 2 for name in names):
        return rows
    return [
        replace(row, name=row.name.removeprefix(first)) if row.kind in KINDS[6:] else row
        for row in rows
    ]


def _line(row: Row, rows: list[Row]) -> str:
    grouped = sum(r.kind == row.kind for r in rows) > 1
    name = f"  {row.name}" if grouped else row.name
    if not grouped and row.kind not in (row.name, LOSS) and not row.name.startswith(row.kind):
        name = f"{row.kind} {row.name}"
    shape = "x".join(map(str, row.shape)) or "-"
    numbers = [_number(value) for value in (row.mean, row.std, row.min, row.max)]
    zero = f"{row.zeros:.0%}" if row.zeros else "-"
    counts = [_count(row.nans), _count(row.infs)]
    dtype = _SHORT.get(row.dtype, row.dtype[:4])
    return (
        f"{_cut(name, _NAME):<{_NAME}}{_cells((_cut(shape, 15), dtype, *numbers, zero, *counts))}"
    )


def _cells(cells: tuple[str, ...]) -> str:
    return "".join(f" {cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.3g}"


def _count(count: int) -> str:
    if not count:
        return "-"
    return str(count) if count < 100_000 else f"{count:.0e}".replace("e+0", "e")


def _cut(text: str, width: int) -> str:
    """Keeps both ends of a text that is too long."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"
