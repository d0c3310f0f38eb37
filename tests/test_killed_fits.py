"""A `fit` that is killed leaves checkpoints that load and a best that is no worse than before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.backend("tensorflow")  # eleven processes, each of which compiles a model
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ten_kills_of_a_fit_lose_no_checkpoint(tmp_path):
    command = [sys.executable, Path(__file__).parent / "killed_fits.py", tmp_path, "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == 10
    assert report["faults"] == []
    best = [value for value in report["best"] if value is not None]
    assert len(best) >= 5  # the first fits may be killed before they have stored anything
    assert best == sorted(best, reverse=True)
