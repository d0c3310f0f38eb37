"""The closing block: what the tricks of one `fit` found, on the screen and in `report.md`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from keras_tricks import host
from keras_tricks._files import write_atomically
from keras_tricks._run import ADVICE, Finding, block
from keras_tricks._run_directory import REPORT, shown, tensorboard_line
from keras_tricks._trick import Trick


class ClosingBlock(Trick):
    """Ends `fit` with one sentence for each finding, the most important first.

    It is printed whatever `verbose` is, also when `fit` was interrupted, and kept as `report.md`.

    Args:
        directory: Directory of this run, such as `run/001`. It must exist.
        advice: Sentences that hold for this choice of callbacks, whatever they find.

    Attributes:
        findings: The sentences of the last `fit`, most important first.
        error: Why `report.md` could not be written, None if it was.
    """

    closes_with_block = True

    def __init__(self, directory: str | os.PathLike[str], *, advice: Sequence[str] = ()) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._advice = [Finding(text, ADVICE) for text in advice]
        self.findings: list[Finding] = []
        self.error: OSError | None = None

    def summary(self) -> list[Finding]:
        steps = self.run.step - self.run.first_step_number
        seconds = host.clock() - self.run.started
        return [*self._advice, Finding(f"Trained {steps} steps in {seconds:.3g} s.")]

    def close(self, findings: list[Finding]) -> None:
        self.findings = findings
        command = tensorboard_line(self.directory.parent)
        heading = shown(self.directory)
        for line in [*block(findings, f"keras_tricks: {heading}"), command]:
            host.say(line)
        text = "\n".join([f"# {heading}", *block(findings, "")[1:], "", command, ""])
        self.error = None
        try:
            write_atomically(
                self.directory / REPORT, lambda path: path.write_text(text, encoding="utf-8")
            )
        except OSError as error:  # a full disk, or a directory that was removed, ends no training
            self.error = error
            host.say(f"ClosingBlock: {REPORT} could not be written: {error}.")
