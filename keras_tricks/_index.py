"""The list of a run's evaluations and checkpoints: what is best, what to keep, how it is written.

Plain values alone: no file is touched and no backend imported.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from keras_tricks._direction import Direction

FORMAT = 1

FILE_NAME = re.compile(r"step-\d{8,}(?:-\d+)?(?:\.keras|\.weights\.h5)")
"""The only names that this package gives to checkpoints, and so the only ones it deletes."""

REFUSED = "a path that is refused, {!r}: it is not the name of a checkpoint in this directory"

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """One evaluation, and the checkpoint of its step where there is one.

    Attributes:
        step: Step after which it was made.
        epoch: Epoch in which it was made, from 0.
        metrics: Values by name: numbers, or lists of them.
        training: Training's means since the evaluation before, in the same form.
        by_fit: Whether it is Keras's own validation.
        file: Name of the checkpoint in the directory, None where there is none.
        size_bytes: Its size, None without a file.
        crc32: Its checksum, eight hexadecimal digits; None where it is not known.
        note: Why there is no checkpoint, None if there is one or it was not among those to keep.
    """

    step: int
    epoch: int
    metrics: Mapping[str, Any]
    by_fit: bool = False
    file: str | None = None
    size_bytes: int | None = None
    crc32: str | None = None
    note: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """All that can be monitored."""
        return {**self.training, **self.metrics}

    def without_file(self, note: str | None = None) -> Record:
        """The evaluation alone."""
        return replace(self, file=None, size_bytes=None, crc32=None, note=note)


@dataclass(frozen=True)
class Rule:
    """What to keep: the union of the `keep` best by `monitor` and the `keep_last` newest."""

    monitor: str
    mode: Direction
    keep: int
    keep_last: int


@dataclass(frozen=True)
class Index:
    """All evaluations of a run in the order in which they were made.

    Attributes:
        rule: What to keep; None where a damaged index does not tell.
        run: Tells this run's files from those of another, empty where it is not known.
        directions: For each metric whether it is better low or high, None if nobody knows.
        records: The evaluations.
        deleting: Checkpoints that are no longer wanted and may still be there.
    """

    rule: Rule | None = None
    run: str = ""
    directions: Mapping[str, Direction | None] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    deleting: tuple[str, ...] = ()

    @property
    def stored(self) -> list[Record]:
        """The evaluations that have a checkpoint."""
        return [record for record in self.records if record.file is not None]

    @property
    def last_step(self) -> int | None:
        """The highest step of all evaluations, None without any."""
        return max((record.step for record in self.records), default=None)

    def best_first(self) -> list[Record]:
        """The evaluations that have a checkpoint: those that rank, then the newest of the rest."""
        ranking = self.ranking()
        rest = [record for record in self.stored if not any(record is r for r in ranking)]
        return [*ranking, *reversed(rest)]

    def ranking(self) -> list[Record]:
        """Those of them that rank by the rule, best first."""
        if self.rule is None:
            return []
        return ranked(comparable(self.stored), self.rule.monitor, self.rule.mode)


def number(value: Any) -> float | None:
    """`value` as a float, None unless it is one finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def comparable(records: Sequence[Record]) -> list[Record]:
    """Those of the newest one's kind: a `StepEvaluation`'s or Keras's own, never both."""
    return [record for record in records if record.by_fit == records[-1].by_fit]


def ranked(records: Sequence[Record], monitor: str, mode: Direction) -> list[Record]:
    """The records with a finite `monitor`, best first; of equal ones the earlier is better."""
    sign = 1.0 if mode == "min" else -1.0
    pairs = [(number(record.values.get(monitor)), record) for record in records]
    finite = [(sign * value, record) for value, record in pairs if value is not None]
    return [record for _, record in sorted(finite, key=lambda pair: pair[0])]


def kept(records: Sequence[Record], rule: Rule) -> list[bool]:
    """Which checkpoints stay: the union of the best and the newest.

    Those that cannot be compared with the newest, since they are of the other kind or lack the
    metric, stay as well: nobody knows that they are worse.

    Args:
        records: Evaluations in the order in which they were made.
        rule: What to keep.

    Returns:
        For each record whether its checkpoint stays; False for one that has none.
    """
    stored = [record for record in records if record.file is not None]
    if not stored:
        return [False] * len(records)
    rivals = [record for record in comparable(stored) if rule.monitor in record.values]
    newest = rivals[-rule.keep_last :] if rule.keep_last else []
    chosen = {
        id(record) for record in (*ranked(rivals, rule.monitor, rule.mode)[: rule.keep], *newest)
    }
    dropped = {id(record) for record in rivals} - chosen
    return [record.file is not None and id(record) not in dropped for record in records]


def merged(old: Record, new: Record) -> Record | None:
    """Two evaluations of one state as one, None if they contradict each other.

    Several `StepEvaluation` in one `fit` give several evaluations at a step, of other names each.
    Their means of the training are over other windows; the first is kept.
    """
    if (old.step, old.by_fit) != (new.step, new.by_fit):
        return None
    if any(
        not _equal(old.metrics[name], new.metrics[name])
        for name in old.metrics.keys() & new.metrics.keys()
    ):
        return None
    return replace(
        old,
        metrics={**old.metrics, **new.metrics},
        training={**new.training, **old.training},
    )


def added(index: Index, record: Record) -> Index:
    """The index with one more evaluation.

    A second one at the newest step joins the first; where it contradicts it, the model was changed
    in between, and the first one's checkpoint gives way to the second's.
    """
    records = list(index.records)
    earlier = _at_same_state(records, record)
    if earlier is None:
        return replace(index, records=(*records, record))
    old = records[earlier]
    joined = merged(old, record)
    if joined is not None and (record.file is None or old.file is None):
        stored = record if old.file is None else old
        records[earlier] = replace(stored, metrics=joined.metrics, training=joined.training)
        return replace(index, records=tuple(records))
    if record.file is not None and old.file is not None:
        index = replace(index, deleting=(*index.deleting, old.file))
        records[earlier] = old.without_file("a later evaluation at this step replaced it")
    return replace(index, records=(*records, record))


def _at_same_state(records: Sequence[Record], record: Record) -> int | None:
    """Position of the newest evaluation of this kind at this step, None if others came between."""
    for position in reversed(range(len(records))):
        if records[position].step != record.step:
            return None
        if records[position].by_fit == record.by_fit:
            return position
    return None


def pruned(index: Index) -> Index:
    """The index with what the rule does not keep under `deleting`."""
    if index.rule is None:
        return index
    stays = kept(index.records, index.rule)
    gone = [
        r for r, stay in zip(index.records, stays, strict=True) if r.file is not None and not stay
    ]
    records = tuple(r.without_file() if any(r is g for g in gone) else r for r in index.records)
    names = [record.file for record in gone if record.file is not None]
    return replace(index, records=records, deleting=(*index.deleting, *names))


# Text.


def to_json(record: Record) -> str:
    """A record as one line of JSON; what is not finite as a string, which JSON can hold."""
    line = {"step": record.step, "epoch": record.epoch, "metrics": _encoded(dict(record.metrics))}
    optional = {
        "training": _encoded(dict(record.training)) or None,
        "by_fit": record.by_fit or None,
        "file": record.file,
        "size_bytes": record.size_bytes,
        "crc32": record.crc32,
        "note": record.note,
    }
    line.update({name: value for name, value in optional.items() if value is not None})
    return json.dumps(line, allow_nan=False)


def dumps(index: Index) -> str:
    """The index as JSON, with one evaluation on a line: to read it, and to save it from damage."""
    rule = index.rule
    head: dict[str, Any] = {"format": FORMAT, "run": index.run}
    if rule is not None:
        head |= {"monitor": rule.monitor, "mode": rule.mode}
        head |= {"keep": rule.keep, "keep_last": rule.keep_last}
    head |= {"directions": dict(index.directions), "deleting": list(index.deleting)}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    records = ",\n".join(f"    {to_json(record)}" for record in index.records)
    return "\n".join(["{", *lines, f'  "evaluations": [\n{records}\n  ]', "}", ""])


def loads(text: str) -> tuple[Index, list[str]]:
    """Reads an index, also a damaged one.

    Returns:
        What could be read, and a sentence for each thing that could not.

    Raises:
        ValueError: If it was written by a later version of this package.
    """
    complaints: list[str] = []
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        data = _salvaged(text)
        what = "is empty" if not text.strip() else f"is damaged ({error})"
        complaints.append(f"{what}; {len(data['evaluations'])} evaluations could be read from it")
    version = data.get("format", FORMAT)
    if isinstance(version, int) and version > FORMAT:
        raise ValueError(
            f"its format is {version}, written by a later version of keras_tricks; this one reads "
            f"format {FORMAT}. Update keras_tricks."
        )
    entries = data.get("evaluations")
    records = []
    for position, entry in enumerate(entries if isinstance(entries, list) else []):
        try:
            record = record_of(entry)
        except ValueError as error:
            complaints.append(f"has a faulty evaluation, number {position + 1}: {error}")
            continue
        records.append(record)
        if entry.get("file") is not None and record.file is None:
            complaints.append(f"has at step {record.step} {record.note}")
    deleting = data.get("deleting")
    names = [n for n in deleting if _is_name(n)] if isinstance(deleting, list) else []
    run = data.get("run")
    index = Index(
        rule=rule_of(data),
        run=run if isinstance(run, str) else "",
        directions=_directions(data.get("directions")),
        records=tuple(records),
        deleting=tuple(names),
    )
    return index, complaints


def record_of(entry: Any) -> Record:
    """A record from its JSON.

    Raises:
        ValueError: If it is not one: what is wrong with it.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"it must be an object, got {entry!r}")
    step, epoch, metrics = entry.get("step"), entry.get("epoch", 0), entry.get("metrics")
    for name, value in (("step", step), ("epoch", epoch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"`{name}` must be a whole number from 0, got {value!r}")
    training = entry.get("training", {})
    if not isinstance(metrics, dict):
        raise ValueError(f"`metrics` must be an object, got {metrics!r}")
    file, size, crc = entry.get("file"), entry.get("size_bytes"), entry.get("crc32")
    note = entry.get("note") if isinstance(entry.get("note"), str) else None
    if file is not None and not _is_name(file):
        file, note = None, REFUSED.format(file)
    return Record(
        step=cast(int, step),
        epoch=cast(int, epoch),
        metrics=_decoded(metrics),
        training=_decoded(training) if isinstance(training, dict) else {},
        by_fit=entry.get("by_fit") is True,
        file=file,
        size_bytes=size if file is not None and isinstance(size, int) else None,
        crc32=crc if file is not None and isinstance(crc, str) else None,
        note=note,
    )


def rule_of(data: Mapping[str, Any]) -> Rule | None:
    """The rule in an index or in a checkpoint's own description, None if it is not whole."""
    monitor, mode = data.get("monitor"), data.get("mode")
    counts = [data.get("keep"), data.get("keep_last")]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts)
    if not isinstance(monitor, str) or mode not in ("min", "max"):
        return None
    keep, keep_last = cast("list[int]", counts) if whole else (1, 1)
    return Rule(monitor, cast(Direction, mode), keep, keep_last)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and FILE_NAME.fullmatch(value) is not None


def _directions(value: Any) -> dict[str, Direction | None]:
    if not isinstance(value, dict):
        return {}
    return {str(k): cast(Direction, v) if v in ("min", "max") else None for k, v in value.items()}


def _salvaged(text: str) -> dict[str, Any]:
    """What can be read of a text that is not JSON: whole evaluations, and fields of the head."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {"evaluations": []}
    for match in re.finditer(r'\{\s*"step"', text):
        try:
            found["evaluations"].append(decoder.raw_decode(text, match.start())[0])
        except ValueError:
            continue
    head = text.partition('"evaluations"')[0]
    for match in re.finditer(r'"(\w+)"\s*:\s*', head):
        try:
            found.setdefault(match[1], decoder.raw_decode(head, match.end())[0])
        except ValueError:
            continue
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _encoded(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decoded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or _encoded(a) == _encoded(b)
