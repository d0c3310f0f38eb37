"""Troubles of real users, each known by its public report, with the right value beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tricks as kt

BACKEND = keras.backend.backend()

approx = pytest.approx


def linear(weight: float = 1.0, rate: float = 0.0, loss: Any = "mse", **options: Any) -> Any:
    """`weight * x`, trained by plain gradient descent."""
    start = keras.initializers.Constant(weight)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=start)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(rate), loss, **options)
    return model


def column(*values: float) -> np.ndarray:
    return np.asarray(values, "float32")[:, None]


class Act(keras.callbacks.Callback):
    """Does something at each batch's end."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.act(self, batch, logs)


def test_evaluating_in_an_epoch_leaves_the_training_metrics() -> None:
    """keras-team/keras#16526, tensorflow/tensorflow#42994, keras-team/keras#12959."""
    x = column(*range(1, 33)) / 8
    model = linear(0.5, metrics=["mae"])
    evaluation = kt.StepEvaluation((column(1, 1, 1, 1), column(0, 0, 0, 0)), every_steps=4)
    history = model.fit(
        x, 0 * x, batch_size=4, shuffle=False, verbose=0, callbacks=[evaluation]
    ).history
    assert history["loss"] == approx([np.mean((0.5 * x) ** 2)])
    assert history["mae"] == approx([np.mean(0.5 * x)])
    assert evaluation.history["val_loss"] == approx([0.25, 0.25])


@pytest.mark.backend("tensorflow", "torch")  # Keras carries no RNN state in JAX's fit
def test_evaluating_in_an_epoch_leaves_rnn_states() -> None:
    """keras-team/keras#4185, keras-team/keras#1221."""
    layer = keras.layers.SimpleRNN(
        1,
        stateful=True,
        activation="linear",
        use_bias=False,
        kernel_initializer="ones",
        recurrent_initializer="ones",
    )
    model = keras.Sequential([keras.Input(batch_shape=(1, 1, 1)), layer])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.arange(1, 9, dtype="float32").reshape(8, 1, 1)
    other = np.full((2, 1, 1), 100.0, "float32")
    evaluation = kt.StepEvaluation((other, np.zeros((2, 1))), every_steps=3, batch_size=1)
    history = model.fit(
        x,
        np.zeros((8, 1)),
        batch_size=1,
        shuffle=False,
        verbose=0,
        callbacks=[evaluation],
    ).history
    assert history["loss"] == approx([np.mean(np.cumsum(x.ravel()) ** 2)])
    assert float(keras.ops.convert_to_numpy(layer.states[0].value).item()) == 36.0
    assert evaluation.history["val_loss"][0] == approx((100.0**2 + 200.0**2) / 2)


def rotten() -> Iterator[Any]:
    for _ in range(6):
        yield np.ones((2, 1), "float32"), np.zeros((2, 1), "float32")
    raise OSError("read error in the validation set")


def test_a_failed_evaluation_leaves_the_weights() -> None:
    """keras-team/keras#21019."""
    model = linear(3.0)
    with pytest.raises(OSError, match="read error"):
        kt.evaluate(model, rotten())
    assert model.get_weights()[0].item() == 3.0


def test_training_goes_on_after_a_failed_evaluation() -> None:
    """keras-team/keras#21019."""
    failures = []

    def swallow(callback: Any, batch: int, logs: Any) -> None:
        if batch == 3:
            try:
                kt.evaluate(callback.model, rotten())
            except OSError as error:
                failures.append(error)

    model = linear(1.0, 0.1)
    ones = np.ones((20, 1), "float32")
    model.fit(ones, 0 * ones, batch_size=2, verbose=0, callbacks=[Act(swallow)])
    assert len(failures) == 1
    assert model.get_weights()[0].item() == approx(0.8**10)


@pytest.mark.backend("tensorflow", "jax")  # PyTorch takes no `steps_per_execution`
def test_steps_are_counted_not_hooks() -> None:
    """keras-team/keras#17589, keras-team/keras#20861, keras-team/keras#17632."""
    x = np.ones((20, 1), "float32")
    model = linear(steps_per_execution=4)
    evaluation = kt.StepEvaluation((x[:2], x[:2]), every_steps=24, at_end=False)
    model.fit(x, 0 * x, batch_size=2, epochs=6, verbose=0, callbacks=[evaluation])
    assert evaluation.history["step"] == [24, 48]


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_a_padded_tail_does_not_bias_the_loss(reduction: str) -> None:
    """keras-team/keras#13641, keras-team/keras#13329, tensorflow/tensorflow#38596."""
    x = column(*range(1, 11))
    model = linear(loss=keras.losses.MeanSquaredError(reduction=reduction))
    assert kt.evaluate(model, x, 0 * x, batch_size=4)["loss"] == approx(38.5)


def test_uneven_weights_weigh_what_they_should() -> None:
    """keras-team/keras#20241."""
    x = column(*range(1, 11))
    weights = np.asarray([1] * 8 + [10, 10], "float32")
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    results = kt.evaluate(linear(loss=loss), x, 0 * x, weights, batch_size=4)
    assert results["loss"] == approx(np.sum(weights * x[:, 0] ** 2) / weights.sum())


def test_metrics_do_not_see_the_padding() -> None:
    """keras-team/keras#3855, keras-team/keras#1642, keras-team/keras#15373."""
    x = column(*range(1, 11))
    model = linear(metrics=["mae"], weighted_metrics=[keras.metrics.MeanAbsoluteError("wmae")])
    results = kt.evaluate(model, x, 0 * x, batch_size=4)
    assert (results["mae"], results["wmae"]) == (approx(5.5), approx(5.5))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_masked_loss_does_not_depend_on_the_batches(batch_size: int) -> None:
    """keras-team/keras#4186, keras-team/keras#15323, tensorflow/tensorflow#34491."""
    x = np.asarray([[1, 0, 0, 0], [1, 2, 3, 4]], "float32")[..., None]
    inputs = keras.Input((4, 1))
    masked = keras.layers.Masking(0.0)(inputs)
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(masked)
    model = keras.Model(inputs, outputs)
    model.compile(loss="mse", metrics=["mse"])
    results = kt.evaluate(model, x, 0 * x, batch_size=batch_size)
    assert results == {"loss": approx(31 / 5), "mse": approx(31 / 5)}


def recall_fn(y_true: Any, y_pred: Any) -> Any:
    hits = keras.ops.sum(y_true * keras.ops.round(y_pred))
    return hits / (keras.ops.sum(y_true) + 1e-7)


def test_a_metric_of_a_whole_batch_is_named() -> None:
    """keras-team/keras#4592, keras-team/keras#11705, keras-team/keras#5400."""
    x, y = column(0, 1, 0, 1), column(0, 0, 1, 1)
    model = linear(metrics=[recall_fn, keras.metrics.Recall(name="recall")])
    results = kt.evaluate(model, x, y, batch_size=3)
    assert results["recall"] == approx(0.5)
    assert results["recall_fn"] == approx((3 * 0 + 1 * 1) / 4, abs=1e-6)
    assert list(results.notes) == ["recall_fn"]


@pytest.mark.backend("jax")
def test_a_mesh_takes_a_tail_that_it_does_not_divide() -> None:
    """keras-team/keras#21167, keras-team/keras#18721."""
    import jax

    mesh = keras.distribution.DataParallel(devices=jax.devices()[:2], auto_shard_dataset=False)
    with mesh.scope():
        model = linear()
        x = column(*range(1, 10))
        assert kt.evaluate(model, x, 0 * x, batch_size=4)["loss"] == approx(95 / 3)
        assert model.get_weights()[0].item() == 1.0


def test_the_training_loss_is_that_since_the_last_look() -> None:
    """NVIDIA-Merlin/models#862, keras-team/keras#9243, keras-team/keras-io#48."""
    x = column(1, 1, 1, 1, 1, 10, 1, 1)
    evaluation = kt.StepEvaluation((x[:1], 0 * x[:1]), every_steps=1)
    linear().fit(x, 0 * x, batch_size=1, shuffle=False, verbose=0, callbacks=[evaluation])
    assert evaluation.history["loss"] == approx((x**2).ravel().tolist())


def batches() -> Iterator[Any]:
    for value in range(1, 6):
        yield np.full((2, 1), value, "float32"), np.zeros((2, 1), "float32")


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras's word on any such data
@pytest.mark.backend("tensorflow")
def test_data_of_unknown_length_makes_no_phantom_step() -> None:
    """tensorflow/tensorflow#35422, keras-team/keras#16252."""
    import tensorflow as tf

    spec = (tf.TensorSpec((None, 1)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    budget = kt.StepBudget(1000)
    model = linear()
    model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[budget])
    assert (budget.step, int(model.optimizer.iterations)) == (15, 15)


class Traced(keras.layers.Layer):
    """Counts how often Python runs its `call`."""

    traces = 0

    def call(self, inputs: Any) -> Any:
        type(self).traces += 1
        return inputs


@pytest.mark.backend("tensorflow", "jax")
def test_sizes_do_not_compile_the_model_again() -> None:
    """tensorflow/tensorflow#29825, tensorflow/tensorflow#38561."""
    model = keras.Sequential([keras.Input((1,)), Traced(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    sizes = [column(*range(rows)) for rows in (8, 16, 19, 21, 23)]
    kt.evaluate(model, sizes[0], sizes[0], batch_size=8)
    before = Traced.traces
    for x in sizes:
        kt.evaluate(model, x, x, batch_size=8)
    assert Traced.traces == before


def test_class_weights_are_trainings_alone() -> None:
    """keras-team/keras#5616, keras-team/keras#7985, keras-team/keras#8591."""
    x, y = column(1, 2, 3, 4), column(0, 0, 0, 1)
    evaluation = kt.StepEvaluation((x, y))
    linear().fit(
        x, y, batch_size=4, verbose=0, class_weight={0: 1.0, 1: 5.0}, callbacks=[evaluation]
    )
    losses = ((x - y) ** 2).ravel()
    assert evaluation.history["loss"] == approx([(losses @ [1, 1, 1, 5]) / 4])
    assert evaluation.history["val_loss"] == approx([losses.mean()])


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
def test_batch_norm_is_evaluated_with_its_moving_statistics() -> None:
    """keras-team/keras#6977, tensorflow/tensorflow#44568."""
    x = np.random.default_rng(0).normal(3, 2, (8, 1)).astype("float32")
    norm = keras.layers.BatchNormalization(center=False, scale=False)
    model = keras.Sequential([keras.Input((1,)), norm])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, 0 * x, batch_size=8, verbose=0)
    mean, variance = 0.01 * x.mean(), 0.99 + 0.01 * x.var()
    right = np.mean((x - mean) ** 2 / (variance + 1e-3))
    assert kt.evaluate(model, x, 0 * x, batch_size=3)["loss"] == approx(right, rel=1e-5)


def test_metrics_of_several_heads_stay_with_their_head() -> None:
    """keras-team/keras#22625."""
    inputs = keras.Input((1,))
    p = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="p")(inputs)
    q = keras.layers.Dense(3, use_bias=False, kernel_initializer="zeros", name="q")(inputs)
    model = keras.Model(inputs, [p, q])
    model.compile(
        "sgd",
        {"p": "mse", "q": "mse"},
        metrics={
            "p": [keras.metrics.MeanAbsoluteError(name="mae")],
            "q": [keras.metrics.MeanSquaredError(name="sq")],
        },
    )
    x = column(*range(1, 11))
    results = kt.evaluate(model, x, [0 * x, np.full((10, 3), 2.0, "float32")], batch_size=4)
    assert (results["p_mae"], results["q_sq"]) == (approx(5.5), approx(4.0))
    assert results["loss"] == approx(38.5 + 4.0)


def test_an_evaluation_of_other_data_is_its_own() -> None:
    """tensorflow/tensorflow#43262."""
    x = column(*range(1, 11))
    evaluation = kt.StepEvaluation((column(7, 7, 7), column(0, 0, 0)), prefix="other_")
    data = (x[:2], 0 * x[:2])
    history = (
        linear()
        .fit(x, 0 * x, batch_size=2, verbose=0, validation_data=data, callbacks=[evaluation])
        .history
    )
    assert history["val_loss"] == approx([2.5])
    assert evaluation.history["other_loss"] == approx([49.0])
    assert evaluation.history["loss"] == approx([38.5])


def test_a_state_is_stored_at_true_steps_with_several_in_an_execution(tmp_path: Path) -> None:
    """keras-team/keras#17589, keras-team/keras#17632."""
    x = np.ones((64, 1), "float32")
    spe = {} if BACKEND == "torch" else {"steps_per_execution": 4}
    stored: list[int] = []

    def look(callback: Any, *_: Any) -> None:
        names = sorted(path.name for path in tmp_path.glob("resume-*.npz"))
        stored.extend(int(name[-12:-4]) for name in names)

    for epochs in range(1, 3):
        resume = kt.Resume(tmp_path, every_steps=8, keep=9)
        linear(**spe).fit(x, 0 * x, batch_size=2, epochs=epochs, verbose=0, callbacks=[resume])
    look(None)
    first = 4 if spe else 1  # after the first execution, and the end of each fit
    assert stored == [first, 8, 16, 24, 32, 32, 40, 48, 56, 64, 64][-9:]


def test_a_crash_in_mid_epoch_trains_no_batch_twice(tmp_path: Path) -> None:
    """keras-team/keras#16252, tensorflow/tensorflow#55241, keras-team/keras#19179."""
    x, calls = np.ones((20, 1), "float32"), []

    def boom(callback: Any, *_: Any) -> None:
        calls.append(1)
        if len(calls) == 18:
            raise RuntimeError("power cut")

    def fit(*callbacks: Any) -> Any:
        model = linear(rate=0.01)
        resume = kt.Resume(tmp_path, every_steps=5)
        model.fit(x, 0 * x, batch_size=2, epochs=2, verbose=0, callbacks=[resume, *callbacks])
        return model, resume

    with pytest.raises(RuntimeError, match="power cut"):
        fit(Act(boom))
    model, resume = fit()
    assert resume.resumed_from == 15
    assert int(model.optimizer.iterations) == resume.step == 20
    assert float(model.get_weights()[0].item()) == approx(0.98**20)


def test_a_restart_remembers_the_best(tmp_path: Path) -> None:
    """keras-team/keras#17012, tensorflow/tensorflow#57667, Lightning-AI/pytorch-lightning#5173."""
    x, values = np.ones((4, 1), "float32"), [3.0, 1.0, 2.0, 2.5, 2.0, 1.5]

    class Inject(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].kernel.assign([[values[epoch]]])

    for epochs in (3, 6):
        model = linear()
        evaluation = kt.StepEvaluation((x, 0 * x))
        best = kt.BestCheckpoints(tmp_path / "best", keep=1, save_weights_only=True)
        resume = kt.Resume(tmp_path / "resume", every_steps=2)
        callbacks = [evaluation, best, resume, Inject()]
        model.fit(x, 0 * x, batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
    assert best.best is not None
    assert best.best.step == 2
    assert evaluation.history["val_loss"] == approx([v**2 for v in values])
    assert float(best.restore(model).get_weights()[0].item()) == min(values)


@pytest.mark.parametrize("form", ["arrays", "generator"])
def test_host_memory_does_not_grow_with_evaluations(form: str) -> None:
    """keras-team/keras#13118, tensorflow/tensorflow#33030, keras-team/keras#20779."""
    import gc

    import psutil

    process = psutil.Process()
    x = np.ones((64, 16), "float32")
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    y = np.ones((64, 4), "float32")

    def data() -> Any:
        return (x, y) if form == "arrays" else iter([(x, y), (x, y)])

    def resident() -> int:
        gc.collect()
        return int(process.memory_info().rss)

    for _ in range(30):
        kt.evaluate(model, data())
    grown = [resident()]
    for _ in range(5):
        for _ in range(20):
            kt.evaluate(model, data())
        grown.append(resident())
    slope = np.polyfit(np.arange(0, 101, 20), grown, 1)[0]
    assert slope < 20 * 1024


# Checkpoints.


def shrinking(rate: float = 0.1, **options: Any) -> Any:
    """A weight of 1 that is 0.8 times as large after each step on ones, towards zero."""
    return linear(1.0, rate, **options)


ONES = column(*[1.0] * 20)


def kernels(directory: Any) -> dict[int, float]:
    """The weight in each kept checkpoint, by step, as Keras loads it."""
    kept = kt.Checkpoints(directory).checkpoints
    return {c.step: keras.models.load_model(c.path).get_weights()[0].item() for c in kept}


@pytest.mark.backend("tensorflow", "jax")  # PyTorch has no `steps_per_execution`
def test_checkpoints_are_of_the_batches_that_ran(tmp_path: Any) -> None:
    """keras-team/keras#17589, keras-team/keras#20861, keras-team/keras#21422."""
    model = shrinking(0.0, steps_per_execution=4)
    evaluation = kt.StepEvaluation((ONES, ONES), every_steps=24, at_end=False)
    best = kt.BestCheckpoints(tmp_path, keep=9)
    # 10 batches an epoch in executions of 4, 4 and 2: Keras counts 12 of them.
    model.fit(ONES, ONES, batch_size=2, epochs=6, verbose=0, callbacks=[evaluation, best])
    assert sorted(c.step for c in best.checkpoints) == [24, 48]


def test_the_best_within_epochs_is_kept(tmp_path: Any) -> None:
    """tensorflow/tensorflow#33163, keras-team/keras#16734, tensorflow/tensorflow#44107."""
    for monitor in ("loss", "val_loss"):
        model = shrinking()
        # Training drives the weight to 0, where the targets of the evaluation want 1.
        evaluation = kt.StepEvaluation((ONES[:4], ONES[:4]), every_steps=5, at_end=False)
        best = kt.BestCheckpoints(tmp_path / monitor, monitor=monitor, keep=1, keep_last=0)
        callbacks = [evaluation, best]
        model.fit(ONES, 0 * ONES, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
        step = {"loss": 20, "val_loss": 5}[monitor]
        assert kernels(tmp_path / monitor) == {step: approx(0.8**step, rel=1e-5)}
    assert best.best is not None
    assert best.best.metrics["val_loss"] == approx((1 - 0.8**5) ** 2, rel=1e-5)


def test_an_epoch_without_the_value_leaves_the_best(tmp_path: Any) -> None:
    """keras-team/keras#13689, tensorflow/tensorflow#41632, keras-team/keras#15684."""
    best = kt.BestCheckpoints(tmp_path, keep=1, keep_last=0)
    shrinking().fit(
        ONES,
        0 * ONES,
        batch_size=20,
        epochs=5,
        verbose=0,
        validation_data=(ONES[:4], 0.64 * ONES[:4]),
        validation_freq=2,
        callbacks=[best],
    )
    # After epoch 2 the weight is 0.64, after epoch 4 it is 0.41; the others were not validated.
    assert kernels(tmp_path) == {2: approx(0.64)}


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_save_that_fails_leaves_the_one_before(tmp_path: Any, weights_only: bool) -> None:
    """Lightning-AI/pytorch-lightning#688, keras-team/keras#20463, keras-team/keras-tuner#390."""
    resource = pytest.importorskip("resource")
    dense = keras.layers.Dense(512, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((64,)), dense, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    best = kt.BestCheckpoints(tmp_path, keep=1, save_weights_only=weights_only)
    x, y = np.ones((8, 64), "float32"), np.zeros((8, 1), "float32")
    callbacks = [kt.StepEvaluation((x, y)), best]
    model.fit(x, y, verbose=0, callbacks=callbacks)
    assert best.last is not None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (best.last.path.stat().st_size // 2, limits[1]))
    try:
        model.fit(x, y, verbose=0, callbacks=callbacks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert best.failures == 1
    dense.kernel.assign(0 * dense.kernel)
    kt.Checkpoints(tmp_path).restore(model)
    assert np.mean(dense.get_weights()[0]) == 1.0


def test_a_validation_that_is_not_finite_ends_the_fit() -> None:
    """keras-team/keras#4848, keras-team/keras#6456."""
    x = np.ones((20, 1), "float32")
    validation = column(float("nan"), 1.0), column(0, 0)
    printer = kt.TensorPrinter()
    history = (
        linear(1.0, 0.1)
        .fit(x, 0 * x, 2, epochs=5, verbose=0, validation_data=validation, callbacks=[printer])
        .history
    )
    assert len(history["val_loss"]) == 1


def root(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.sqrt(keras.ops.abs(y_true - y_pred))


def test_no_checkpoint_holds_weights_that_are_not_finite(tmp_path: Any) -> None:
    """keras-team/keras-io#910, kyutai-labs/pocket-tts#262."""
    x, y = column(1, 1, 1, 1), column(0, 0, 0, 1)  # the last row fits exactly
    path = tmp_path / "e.weights.h5"
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    printer = kt.TensorPrinter()
    model = linear(1.0, 0.0, root)
    model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[printer, save])
    model.load_weights(path)
    assert model.get_weights()[0].item() == 1.0
    assert printer.report is not None
    assert (printer.report.step, printer.report.producer) == (4, "loss root")


class Log(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return keras.ops.log(inputs)


def test_the_layer_is_named_that_first_gives_nan() -> None:
    """keras-team/keras#17604, keras-team/keras#2627, tensorflow/tensorflow#2288."""
    dense = keras.layers.Dense
    x = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    names = [dense(8, name="first"), dense(8, name="second"), Log(name="third")]
    model = keras.Sequential([keras.Input((32,)), *names, dense(8, "tanh"), dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    before = model.get_weights()
    printer = kt.TensorPrinter()
    model.fit(x, x[:, :1], batch_size=64, verbose=0, callbacks=[printer])
    assert printer.report is not None
    assert printer.report.producer == "third"
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
