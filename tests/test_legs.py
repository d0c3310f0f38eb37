"""`python -m tests` passes only if tests ran, passed, and none was left out without reason."""

import pytest

from tests.__main__ import main, may_skip, run_leg


@pytest.mark.parametrize(
    ("backend", "reason", "allowed"),
    [
        ("tensorflow", "jax only", True),
        ("tensorflow", "jax and torch only", True),
        ("jax", "jax and torch only", False),
        ("torch", "torch only", False),
        ("torch", "windows only", False),
        ("torch", "flaky", False),
        ("torch", "", False),
        ("jax", "needs a GPU", True),
    ],
)
def test_a_skip_needs_a_reason_from_the_list(backend, reason, allowed):
    assert may_skip(backend, reason, gpu=False) == allowed


def test_with_a_gpu_nothing_is_excused_for_the_want_of_one():
    assert not may_skip("jax", "needs a GPU", gpu=True)


@pytest.mark.parametrize(
    ("code", "executed", "faults"),
    [
        ("def test_a(): pass", 1, []),
        ("def test_a(): assert False", 1, ["ended with code 1"]),
        ("x = 1", 0, ["ended with code 5", "no test was executed"]),
        ("import nowhere", 0, ["ended with code 2", "no test was executed"]),
        ("import pytest\ndef test_a(): pytest.skip('torch only')", 0, ["no test was executed"]),
        (
            "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('later')",
            1,
            ["test_b was skipped: later"],
        ),
        (
            "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False",
            0,
            ["no test", "skipped"],
        ),
        ("import os\ndef test_a(): assert os.environ['KERAS_BACKEND'] == 'jax'", 1, []),
    ],
)
def test_a_leg_is_judged_by_what_it_did(tmp_path, code, executed, faults):
    file = tmp_path / "test_one.py"
    file.write_text(code)
    (tmp_path / "pytest.ini").touch()  # none of this project's settings
    leg = run_leg("jax", ["-c", str(tmp_path / "pytest.ini"), str(file)])
    assert leg.executed == executed
    assert len(leg.faults) == len(faults)
    assert all(part in fault for part, fault in zip(faults, leg.faults, strict=True))


def test_an_unknown_backend_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["theano"])
    assert "got 'theano'" in capsys.readouterr().err
