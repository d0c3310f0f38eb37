"""A directory of checkpoints and its index: whole whenever the process is killed.

Plain files alone: no backend is imported and no model known. Whoever has one gives a function that
writes it to a path.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_tricks._checkpoint_files import (
    INDEX,
    MARK,
    crc32_of,
    describe,
    is_ours,
    leftovers,
    read,
    seeds_name,
    without_lost,
)
from keras_tricks._files import write_atomically
from keras_tricks._index import FORMAT, Index, Record, Rule, added, dumps, pruned, to_json

_LONGEST_DESCRIPTION = 60_000
"""Characters. A zip comment and an HDF5 attribute may have 64 KiB."""


class Store:
    """Writes checkpoints and keeps those that are wanted, in an order that survives a kill.

    A checkpoint is written under a temporary name, flushed to disk and renamed; then the index is
    replaced; only then is anything deleted. Each file carries its own line of the index, so that
    the time between two of these steps costs nothing, nor does the loss of the index.

    Args:
        directory: Where the files are.
        watch: Is told each phase of a save as it begins: "write", "flush", "rename", "index",
            "delete".

    Attributes:
        index: What is known; replaced as a whole, so that any thread may read it.
        messages: Sentences about what was found amiss, for somebody to take and show.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        watch: Callable[[str], object] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.index = Index()
        self.messages: list[str] = []
        self._watch = watch
        self._lists_deleted = False

    def open(self, rule: Rule, *, fresh: bool = False) -> None:
        """Takes up what is there, and removes what an interrupted save left.

        Args:
            rule: What to keep from now on.
            fresh: Whether to delete the checkpoints that are there and begin with an empty index.

        Raises:
            OSError: If the directory cannot be read or written.
            ValueError: If the index was written by a later version of this package.
        """
        found, messages = read(self.directory)
        for path in leftovers(self.directory):
            path.unlink(missing_ok=True)
        # A file of this name may by now be somebody else's.
        deleting = [n for n in found.deleting if is_ours(self.directory / n, found.run)]
        if fresh:
            deleting += [record.file for record in found.stored if record.file is not None]
            found = Index()
        else:
            self.messages += messages
        run = found.run or uuid.uuid4().hex[:12]
        self.index = replace(found, rule=rule, run=run, deleting=tuple(deleting))
        if fresh or deleting or messages:
            self._put()
        self._delete()

    def save(
        self,
        record: Record,
        write: Callable[[Path], object],
        *,
        suffix: str,
        seeds: Mapping[str, Any] | None = None,
    ) -> None:
        """Stores a checkpoint and its evaluation, and deletes what is no longer to be kept.

        Args:
            record: The evaluation.
            write: Writes the checkpoint to the path that it is given.
            suffix: ".keras" or ".weights.h5".
            seeds: What goes beside it in a file of its own; None for nothing.

        Raises:
            OSError: If the checkpoint or the index could not be written. The others and their index
                are then as before.
        """
        self.look()
        name = self._free_name(record.step, suffix)
        record = replace(record, file=name, note=None)
        beside = self.directory / seeds_name(name)
        if seeds is not None:
            text = json.dumps({MARK: name, **seeds}, indent=1)
            write_atomically(beside, lambda path: path.write_text(text, encoding="utf-8"))
        measured: list[Record] = []

        def content(path: Path) -> None:
            write(path)
            describe(path, self._description(record))
            size, crc = path.stat().st_size, crc32_of(path)
            measured.append(replace(record, size_bytes=size, crc32=crc))

        try:
            write_atomically(self.directory / name, content, watch=self._watch)
        except BaseException:  # whatever ended the save, its seeds belong to no checkpoint
            beside.unlink(missing_ok=True)
            raise
        self.index = pruned(added(self.index, measured[0]))
        self._put()
        self._delete()

    def add(self, record: Record) -> None:
        """Stores an evaluation without a checkpoint.

        Raises:
            OSError: If the index could not be written. It is then as before; the next one that can
                be written holds the evaluation as well.
        """
        self.index = added(self.index, record)
        self.look()
        self._put()

    def close(self) -> None:
        """Takes what has been deleted off the index on disk.

        Raises:
            OSError: If the index could not be written.
        """
        if self._lists_deleted:
            self._put()

    def look(self) -> None:
        """Takes files that are gone or have changed out of the index; makes the directory anew."""
        if not self.directory.is_dir():
            if self.index.stored:
                count = len(self.index.stored)
                self.messages.append(
                    f"{self.directory} disappeared with {count} checkpoints. It is made anew; "
                    "what is evaluated from now on is kept there"
                )
            self.index = replace(
                self.index,
                records=tuple(r.without_file("lost") if r.file else r for r in self.index.records),
                deleting=(),
            )
            self.directory.mkdir(parents=True, exist_ok=True)
        self.index, lost = without_lost(self.directory, self.index)
        self.messages += lost

    def _free_name(self, step: int, suffix: str) -> str:
        """A name that no file has: one that is there already may be somebody else's."""
        stem, count = f"step-{step:08d}", 1
        while True:
            name = f"{stem}{suffix}" if count == 1 else f"{stem}-{count}{suffix}"
            if not any(os.path.lexists(self.directory / n) for n in (name, seeds_name(name))):
                return name
            count += 1

    def _description(self, record: Record) -> str:
        """What a checkpoint says of itself: enough to find its place without an index."""
        index = self.index
        head: dict[str, Any] = {MARK: FORMAT, "run": index.run}
        if index.rule is not None:
            rule = index.rule
            head |= {"monitor": rule.monitor, "mode": rule.mode}
            head |= {"keep": rule.keep, "keep_last": rule.keep_last}
        head["directions"] = dict(index.directions)
        text = json.dumps({**head, "evaluation": json.loads(to_json(record))})
        if len(text) <= _LONGEST_DESCRIPTION:
            return text
        metrics, training = (
            {name: value for name, value in values.items() if not isinstance(value, list)}
            for values in (record.metrics, record.training)
        )
        short = replace(record, metrics=metrics, training=training)
        return json.dumps({**head, "evaluation": json.loads(to_json(short))})

    def _put(self) -> None:
        self._tell("index")
        text = dumps(self.index)
        write_atomically(
            self.directory / INDEX, lambda path: path.write_text(text, encoding="utf-8")
        )
        self._lists_deleted = bool(self.index.deleting)

    def _delete(self) -> None:
        """Deletes what the index on disk no longer wants; what cannot be deleted stays listed."""
        self._tell("delete")
        left = []
        for name in self.index.deleting:
            try:
                (self.directory / name).unlink(missing_ok=True)
                (self.directory / seeds_name(name)).unlink(missing_ok=True)
            except OSError as error:
                left.append(name)
                self.messages.append(f"{name} could not be deleted: {error.strerror}")
        self.index = replace(self.index, deleting=tuple(left))

    def _tell(self, phase: str) -> None:
        if self._watch is not None:
            self._watch(phase)
