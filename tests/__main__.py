"""Runs the tests once per backend, each in a process of its own: `python -m tests [backend ...]`.

Without names: TensorFlow and JAX, and PyTorch where it is installed. What follows `--` goes to
pytest: `python -m tests jax -- -k host -x`. The result is not 0 if a leg failed, executed no
test, or skipped one for a reason that is not on the list below.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")
REQUIRED = ("tensorflow", "jax")
TAIL_LINES = 25
AT_ONCE = max(1, min(2, os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True)
class Leg:
    """What became of the tests on one backend."""

    backend: str
    seconds: float
    output: str
    executed: int
    faults: tuple[str, ...]


def may_skip(backend: str, reason: str, *, gpu: bool) -> bool:
    """Tells whether a test may be left out on this backend.

    Allowed: "tensorflow only", "jax and torch only" and the like on a backend that is not among
    them, and "needs a GPU" where none may be used.
    """
    if reason == "needs a GPU":
        return not gpu
    named = re.fullmatch(r"(\w+(?: and \w+)*) only", reason)
    names = named[1].split(" and ") if named else []
    return bool(names) and set(names) <= set(BACKENDS) and backend not in names


def faults_of(backend: str, code: int, report: Path, *, gpu: bool) -> tuple[int, tuple[str, ...]]:
    """Reads pytest's exit code and JUnit report.

    Returns:
        How many tests were executed, and a sentence for each thing that is not as it should be.
    """
    if not report.exists():
        return 0, (f"pytest ended with code {code} and without a report",)
    cases = list(ET.parse(report).iter("testcase"))
    skips = [(case, skip) for case in cases if (skip := case.find("skipped")) is not None]
    faults = [f"pytest ended with code {code}"] if code else []
    # An error is a file that could not be read, or a test whose fixtures failed.
    executed = len(cases) - len(skips) - sum(case.find("error") is not None for case in cases)
    if not executed:
        faults.append("no test was executed")
    for case, skip in skips:
        # A test that is expected to fail is reported in the same way, and is no better.
        reason = skip.get("message", "")
        if not may_skip(backend, reason, gpu=gpu):
            faults.append(f"{case.get('classname')}.{case.get('name')} was skipped: {reason}")
    return executed, tuple(faults)


def run_leg(backend: str, arguments: list[str]) -> Leg:
    """Runs the tests on one backend."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONUNBUFFERED": "1"}
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "-1") != "-1"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Two legs at once must not share a cache folder.
        options = [f"--junitxml={report}", "-o", f"cache_dir=.pytest_cache/{backend}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--durations=5", *options, *arguments],
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        executed, faults = faults_of(backend, done.returncode, report, gpu=gpu)
    return Leg(backend, time.monotonic() - begin, done.stdout, executed, faults)


def show(leg: Leg) -> None:
    """Prints the end of a leg's output, all of it where something is wrong."""
    lines = leg.output.splitlines()
    print(f"\n===== {leg.backend}: {leg.executed} executed in {leg.seconds:.0f} s =====")
    if not leg.faults and len(lines) > TAIL_LINES:
        print(f"[{len(lines) - TAIL_LINES} lines before]")
        lines = lines[-TAIL_LINES:]
    print("\n".join(lines))
    for fault in leg.faults:
        print(f"FAULT on {leg.backend}: {fault}")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Runs the legs side by side and says how they ended."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("backend", nargs="*", help=", ".join(BACKENDS))
    names = parser.parse_args(arguments[:split]).backend
    for name in names:
        if name not in BACKENDS:
            parser.error(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    wanted = names or [name for name in BACKENDS if name in REQUIRED or name in installed]
    for name in wanted:
        if name not in installed:
            parser.error(f"{name} is not installed; run: pip install -e '.[test,{name}]'")
    print(f"Legs: {', '.join(wanted)}, at most {AT_ONCE} at once", flush=True)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(run_leg, name, arguments[split + 1 :]) for name in wanted]
        legs = []
        for future in concurrent.futures.as_completed(waiting):
            legs.append(future.result())
            show(legs[-1])
    print()
    for leg in sorted(legs, key=lambda leg: wanted.index(leg.backend)):
        verdict = "FAILED" if leg.faults else "passed"
        print(f"{leg.backend}: {verdict}, {leg.executed} tests, {leg.seconds:.0f} s")
    return int(any(leg.faults for leg in legs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
