"""What TensorBoard shows of evaluations: its own reader, and a running server over HTTP."""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import keras_tricks as kt
from tests.small_fit import AtStep, numbers, regression

X, Y = numbers(20)  # 7 steps an epoch
FIT = {"batch_size": 3, "shuffle": False, "verbose": 0}
VALIDATION = (X[:7] + 1, Y[:7])
STEPS = [4, 8, 12, 14]
BATCHES = [X[start : start + 3, 0] for start in range(0, 20, 3)] * 2
WINDOWS = [np.concatenate(BATCHES[a:b]) for a, b in [(0, 4), (4, 8), (8, 12), (12, 14)]]
# Of a weight of 1, which learns nothing; by run and tag.
CURVES = {
    ("train", "evaluation_loss_vs_iterations"): [np.mean(x**2) for x in WINDOWS],
    ("train", "evaluation_mae_vs_iterations"): [np.mean(np.abs(x)) for x in WINDOWS],
    ("validation", "evaluation_loss_vs_iterations"): [np.mean(VALIDATION[0] ** 2)] * 4,
    ("validation", "evaluation_mae_vs_iterations"): [np.mean(np.abs(VALIDATION[0]))] * 4,
}


def points(directory, tag):
    """Step and value of each point, as TensorBoard's reader sees them."""
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()
    if tag not in accumulator.Tags()["tensors"]:
        return []
    return [(e.step, float(make_ndarray(e.tensor_proto))) for e in accumulator.Tensors(tag)]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """The folder of a `fit` of two epochs with an evaluation at every fourth step."""
    folder = tmp_path_factory.mktemp("run")
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=4, log_dir=folder)
    regression(metrics=["mae"]).fit(X, Y, epochs=2, callbacks=[evaluation], **FIT)
    return folder


@pytest.mark.parametrize(("run", "tag"), CURVES)
def test_tensorboard_s_reader_finds_each_curve(log_dir, run, tag):
    steps, values = zip(*points(log_dir / run, tag), strict=True)
    assert list(steps) == STEPS
    assert list(values) == pytest.approx(CURVES[run, tag], rel=1e-5)


# TensorBoard as it is where TensorFlow is not installed: an empty module says so. It starts in a
# tenth of the time.
START = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.main import run_main
run_main()
"""


@pytest.fixture(scope="module")
def server(log_dir):
    """The address of a TensorBoard that has read the folder."""
    command = [sys.executable, "-c", START, "--logdir", str(log_dir)]
    options = ["--host=127.0.0.1", "--port=0", "--load_fast=false"]
    # Everything is read before the first answer.
    options += ["--reload_interval=0", "--reload_task=blocking"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            said = iter(process.stderr.readline, "")
            addresses = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in said)
            yield next(address[0] for address in addresses if address)
        finally:
            process.terminate()


def answer(server, path, **query):
    """What the server says."""
    url = f"{server}/data/plugin/scalars/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def test_a_running_server_shows_the_tags_of_both_runs(server):
    tags = answer(server, "tags")
    assert {(run, tag) for run, found in tags.items() for tag in found} == set(CURVES)


@pytest.mark.parametrize(("run", "tag"), CURVES)
def test_a_running_server_shows_each_curve(server, run, tag):
    found = answer(server, "scalars", run=run, tag=tag)
    assert [step for _, step, _ in found] == STEPS
    assert [value for _, _, value in found] == pytest.approx(CURVES[run, tag], rel=1e-5)


def test_each_point_is_there_as_soon_as_its_evaluation_is_over(tmp_path):
    seen = []

    def look(model):
        seen.append(len(points(tmp_path / "validation", "evaluation_loss_vs_iterations")))

    evaluation = kt.StepEvaluation(VALIDATION, every_steps=4, log_dir=tmp_path)
    regression().fit(X, Y, epochs=2, callbacks=[evaluation, AtStep(5, look)], **FIT)
    assert seen == [1, 3]


def test_a_second_fit_goes_on_in_the_same_curve(tmp_path):
    evaluation, model = kt.StepEvaluation(VALIDATION, log_dir=tmp_path), regression()
    for _ in range(2):
        model.fit(X, Y, callbacks=[evaluation], **FIT)
    found = points(tmp_path / "validation", "evaluation_loss_vs_iterations")
    assert [step for step, _ in found] == [7, 14]


def test_two_evaluations_in_one_folder_have_curves_of_their_own(tmp_path):
    one = kt.StepEvaluation(VALIDATION, every_steps=4, log_dir=tmp_path)
    two = kt.StepEvaluation((X, Y), every_steps=5, prefix="test_", log_dir=tmp_path)
    regression().fit(X, Y, epochs=2, callbacks=[one, two], **FIT)
    runs = {
        path.name: [step for step, _ in points(path, "evaluation_loss_vs_iterations")]
        for path in tmp_path.iterdir()
    }
    assert runs == {"train": STEPS, "validation": STEPS, "test": [5, 10, 14]}


FIT_ALONE = """
import sys
import numpy as np
import keras
import keras_tricks as kt
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((8, 1)), np.ones((8, 1))
evaluation = kt.StepEvaluation((x, y), every_steps=1, log_dir=sys.argv[1])
model.fit(x, y, batch_size=4, verbose=0, callbacks=[evaluation])
print(evaluation.history["step"], "tensorflow" in sys.modules)
"""


@pytest.mark.backend("jax", "torch")
def test_a_fit_with_events_never_loads_tensorflow(tmp_path):
    command = [sys.executable, "-c", FIT_ALONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[1, 2] False"
