"""Structures of arrays whose first axis counts examples: counting, cutting, joining, padding.

`Data` is the tuple `(x, y, sample_weight)` of such structures; `None` leaves stay `None`.
"""

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_tricks._backend import adapters

Data: TypeAlias = tuple[Any, Any, Any]

PARTS = ("x", "y", "sample_weight")


def leaves(data: Any) -> list[Any]:
    """Returns the arrays of a structure, without its `None` leaves."""
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def named_leaves(data: Data) -> list[tuple[str, Any]]:
    """Returns the arrays of data, each with how a user would write its place: `x['image']`."""
    return [
        (PARTS[path[0]] + "".join(f"[{key!r}]" for key in path[1:]), leaf)
        for path, leaf in keras.tree.flatten_with_path(data)
        if leaf is not None
    ]


def count_rows(data: Data, name: str) -> int:
    """Returns how many examples data holds.

    Args:
        data: `(x, y, sample_weight)`.
        name: What the user calls it, for the messages.

    Raises:
        ValueError: If its arrays are not equally long, or one has no axis.
    """
    counts = {adapters.rows(leaf) for leaf in leaves(data)}
    if len(counts) == 1 and None not in counts:
        return int(counts.pop() or 0)
    places: dict[int | None, str] = {}
    for place, leaf in named_leaves(data):
        places.setdefault(adapters.rows(leaf), place)
    if None in places:
        raise ValueError(
            f"`{name}` must hold batches, arrays of shape [batch, ...], got a scalar in "
            f"{places[None]}. Batch the examples first, for instance with `dataset.batch(32)`."
        )
    if not places:
        raise ValueError(f"`{name}` must hold arrays, got None only. Pass at least `x`.")
    (rows, place), (other_rows, other_place) = list(places.items())[:2]
    raise ValueError(
        f"`{name}` must have as many rows in every array, got {rows} in {place} and "
        f"{other_rows} in {other_place}. Cut the longer one, or give each example its own row."
    )


def cut(data: Data, start: int, stop: int) -> Data:
    """Returns the rows `start` to `stop` of every leaf, as views."""
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else adapters.cut(leaf, start, stop), data
    )


def joined(parts: list[Data]) -> Data:
    """Returns data of one layout, one part below the other."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*map(keras.tree.flatten, parts), strict=True)
    return keras.tree.pack_sequence_as(
        parts[0], [None if column[0] is None else adapters.join(list(column)) for column in columns]
    )


def padded(data: Data, size: int) -> Data:
    """Returns data with `size` rows; the last real row is repeated.

    A copy of a real example keeps labels valid and numbers finite, so that no padded row can raise
    or give a NaN, which no weight of zero would undo.
    """

    def pad(leaf: Any) -> Any:
        # A sparse tensor has no length; its data is never asked to be longer than it is.
        if not isinstance(leaf, np.ndarray) or len(leaf) == size:
            return leaf
        return np.concatenate([leaf, np.repeat(leaf[-1:], size - len(leaf), axis=0)])

    return keras.tree.map_structure(pad, data)


def layout(data: Data) -> str:
    """Returns a text that two batches share if they can stand one below the other."""

    def example(leaf: Any) -> str | None:
        if leaf is None:
            return None
        if not isinstance(leaf, np.ndarray):
            return f"{type(leaf).__name__} {leaf.dtype} {tuple(leaf.shape[1:])}"
        # Strings carry their greatest length in the dtype, which differs by batch.
        dtype = "text" if leaf.dtype.kind in "US" else leaf.dtype.str
        return f"{dtype} {leaf.shape[1:]}"

    return repr(keras.tree.map_structure(example, data))


def rebatched(parts: Iterable[Data], batch_size: int, name: str) -> Generator[Data, None, None]:
    """Cuts batches anew, across their boundaries and in their order; only the last is smaller.

    Examples that cannot stand in one array with those before them end a batch early. Each row is
    moved at most twice, and at most one batch of rows is held.

    Args:
        parts: Data, batch by batch.
        batch_size: Examples of each batch that comes out.
        name: What the user calls the data, for the messages.
    """
    held: list[Data] = []
    missing = batch_size
    held_layout = ""
    for part in parts:
        this_layout = layout(part)
        if held and this_layout != held_layout:
            yield joined(held)
            held, missing = [], batch_size
        held_layout = this_layout
        rows, start = count_rows(part, name), 0
        while rows - start >= missing:
            stop = start + missing
            yield joined([*held, cut(part, start, stop)])
            held, missing, start = [], batch_size, stop
        if start < rows:
            # A copy, since a dataset may write its next batch into the same memory.
            held.append(copied(cut(part, start, rows)))
            missing -= rows - start
    if held:
        yield joined(held)


def copied(data: Data) -> Data:
    """Returns data in memory of its own."""
    return keras.tree.map_structure(
        lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, data
    )
