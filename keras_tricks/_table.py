"""Tables in plain text."""

import io
import numbers
from collections.abc import Iterable, Sequence


def table(
    rows: Iterable[Sequence[object]],
    columns: Sequence[str],
    *,
    width: int = 100,
    title: str | None = None,
) -> str:
    """Sets rows in columns, without colours or control characters.

    Args:
        rows: A sequence of cells for each row, as many as there are columns. A float is shown
            with four significant digits, None as nothing, anything else as `str` has it.
        columns: The headings. A column that holds only numbers is set flush right.
        width: Most characters in a line; longer cells are continued below.
        title: A line above the table; None for none.

    Returns:
        The lines, without blanks at their ends and without a final line break.

    Example:
        >>> print(table([["dense", 0.25]], ["layer", "ms"]))
         layer     ms
        ──────────────
         dense   0.25
    """
    # rich takes 50 ms to import where Keras has not done so.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, title=title, title_justify="left")
    for index, heading in enumerate(columns):
        right = bool(cells) and all(_is_number(row[index]) for row in cells)
        grid.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(Text(_shown(cell)) for cell in row))
    out = io.StringIO()
    # All that rich would find out about the terminal is settled here: the result is a string.
    Console(
        file=out,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    ).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _is_number(cell: object) -> bool:
    return isinstance(cell, numbers.Real) and not isinstance(cell, bool)


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
        return f"{float(cell):.4g}"
    return str(cell)
