"""Runs the README: each block of Python in order, and compares what stands under it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Code with the output shown directly under it, empty where it prints nothing."""
    found = list(BLOCK.finditer(README.read_text(encoding="utf-8")))
    pairs = []
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] == "python":
            shown = after is not None and after[1] == "text"
            pairs.append((block[2], after[2] if shown and after is not None else ""))
    return pairs


def without_numbers(text: str) -> list[str]:
    """The words of an output; training's numbers differ from machine to machine."""
    return re.sub(r"[\d.]+", "N", text).split()


def without_memory(text: str) -> list[str]:
    """The lines of an output; the memory in use differs from machine to machine."""
    return re.sub(r"[\d.]+ of [\d.]+ GiB", "N of N GiB", text).splitlines()


def test_every_block_runs_and_prints_what_stands_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, (code, shown) in enumerate(blocks()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"README block {number}", "exec"), namespace)  # noqa: S102
        if number == 0:
            assert without_numbers(printed.getvalue()) == without_numbers(shown)
        elif "kt.doctor(" in code:
            # XLA, where a backend has it, adds lines.
            assert set(without_memory(shown)) <= set(without_memory(printed.getvalue()))
        elif shown:
            assert printed.getvalue() == shown


def test_the_commands_are_one_line_each() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("pip install")]
    assert [line.split(" && ")[1] for line in commands] == [
        "python examples/digits.py",
        "python -m tests",
    ]
