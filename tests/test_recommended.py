"""`kt.recommended`: a numbered directory, curves in it, and the closing block at the end."""

import gc
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import keras_tricks as kt
from keras_tricks.__main__ import main
from keras_tricks._run import PROBLEM, Finding
from keras_tricks._run_directory import claim
from tests.small_fit import numbers, regression

VALIDATION = numbers(7)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fitted(callbacks, epochs=2, **options):
    """A `fit` of three steps an epoch that learns nothing."""
    x, y = numbers(20)
    model = regression()
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks, **options)
    return model


def curve(directory, tag):
    """Steps and values of a curve, as TensorBoard reads them."""
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()
    events = accumulator.Tensors(tag)
    return [e.step for e in events], [float(make_ndarray(e.tensor_proto)) for e in events]


def test_both_curves_stand_under_one_tag_at_the_same_steps():
    callbacks = kt.recommended("run", VALIDATION, every_steps=2)
    fitted(callbacks)
    tag = "evaluation_loss_vs_iterations"
    steps, values = curve(callbacks.directory / "validation", tag)
    assert steps == [2, 4, 6]
    assert values == pytest.approx([np.mean((np.arange(7) / 10) ** 2)] * 3, rel=1e-5)
    assert curve(callbacks.directory / "train", tag)[0] == steps


def test_each_run_has_the_next_number(tmp_path):
    names = [kt.recommended("run").directory for _ in range(3)]
    assert names == [tmp_path / "run" / number for number in ("001", "002", "003")]
    assert all(name.is_dir() for name in names)


def test_the_number_follows_the_largest(tmp_path):
    for name in ("007", "999", "notes", "5"):
        (tmp_path / "run" / name).mkdir(parents=True)
    assert kt.recommended("run").directory.name == "1000"


def test_those_who_start_at_once_never_share_a_directory():
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: claim("run", name="run_dir").name, range(80)))
    assert sorted(taken) == [f"{number:03d}" for number in range(1, 81)]


def test_with_resume_it_goes_on_in_the_newest_directory():
    x, y = numbers(20)
    for epochs, begun in ((1, None), (2, 3)):
        keras.utils.set_random_seed(0)
        callbacks = kt.recommended("run", VALIDATION, every_steps=2, resume=True)
        model = regression(0.1)
        model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
        assert callbacks.directory.name == "001"
        assert callbacks.resume.resumed_from == begun
    assert callbacks.evaluation.history["step"] == [2, 3, 4, 6]
    assert kt.recommended("run").directory.name == "002"


def test_the_block_ends_fit_and_is_kept(capsys):
    callbacks = kt.recommended("run", VALIDATION)
    fitted(callbacks)
    lines = capsys.readouterr().out.splitlines()
    loss = np.mean((np.arange(7) / 10) ** 2)
    assert lines[:2] == ["", "keras_tricks: run/001"]
    assert lines[2].startswith(f"- Step 6: val_loss {loss:.4g}. 2 evaluations took ")
    assert lines[3].startswith(f"- Best val_loss {loss:.4g} at step 3, ")
    assert lines[4].startswith("- Trained 6 steps in ")
    assert lines[5:] == ["tensorboard --logdir run"]
    report = (callbacks.directory / "report.md").read_text().splitlines()
    assert report == ["# run/001", "", *lines[2:5], "", lines[5]]


def test_a_second_fit_with_the_same_callbacks_goes_on_in_its_directory():
    callbacks = kt.recommended("run", VALIDATION)
    model = fitted(callbacks)
    x, y = numbers(20)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    assert [finding.text[:7] for finding in callbacks.closing_block.findings] == [
        "Step 9:",
        "Best va",
        "Trained",
    ]
    assert [path.name for path in Path("run").iterdir()] == ["001"]


class Interrupt(keras.callbacks.Callback):
    """Ctrl-C after the second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


def test_an_interrupted_fit_ends_with_its_block(capsys):
    callbacks = kt.recommended("run", VALIDATION, every_steps=1)
    try:
        fitted([callbacks, Interrupt()])
    except KeyboardInterrupt:
        pass
    gc.collect()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "- Training was interrupted after step 2."
    assert lines[3].startswith("- Step 2: val_loss ")
    share = float(re.search(r"(\d+)% of the run", lines[3])[1])
    assert 0 < share < 100
    assert lines[2] in (callbacks.directory / "report.md").read_text()


class Finder(kt.StepBudget):
    """A trick whose finding is a problem."""

    def summary(self):
        return [*super().summary(), Finding("The disk is full.", PROBLEM)]


def test_the_most_important_finding_comes_first():
    callbacks = kt.recommended("run", VALIDATION)
    fitted([*callbacks, Finder(3)], epochs=9)
    texts = [finding.text for finding in callbacks.closing_block.findings]
    assert texts[0] == "The disk is full."
    assert texts[-1] == "Trained 3 steps, the whole budget."


def test_without_data_nothing_is_evaluated_and_the_block_says_what_to_do():
    callbacks = kt.recommended("run")
    fitted(callbacks, validation_data=VALIDATION)
    assert callbacks.evaluation is None
    assert "Pass `validation_data` to `kt.recommended`" in callbacks.closing_block.findings[0].text


def test_a_report_that_cannot_be_written_costs_itself_and_not_the_run(capsys):
    callbacks = kt.recommended("run", VALIDATION)
    (callbacks.directory / "report.md").mkdir()
    fitted(callbacks)
    assert isinstance(callbacks.closing_block.error, OSError)
    assert "ClosingBlock: report.md could not be written: " in capsys.readouterr().out


def test_the_command_line_lists_the_checkpoints_best_first(capsys):
    fitted(kt.recommended("run", VALIDATION, keep=1))
    capsys.readouterr()
    for there in ("run", "run/001", "run/001/checkpoints"):
        assert main(["checkpoints", there]) == 0
        heading, columns, _, *rows = capsys.readouterr().out.splitlines()
        assert heading == "run/001/checkpoints: 2 of 2 evaluations, best first by val_loss"
        assert columns.split()[:4] == ["rank", "step", "epoch", "val_loss"]
        loss = f"{np.mean((np.arange(7) / 10) ** 2):.4g}"
        assert [row.split()[:4] for row in rows] == [["1", "3", "0", loss], ["2", "6", "1", loss]]
        assert rows[0].endswith("step-00000003.keras")


def test_the_command_line_tells_of_a_lost_checkpoint_and_of_none(capsys):
    callbacks = kt.recommended("run", VALIDATION, keep=1)
    fitted(callbacks)
    callbacks.checkpoints.best.path.unlink()
    assert main(["checkpoints", "run"]) == 0
    assert "step-00000003.keras is gone" in capsys.readouterr().err
    assert main(["checkpoints", "elsewhere"]) == 1
    assert "no checkpoints.json in it" in capsys.readouterr().err


def test_a_model_without_a_configuration_keeps_its_weights():
    class Unsaved(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.dense = keras.layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    model = Unsaved(1)
    model.compile("sgd", "mse")
    callbacks = kt.recommended("run", VALIDATION)
    model.fit(*numbers(20), batch_size=8, verbose=0, callbacks=callbacks)
    assert [c.path.name for c in callbacks.checkpoints.checkpoints] == ["step-00000003.weights.h5"]


@pytest.mark.parametrize("there", ["run", "run/002", "run/002/report.md"])
def test_the_command_line_prints_the_newest_report(capsys, there):
    for _ in range(2):
        fitted(kt.recommended("run", VALIDATION))
    Path("run/003").mkdir()  # a run that has not ended
    printed = capsys.readouterr().out.splitlines()
    assert main(["report", there]) == 0
    assert capsys.readouterr().out.splitlines()[2:4] == printed[-4:-2]


def test_the_printed_command_works_from_where_it_is_printed(capsys, tmp_path, monkeypatch):
    fitted(kt.recommended("my runs", VALIDATION))
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words == ["tensorboard", "--logdir", "my runs"]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    main(["report", "../my runs"])
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert Path(words[-1]).samefile(tmp_path / "my runs")


def test_a_path_without_a_report_is_an_error(capsys):
    claim("run", name="run_dir")
    assert main(["report", "run"]) == 1
    assert "run: no report.md in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keep": 0}, ValueError, "`keep` must be at least 1, got 0"),
        ({"keep": 2.5}, TypeError, "`keep` must be a whole number"),
        ({"monitor": None}, TypeError, "`monitor` must be the name of a value, got None"),
        ({"monitor": ""}, ValueError, "`monitor` must not be empty"),
        ({"every_steps": 5}, ValueError, "`every_steps` needs `validation_data`"),
        ({"validation_data": VALIDATION, "every_steps": 0}, ValueError, "`every_steps`"),
        ({"validation_data": iter(())}, ValueError, "`validation_data` must be readable more"),
        ({"every_step": 5}, TypeError, "every_step"),
    ],
)
def test_bad_arguments_make_no_directory(arguments, error, message):
    with pytest.raises(error, match=message):
        kt.recommended("run", **arguments)
    assert not Path("run").exists()


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="`run_dir` must be a directory"):
        kt.recommended("file")
