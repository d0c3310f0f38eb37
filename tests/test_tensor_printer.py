"""A step that is not finite is reported and kept out; nothing else changes."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_tricks as kt
from tests.small_fit import BACKEND, BATCH_SIZE, AtStep, examples, noisy_model, state_of

ROOT = Path(__file__).parents[1]
X, Y = examples(80)  # ten steps
BAD_STEP = 5
COMPILED: dict[str, dict[str, dict[str, Any]]] = {
    "tensorflow": {
        "plain": {"jit_compile": False},
        "jit": {"jit_compile": True},
        "eager": {"run_eagerly": True},
        "loop": {"steps_per_execution": 4},
        "jit loop": {"steps_per_execution": 4, "jit_compile": True},
    },
    "jax": {"plain": {}, "eager": {"run_eagerly": True}, "loop": {"steps_per_execution": 4}},
    "torch": {"plain": {}},
}
OPTIONS = COMPILED[BACKEND]


def with_nan(x=X, step=BAD_STEP, steps=1):
    x = x.copy()
    for number in range(step, step + steps):
        x[(number - 1) * BATCH_SIZE + 3, 2, 1, 0] = np.nan
    return x


class State(keras.callbacks.Callback):
    """The whole state at the end of `fit`, metrics included."""

    def on_train_end(self, logs=None):
        self.state = state_of(self.model)


def trained(x, *callbacks, y=Y, epochs=1, model=None, scope=nullcontext, **options):
    """State and `History` of a `fit` from one seed."""
    # Before the scope: it ends the graph in which TensorFlow remembers that one was entered.
    keras.backend.clear_session(free_memory=False)
    with scope():
        keras.utils.set_random_seed(3)
        model, last = model or noisy_model(**options), State()
        model.fit(
            x,
            y,
            batch_size=BATCH_SIZE,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[*callbacks, last],
        )
    return last.state, model.history.history


def until(step):
    """Data of the steps before `step`."""
    return X[: (step - 1) * BATCH_SIZE], Y[: (step - 1) * BATCH_SIZE]


def without(step, x=X, y=Y):
    """Data without the batch of a step."""
    rows = np.s_[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]
    return np.delete(x, rows, 0), np.delete(y, rows, 0)


def close(a, b):
    """States equal to the rounding of floats: all of them are of 32 bits, or counts."""
    return a.keys() == b.keys() and all(
        np.allclose(np.frombuffer(p, "f4"), np.frombuffer(q, "f4"), rtol=1e-4, atol=1e-6)
        for name in a
        for p, q in zip(a[name], b[name], strict=True)
        if len(p) % 4 == 0
    )


ROUNDED = BACKEND == "jax"


def same(one, other, compiled="plain"):
    """Bitwise, and to rounding where XLA compiles the guard in."""
    if one == other:
        return True
    assert ROUNDED or "jit" in compiled
    return close(one[0], other[0])


@pytest.mark.parametrize("compiled", OPTIONS)
def test_stopping_leaves_the_state_of_the_last_finite_step(compiled):
    printer = kt.TensorPrinter()
    found = trained(with_nan(), printer, **OPTIONS[compiled])
    x, y = until(BAD_STEP)
    assert same(found, trained(x, y=y, **OPTIONS[compiled]), compiled)
    assert printer.report.step == BAD_STEP
    if compiled != "jit loop":  # where nobody has the batch
        assert (printer.report.producer, printer.report.cause) == ("input", "NaN in the input")
        assert "example 3, column 2, 1, 0" in printer.report.diagnosis


@pytest.mark.parametrize("compiled", OPTIONS)
def test_skipping_trains_on_all_other_batches(compiled):
    printer = kt.TensorPrinter(action="skip")
    terminate = keras.callbacks.TerminateOnNaN()
    found = trained(with_nan(), printer, terminate, **OPTIONS[compiled])
    x, y = without(BAD_STEP)
    assert same(found, trained(x, y=y, **OPTIONS[compiled]), compiled)
    assert (printer.skipped_steps, printer.step) == ([BAD_STEP], 10)


def test_ten_in_a_row_stop_a_fit_that_skips():
    printer = kt.TensorPrinter(action="skip")
    x = np.concatenate([X, X])
    x[8:] = np.nan
    trained(x, printer, y=np.concatenate([Y, Y]))
    assert printer.skipped_steps == list(range(2, 12))


def test_raising():
    with pytest.raises(FloatingPointError, match="step 5: the loss is NaN"):
        trained(with_nan(), kt.TensorPrinter(action="raise"))


def test_without_a_guard_the_fault_in_the_data_is_named_all_the_same():
    printer = kt.TensorPrinter(guard=False)
    trained(with_nan(), printer)
    assert (printer.report.step, printer.report.producer) == (BAD_STEP, "input")
    assert any("without the guard" in note.lower() for note in printer.report.notes)


@pytest.mark.parametrize("compiled", OPTIONS)
def test_while_nothing_happens_no_bit_changes(compiled):
    printer = kt.TensorPrinter(stagnant_steps=3, min_improvement=0.0)
    found = trained(X, printer, epochs=2, **OPTIONS[compiled])
    assert same(found, trained(X, epochs=2, **OPTIONS[compiled]), compiled)


def test_reports_on_demand_change_no_bit(tmp_path):
    printer = kt.TensorPrinter(
        at_steps=(0, 1, 7), every_steps=4, directory=tmp_path / "d", log_dir=tmp_path / "l"
    )
    assert same(trained(X, printer), trained(X))
    assert [report.step for report in printer.reports] == [0, 1, 4, 7, 8]


def test_a_model_that_was_fitted_before_is_guarded_as_well():
    keras.utils.set_random_seed(3)
    model, printer = noisy_model(), kt.TensorPrinter()
    model.fit(X, Y, batch_size=BATCH_SIZE, verbose=0)
    before = model.train_function
    model.fit(with_nan(), Y, batch_size=BATCH_SIZE, shuffle=False, verbose=0, callbacks=[printer])
    assert printer.report.step == 10 + BAD_STEP
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert model.train_function is before
    model.fit(with_nan(), Y, batch_size=BATCH_SIZE, verbose=0)
    assert not all(np.isfinite(weight).all() for weight in model.get_weights())


def test_the_same_instance_serves_a_second_fit():
    model, printer = noisy_model(), kt.TensorPrinter()
    for _ in range(2):
        model.fit(
            with_nan(), Y, batch_size=BATCH_SIZE, shuffle=False, verbose=0, callbacks=[printer]
        )
        assert len(printer.reports) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_running_minimum_that_begins_at_infinity_is_no_fault():
    class Smallest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="smallest")
            start = keras.initializers.Constant(float("inf"))
            self.value = self.add_variable((), start, name="value")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.minimum(self.value, keras.ops.min(y_pred)))

        def result(self):
            return keras.ops.convert_to_tensor(self.value)

    model, printer = noisy_model(), kt.TensorPrinter()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[Smallest()])
    model.fit(X, Y, batch_size=BATCH_SIZE, verbose=0, callbacks=[printer])
    assert printer.report is None
    assert np.isfinite(model.history.history["smallest"][0])


@pytest.mark.parametrize("optimizer", ["accumulating", "scaled"])
def test_optimizers_with_state_of_their_own(optimizer):
    def compiled():
        model = noisy_model()
        inner = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
        if optimizer == "scaled":
            inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 2.0**126)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(inner, loss)
        return model

    keras.utils.set_random_seed(1)
    printer = kt.TensorPrinter()
    found = trained(with_nan(), printer, model=compiled())
    keras.utils.set_random_seed(1)
    x, y = until(BAD_STEP)
    assert printer.report.step == BAD_STEP  # the overflows before it are the scale's own affair
    assert same(found, trained(x, y=y, model=compiled()))


def test_a_train_step_of_the_user_s():
    class Own(keras.Sequential):
        def train_step(self, *args):
            return super().train_step(*args)

    def compiled():
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    printer = kt.TensorPrinter()
    found = trained(with_nan(), printer, model=compiled())
    x, y = until(BAD_STEP)
    assert same(found, trained(x, y=y, model=compiled()))
    assert printer.report.producer == "input"


def several_devices():
    import tensorflow as tf

    on_one = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=on_one).scope()


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("action", ["stop", "skip"])
def test_several_devices(action):
    printer = kt.TensorPrinter(action=action)
    found = trained(with_nan(), printer, scope=several_devices)
    x, y = until(BAD_STEP) if action == "stop" else without(BAD_STEP)
    assert same(found, trained(x, y=y, scope=several_devices))
    assert printer.report.step == BAD_STEP
    assert "example 3, column 2, 1, 0" in printer.report.diagnosis


def test_validation_that_is_not_finite_stops():
    model, printer = noisy_model(), kt.TensorPrinter()
    validation = with_nan(), Y
    model.fit(X, Y, epochs=3, verbose=0, validation_data=validation, callbacks=[printer])
    assert len(model.history.history["val_loss"]) == 1
    assert printer.report.reason == "val_loss is not finite, and the training steps were"


def test_a_loss_that_does_not_move_is_reported_once():
    model = noisy_model()
    model.compile(keras.optimizers.SGD(0.0), model.loss)
    printer = kt.TensorPrinter(stagnant_steps=5, min_improvement=0.5)
    model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[printer])
    (report,) = printer.reports
    assert (report.step, report.cause) == (10, "the learning rate is 0")
    assert report.producer is None


def test_tensorboard_has_the_table_and_the_histograms(tmp_path):
    printer = kt.TensorPrinter(log_dir=tmp_path, at_steps=2)
    trained(X, printer)
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["tensors"]
    assert "tensors/report" in tags
    assert "tensors/output/dense" in tags
    assert any(tag.startswith("tensors/gradient/") for tag in tags)


def test_the_replay_reproduces_value_and_producer_in_a_fresh_process(tmp_path):
    printer = kt.TensorPrinter(directory=tmp_path)
    trained(with_nan(), printer)
    folder = tmp_path / "step-00000005"
    assert {path.name for path in folder.iterdir()} >= {
        "report.txt",
        "report.json",
        "batch.npz",
        "replay.py",
        "model.keras",
    }
    done = subprocess.run(
        [sys.executable, folder / "replay.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((folder / "report.json").read_text())
    assert facts["producer"] == "input"
    assert done.stdout.splitlines()[:2] == [
        f"step 5: {facts['reason']}.",
        facts["diagnosis"],
    ]
    # Where the device runs ahead, the report also tells of the steps after it.
    lines = str(printer.report).split("weights")[0].splitlines()
    lines = [line for line in lines if not line.startswith("Not applied either")]
    assert done.stdout.split("weights")[0].splitlines() == lines


def test_a_full_disk_ends_no_training(tmp_path):
    printer = kt.TensorPrinter(directory=tmp_path / "d", at_steps=1)

    def in_the_way(model):
        (tmp_path / "d" / "step-00000001").write_text("")

    trained(X, printer, AtStep(0, in_the_way))
    assert isinstance(printer.error, OSError)
    assert printer.step == 10


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"action": "abort"}, "`action` must be one of"),
        ({"action": "skip", "guard": False}, "needs the guard"),
        ({"stagnant_steps": 0}, "`stagnant_steps` must be at least 1"),
        ({"min_improvement": 1.0}, "`min_improvement` must be"),
        ({"layers": "("}, "`layers` must be a regular expression"),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(ValueError, match=error):
        kt.TensorPrinter(**arguments)


def test_a_report_names_what_a_compiled_step_hides():
    layers = keras.layers

    class Log(layers.Layer):
        def call(self, x):
            return keras.ops.log(x)

    # On TensorFlow the fused Dense and ReLU behind it turn NaN into 0.
    model = keras.Sequential(
        [keras.Input((4,)), Log(name="log"), layers.Dense(8, "relu"), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(16, 4))
    printer = kt.TensorPrinter(at_steps=1)
    model.fit(x, x[:, :1], batch_size=16, verbose=0, callbacks=[printer])
    assert printer.report.producer == "log"
