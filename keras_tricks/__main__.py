"""`python -m keras_tricks`: what earlier runs left, on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_tricks import host
from keras_tricks._run_directory import LOGDIR_COMMAND, REPORT, newest_report, tensorboard_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, or 1 if there is nothing to show.

    Args:
        arguments: The words after the program's name; None takes them from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m keras_tricks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("report", help="print the closing block of the newest run")
    command.add_argument("path", type=Path, help="directory of runs (run), or of one (run/001)")
    command.set_defaults(act=lambda options: report(options.path))
    options = parser.parse_args(arguments)
    code: int = options.act(options)
    return code


def report(path: Path) -> int:
    """Prints the newest `report.md` under `path`."""
    found = newest_report(path)
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


if __name__ == "__main__":
    sys.exit(main())
