"""When a trick is due: plain questions about step numbers, without an effect."""

import operator
from typing import SupportsIndex

Span = tuple[int, int]
"""First and last step, both included."""


def crossed(before: int, after: int, every: int) -> bool:
    """Tells whether a multiple of `every` lies in the steps after `before`, up to `after`.

    Steps may come several at a time (`steps_per_execution`), so a multiple is passed more often
    than met. Nothing is remembered: a second `fit` misses none.

    Args:
        before: The step at the last look.
        after: The step now, at least `before`.
        every: Interval in steps, at least 1.
    """
    return after // every > before // every


def check_every(name: str, value: object) -> int:
    """Validates an interval or a count.

    Args:
        name: The parameter, for the message.
        value: What the user gave.

    Returns:
        `value` as an `int`, at least 1.

    Raises:
        TypeError: If `value` is not a whole number (`bool` is none).
        ValueError: If `value` is below 1.
    """
    number = _whole(value)
    if number is None:
        suggestion = _nearest(value)
        raise TypeError(
            f"`{name}` must be a whole number of at least 1, got {value!r}. "
            f"Pass `{name}={suggestion}`."
        )
    if number < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value!r}. Pass `{name}=1` or more.")
    return number


def parse_at_steps(value: object) -> tuple[Span, ...]:
    """Reads `at_steps`: steps counted in this `fit`, 1 is the first, 0 is before training.

    Args:
        value: A step (`5`), a range with both ends included (`(5, 8)`), or a list of both
            (`[1, 5, (100, 103)]`). Empty means never.

    Returns:
        The spans in rising order; those that overlap are one.

    Raises:
        TypeError: If a step is not a whole number, or `value` has another form.
        ValueError: If a step is negative or a range ends before it begins.

    Example:
        >>> parse_at_steps([1, 5, (100, 103)])
        ((1, 1), (5, 5), (100, 103))
    """
    if isinstance(value, list):
        entries = value
    else:
        entries = [] if isinstance(value, tuple) and not value else [value]
    merged: list[Span] = []
    for first, last in sorted(_span(entry) for entry in entries):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _span(entry: object) -> Span:
    """One entry of `at_steps` as its first and last step."""
    pair = entry if isinstance(entry, tuple) else (entry, entry)
    steps = [_whole(step) for step in pair]
    if len(steps) != 2 or steps[0] is None or steps[1] is None:
        raise TypeError(
            f"`at_steps` must be a step, a pair (first, last) or a list of them, got {entry!r}. "
            "Pass for example `at_steps=5`, `at_steps=(5, 8)` or `at_steps=[1, 5, (100, 103)]`."
        )
    first, last = steps[0], steps[1]
    if first < 0:
        raise ValueError(
            f"`at_steps` must not be negative, got {entry!r}. "
            "Pass `at_steps=1` for the first step of this `fit`, 0 for before training."
        )
    if last < first:
        raise ValueError(
            f"`at_steps` must not end before it begins, got {entry!r}. "
            f"Pass `at_steps={(last, first)}` for that range, `[{first}, {last}]` for two steps."
        )
    return first, last


def _whole(value: object) -> int | None:
    """`value` as an `int`, or None where it is no whole number."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several numbers offers the method and then refuses
        return None


def _nearest(value: object) -> int:
    """The whole number of at least 1 that the user may have meant."""
    if isinstance(value, float) and 1 <= value < float("inf"):
        return int(value)
    return 1
