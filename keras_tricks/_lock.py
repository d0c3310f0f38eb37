"""One process in a directory: the second is refused as long as the first is there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from keras_tricks import host
from keras_tricks._files import TEMPORARY_PREFIX

_NAME = "resume.lock"
_TOUCH_SECONDS = 5.0
_SAME_SECONDS = 3.0  # a clock on the wall may be set meanwhile
ELSEWHERE_SECONDS = 30.0
"""How long a process of another machine may be silent and still count as running."""


class Lock:
    """A file that names the process that works in a directory.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._held = False
        self._touched = 0.0
        self._token = uuid.uuid4().hex

    def acquire(self) -> None:
        """Takes the directory.

        Raises:
            RuntimeError: If another process has it.
        """
        mine: dict[str, Any] = {
            "pid": os.getpid(),
            "started": host.process_started(os.getpid()),
            "host": socket.gethostname(),
            "token": self._token,
        }
        while not self._create(mine):
            owner = self._owner()
            if (
                owner is not None
                and not _same(owner, mine)
                and self._lives(owner, socket.gethostname())
            ):
                where = "" if owner["host"] == mine["host"] else f" on {owner['host']}"
                raise RuntimeError(
                    f"`directory` must belong to one process, and process {owner.get('pid')}"
                    f"{where} is training in {str(self._path.parent)!r}. Wait for it, end it, or "
                    "pass another directory."
                )
            self._remove(owner)
        self._held = True
        self._touched = host.clock()

    def touch(self) -> None:
        """Shows other machines that this process is there; does nothing most of the time."""
        now = host.clock()
        if self._held and now - self._touched > _TOUCH_SECONDS:
            self._touched = now
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def release(self) -> None:
        """Gives the directory back."""
        owner, held, self._held = self._owner(), self._held, False
        # A `fit` that raised may give it back after the next one of this process has taken it.
        if held and owner is not None and owner.get("token") == self._token:
            self._path.unlink(missing_ok=True)

    def _create(self, mine: dict[str, Any]) -> bool:
        """Makes the file with its content in one step; whether it was not there."""
        temporary = self._path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{_NAME}")
        temporary.write_text(json.dumps(mine), encoding="utf-8")
        try:
            os.link(temporary, self._path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            try:
                with self._path.open("x", encoding="utf-8") as file:
                    json.dump(mine, file)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _owner(self) -> dict[str, Any] | None:
        """Whom the file names, None if it is gone or names nobody."""
        try:
            owner = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return owner if isinstance(owner, dict) and {"pid", "host", "started"} <= {*owner} else None

    def _lives(self, owner: dict[str, Any], here: str) -> bool:
        if owner["host"] == here:
            # The number of a dead process is given out again, at another time.
            started = host.process_started(owner["pid"])
            return started is not None and abs(started - owner["started"]) < _SAME_SECONDS
        text = f"{self._path} is held by a process on {owner['host']}"
        host.say(f"Resume: {text}; waiting {ELSEWHERE_SECONDS:.0f} s for a sign of it.")
        return self._stirs()

    def _stirs(self) -> bool:
        """Whether a process of another machine, which cannot be asked, shows itself."""
        try:
            before = self._path.stat().st_mtime_ns
            until = host.clock() + ELSEWHERE_SECONDS
            while host.clock() < until:
                time.sleep(1.0)
                if self._path.stat().st_mtime_ns != before:
                    return True
        except FileNotFoundError:
            pass
        return False

    def _remove(self, owner: dict[str, Any] | None) -> None:
        """Takes a dead process's file away, unless another process was faster."""
        aside = self._path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-stale-{_NAME}")
        try:
            self._path.replace(aside)
        except FileNotFoundError:
            return
        try:
            found = json.loads(aside.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if owner is not None and found != owner:
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)


def _same(owner: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Whether this process has the directory already, from a `fit` that raised."""
    return bool(owner["pid"] == mine["pid"] and owner["host"] == mine["host"]) and (
        abs(owner["started"] - mine["started"]) < _SAME_SECONDS
    )
