"""The example as a user runs it: what it prints, what it leaves, and what TensorBoard reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

ROOT = Path(__file__).parents[1]
TAG = "evaluation_loss_vs_iterations"


def curve(directory):
    """The value at each step, as TensorBoard reads it."""
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()
    return {e.step: float(make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(TAG)}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The folder in which `examples/digits.py` was run, and the lines it printed."""
    folder = tmp_path_factory.mktemp("digits")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "digits.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines()


def test_digits_ends_with_one_closing_block(digits):
    _, lines = digits
    start = lines.index("keras_tricks: run/001")
    assert lines.count(lines[start]) == 1
    found = re.match(r"- Step 460: val_loss \S+, val_accuracy (\S+)\. 20 evaluations", lines[-4])
    assert float(found[1]) > 0.9
    assert lines[-3].startswith("- Best val_loss ")
    assert lines[-2].startswith("- Trained 460 steps in ")
    assert lines[-1] == "tensorboard --logdir run"
    assert lines[start + 1 :] == lines[-4:]


def test_digits_keeps_the_best_which_is_not_the_last(digits):
    folder, lines = digits
    values = curve(folder / "run" / "001" / "validation")
    step = min(values, key=values.get)
    assert step < 460
    path = Path("run", "001", "checkpoints", f"step-{step:08d}.keras")
    assert lines[-3] == (
        f"- Best val_loss {values[step]:.4g} at step {step}, {values[460]:.4g} at the last, "
        f"step 460. The best is {path}."
    )
    assert (folder / path).is_file()


def test_digits_leaves_the_block_as_a_report(digits):
    folder, lines = digits
    report = (folder / "run" / "001" / "report.md").read_text().splitlines()
    assert [line for line in report[1:] if line] == lines[-4:]


def test_digits_has_both_curves_in_one_chart(digits):
    folder, lines = digits
    train, validation = (curve(folder / "run" / "001" / name) for name in ("train", "validation"))
    # 1,437 examples in batches of 64 are 23 steps an epoch.
    assert list(validation) == [23 * epoch for epoch in range(1, 21)]
    assert list(train) == list(validation)
    assert f"val_loss {validation[460]:.4g}," in lines[-4]
    assert train[460] < train[23]
