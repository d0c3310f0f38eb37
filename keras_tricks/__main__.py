"""`python -m keras_tricks`: what earlier runs left, on the command line."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from keras_tricks import host
from keras_tricks._checkpoint_files import INDEX
from keras_tricks._run_directory import LOGDIR_COMMAND, REPORT, newest, shown, tensorboard_line
from keras_tricks._table import table
from keras_tricks.checkpoints import Checkpoints

MOST_METRICS = 5
"""As many are shown, the monitored one first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, or 1 if there is nothing to show.

    Args:
        arguments: The words after the program's name; None takes them from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m keras_tricks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, act, text in (
        ("report", report, "print the closing block of the newest run"),
        ("checkpoints", checkpoints, "list the checkpoints of the newest run, best first"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("path", type=Path, help="directory of runs (run), or of one (run/001)")
        command.set_defaults(act=act)
    options = parser.parse_args(arguments)
    code: int = options.act(options.path)
    return code


def report(path: Path) -> int:
    """Prints the newest `report.md` under `path`."""
    found = newest(path, REPORT)
    if found is None:
        sys.stderr.write(
            f"{path}: no {REPORT} in it, nor in a numbered directory of it. "
            "A run with `kt.recommended` leaves one at the end of `fit`.\n"
        )
        return 1
    lines = found.read_text(encoding="utf-8").splitlines()
    # The command in the file was right for the directory in which the run was started.
    if lines and lines[-1].startswith(LOGDIR_COMMAND):
        lines[-1] = tensorboard_line(found.parent.parent)
    host.say("\n".join(lines))
    return 0


def checkpoints(path: Path) -> int:
    """Lists what is kept under `path`, with what is amiss there."""
    index = newest(path, INDEX, f"checkpoints/{INDEX}")
    if index is None:
        sys.stderr.write(
            f"{path}: no {INDEX} in it, nor in a numbered directory of it. "
            "A run with `kt.recommended` or `kt.BestCheckpoints` leaves one.\n"
        )
        return 1
    with warnings.catch_warnings(record=True) as amiss:
        warnings.simplefilter("always")
        kept = Checkpoints(index.parent)
    sys.stderr.write("".join(f"{warning.message}\n" for warning in amiss))
    rule, found = kept.index.rule, kept.checkpoints
    by = f", best first by {rule.monitor}" if rule else ""
    host.say(f"{shown(index.parent)}: {len(found)} of {len(kept.index.records)} evaluations{by}")
    if not found:
        return 0
    names = [name for name, value in found[0].metrics.items() if isinstance(value, (int, float))]
    names.sort(key=lambda name: rule is None or name != rule.monitor)
    names = names[:MOST_METRICS]
    rows = [
        [c.rank, c.step, c.epoch, *(c.metrics.get(name) for name in names), c.path.name]
        for c in found
    ]
    host.say(table(rows, ["rank", "step", "epoch", *names, "file"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
