"""`kt.Resume` in processes that are really killed, stopped and started again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 20


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What became of trainings that were killed and started again, in one process of forks."""
    script = Path(__file__).with_name("resumed_runs.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path_factory.mktemp("runs")), str(KILLS)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.backend("tensorflow", "jax")
def test_killed_at_any_moment_it_ends_bitwise_as_without_kills(report):
    found = report["kills"]
    assert found["faults"] == []
    assert sum(found["landed"].values()) - found["landed"]["save"] >= KILLS
    assert found["runs"] <= KILLS // 4  # so that each was killed several times


@pytest.mark.backend("tensorflow", "jax")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_fit_and_the_next_start_goes_on(report, name):
    first, again = report["preemption"][name], report["preemption"][f"{name} again"]
    assert first["interrupted_by"] == name
    assert again["resumed_from"] == first["step"] < again["step"]
    assert again["digest"] == report["kills"]["digest"]
    assert len(first["heard"]) == (name == "SIGTERM")  # the user's own handler
    assert first["put back"]
    assert not first["lock"]


@pytest.mark.backend("tensorflow", "jax")
def test_a_second_ctrl_c_acts_at_once(report):
    found = report["preemption"]
    assert found["twice, exit code"] == 3
    assert found["after that"]["digest"] == report["kills"]["digest"]


@pytest.mark.backend("tensorflow", "jax")
def test_a_second_process_is_refused_while_the_first_is_there(report):
    found = report["two"]
    assert found["code"] == 1
    assert found["words"].startswith("RuntimeError: `directory` must belong to one process, and")
    assert f"process {found['first']} is training in" in found["words"]
    assert found["third"]["digest"] == report["kills"]["digest"]
