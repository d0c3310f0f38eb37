"""The best checkpoints of a real `fit`: which are kept, what they hold, and what goes wrong."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._trick import Trick
from tests.small_fit import (
    BACKEND,
    column,
    draws,
    regression,
    state_of,
)

ROOT = Path(__file__).parents[1]


def shrinking(learning_rate=0.1, **options):
    """One weight of 1 that SGD takes towards 0 by a fifth at each step: see `weight_after`."""
    return regression(learning_rate, **options)


def weight_after(step):
    return 0.8**step


def fit(model, *callbacks, steps=10, epochs=1, **options):
    """Steps of one example each, `x = 1` and `y = 0`."""
    x = column(np.ones(steps))
    model.fit(
        x, 0 * x, batch_size=1, epochs=epochs, verbose=0, callbacks=list(callbacks), **options
    )
    return model


def towards(target):
    """Validation data whose loss is `(weight - target) ** 2`."""
    return column([1.0]), column([target])


def evaluating(target=0.0, **options):
    return kt.StepEvaluation(towards(target), **{"every_steps": 1, **options})


def steps(found):
    return [checkpoint.step for checkpoint in found]


def files(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def written(directory):
    return json.loads((Path(directory) / "checkpoints.json").read_text())


class At(Trick):
    """Calls `act` when an evaluation is heard, or before a save."""

    def __init__(self, act=None, before_save=None):
        super().__init__()
        self.act = act
        self.saves = before_save

    def on_evaluation(self, evaluation):
        if self.act is not None:
            self.act(evaluation)

    def before_save(self):
        if self.saves is not None:
            self.saves()


# Which are kept.


def test_the_best_and_the_newest_are_on_disk_and_nothing_else(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=2)
    fit(shrinking(), best, evaluating(0.8**4))
    # 0.8 ** 4 is met at step 4; the step before is farther away than the step after.
    assert steps(best.checkpoints) == [4, 5, 10]
    assert [c.rank for c in best.checkpoints] == [1, 2, 3]
    assert (best.best.step, best.last.step) == (4, 10)
    assert files(tmp_path) == ["checkpoints.json", *(c.path.name for c in best.checkpoints)]
    assert best.best.path.name == "step-00000004.keras"
    assert len(written(tmp_path)["evaluations"]) == 10


def test_the_file_of_the_best_has_its_weights(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=1)
    fit(shrinking(), best, evaluating(0.8**4))
    loaded = keras.models.load_model(best.best.path)
    assert float(loaded.get_weights()[0].item()) == pytest.approx(weight_after(4), rel=1e-6)
    assert int(loaded.optimizer.iterations) == 4


def test_equal_values_keep_the_earliest(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=2)
    fit(shrinking(0.0), best, evaluating(), steps=5)
    assert steps(best.checkpoints) == [1, 2, 5]


def test_without_newest_ones_only_what_is_better_is_written(tmp_path):
    told = []
    best = kt.BestCheckpoints(tmp_path, keep=1, keep_last=0)
    fit(shrinking(), best, evaluating(0.8**4), At(before_save=lambda: told.append(best.best)))
    assert files(tmp_path) == ["checkpoints.json", "step-00000004.keras"]
    assert len(told) == len(written(tmp_path)["evaluations"]) == 10


def test_keras_own_validation_saves_where_no_step_evaluation_does(tmp_path):
    """The trouble of keras-team/keras#13689: two of five epochs are validated."""
    best = kt.BestCheckpoints(tmp_path, keep=1)
    fit(
        shrinking(),
        best,
        steps=1,
        epochs=5,
        validation_data=towards(0.64),
        validation_freq=2,
    )
    losses = {step: (weight_after(step) - 0.64) ** 2 for step in (2, 4)}
    assert steps(best.checkpoints) == [min(losses, key=losses.get), 4]
    assert best.best.metrics["val_loss"] == pytest.approx(0.0, abs=1e-7)
    assert best.best.epoch == 1


def test_keras_own_validation_is_noted_and_not_ranked_beside_a_step_evaluation(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=5, keep_last=0)
    # Keras's own validation is perfect, by other data.
    fit(
        shrinking(0.0),
        best,
        evaluating(5.0, every_steps=4),
        steps=10,
        validation_data=towards(1.0),
    )
    assert steps(best.checkpoints) == [4, 8, 10]
    own = [e for e in written(tmp_path)["evaluations"] if e.get("by_fit")]
    assert [(e["step"], e["metrics"]["val_loss"]) for e in own] == [(10, 0.0)]


def test_two_evaluations_at_one_step_make_one_checkpoint(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=3, keep_last=0)
    other = kt.StepEvaluation(towards(0.5), every_steps=5, prefix="test_")
    fit(shrinking(), other, best, evaluating(0.0, every_steps=5))
    assert steps(best.checkpoints) == [10, 5]
    names = {"loss", "val_loss", "test_loss"}
    assert [set(c.metrics) for c in best.checkpoints] == [names, names]
    assert files(tmp_path) == ["checkpoints.json", "step-00000005.keras", "step-00000010.keras"]


def test_an_evaluation_that_lacks_the_value_is_noted_alone(tmp_path):
    best = kt.BestCheckpoints(tmp_path)
    other = kt.StepEvaluation(towards(0.5), every_steps=2, prefix="test_", at_end=False)
    fit(shrinking(), best, evaluating(0.0, every_steps=4), other)
    assert sorted(steps(best.checkpoints)) == [4, 8, 10]
    assert [e["step"] for e in written(tmp_path)["evaluations"]] == [2, 4, 6, 8, 10]


def test_the_training_loss_can_be_monitored(tmp_path):
    """The trouble of tensorflow/tensorflow#33163 and keras-team/keras#16734."""
    best = kt.BestCheckpoints(tmp_path, monitor="loss", keep=1)
    fit(shrinking(), best, evaluating(every_steps=2))
    assert best.best.step == 10
    expected = np.mean([weight_after(step) ** 2 for step in (8, 9)])
    assert best.best.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_values_are_those_of_the_evaluation(tmp_path):
    evaluation = evaluating(0.3, every_steps=3)
    best = kt.BestCheckpoints(tmp_path, keep=9)
    fit(shrinking(), best, evaluation)
    found = {c.step: c.metrics["val_loss"] for c in best.checkpoints}
    assert [found[step] for step in evaluation.history["step"]] == evaluation.history["val_loss"]


# What is not finite.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_that_is_not_finite_never_ranks(tmp_path, bad, mode):
    class Bad(keras.metrics.Metric):
        """`bad` while the weight is near 1, so first of all; later the weight."""

        def __init__(self, name):
            super().__init__(name=name)
            self.last = self.add_variable((), initializer="zeros", name="last")

        def update_state(self, y_true, y_pred, sample_weight=None):
            value = keras.ops.max(y_pred)
            self.last.assign(keras.ops.where(value > 0.7, bad, value))

        def result(self):
            return keras.ops.convert_to_tensor(self.last.value)

    best = kt.BestCheckpoints(tmp_path, monitor="val_value", mode=mode, keep=9)
    x = column(np.ones(4))
    model = shrinking(metrics=[Bad("value")])
    # A whole-batch metric of one example is the same however the batch is made.
    model.fit(x, 0 * x, batch_size=1, verbose=0, callbacks=[best, evaluating()])
    ranked = [2, 3, 4] if mode == "max" else [4, 3, 2]
    assert steps(best.checkpoints) == ranked
    assert written(tmp_path)["evaluations"][0]["metrics"]["val_value"] in (
        "NaN",
        "Infinity",
        "-Infinity",
    )


def test_weights_that_are_not_finite_are_never_stored(tmp_path, capsys):
    x = column([1, 1, 1e30, 1e30, 1])
    best = kt.BestCheckpoints(tmp_path, keep=1, monitor="val_loss")
    model = shrinking()
    model.fit(x, 0 * x, batch_size=1, shuffle=False, verbose=0, callbacks=[best, evaluating(0.64)])
    assert not np.isfinite(model.get_weights()[0]).all()
    assert steps(best.checkpoints) == [2]
    notes = [e.get("note") for e in written(tmp_path)["evaluations"]]
    assert notes[:2] == [None, None]
    assert all("kernel is not finite" in note for note in notes[2:])
    lines = [line for line in capsys.readouterr().out.splitlines() if "not finite" in line]
    assert len(lines) == 1


# The direction and the name.


def test_auto_knows_outputs_and_numbers(tmp_path):
    inputs = keras.Input((1,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("left", "right")]
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"left": "mse", "right": "mse"},
        metrics={"left": [keras.metrics.AUC(), keras.metrics.AUC()], "right": ["mae"]},
    )
    x = column(np.linspace(0, 1, 8))
    y = (x > 0.5).astype("float32")
    evaluation = kt.StepEvaluation((x, [y, y]), every_steps=1)
    names = ["val_left_auc_1", "val_right_mae", "val_left_loss", "val_loss"]
    watchers = [kt.BestCheckpoints(tmp_path / name, monitor=name, keep=1) for name in names]
    model.fit(x, [y, y], batch_size=4, verbose=0, callbacks=[evaluation, *watchers])
    rules = [written(tmp_path / name) for name in names]
    assert [rule["mode"] for rule in rules] == ["max", "min", "min", "min"]
    assert rules[0]["directions"]["val_left_auc"] == "max"


def test_a_loss_used_as_a_metric_is_minimised(tmp_path):
    model = shrinking(metrics=[keras.losses.cosine_similarity])
    best = kt.BestCheckpoints(tmp_path, monitor="val_cosine_similarity")
    fit(model, best, evaluating())
    assert written(tmp_path)["mode"] == "min"


def test_a_built_in_metric_under_a_name_of_the_users_is_known(tmp_path):
    model = shrinking(metrics=[keras.metrics.R2Score(name="fitness")])
    best = kt.BestCheckpoints(tmp_path, monitor="val_fitness")
    x = column(np.ones(4))
    model.fit(
        x,
        0 * x,
        verbose=0,
        callbacks=[best, kt.StepEvaluation((column([1, 2]), column([1, 2])))],
    )
    assert written(tmp_path)["mode"] == "max"


def test_a_metric_of_the_users_needs_a_mode_before_the_second_step(tmp_path):
    def wrongness(y_true, y_pred):
        return keras.ops.abs(y_true - y_pred)

    seen = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(batch)

    best = kt.BestCheckpoints(tmp_path, monitor="val_wrongness")
    with pytest.raises(ValueError, match=r"`mode` must be .*'val_wrongness'.* Pass `mode=\"min\"`"):
        fit(shrinking(metrics=[wrongness]), best, Count(), evaluating())
    assert seen == [0]
    fit(
        shrinking(metrics=[wrongness]),
        kt.BestCheckpoints(tmp_path, monitor="val_wrongness", mode="min"),
        evaluating(),
    )
    assert written(tmp_path)["directions"]["val_wrongness"] == "min"


@pytest.mark.parametrize("mode", ["auto", "min"])
def test_a_misspelt_value_is_an_error_that_lists_the_names(tmp_path, mode):
    best = kt.BestCheckpoints(tmp_path, monitor="val_los", mode=mode)
    with pytest.raises(ValueError, match=r"`(monitor|mode)` must be .*'val_los'.*'val_loss'"):
        fit(shrinking(), best, evaluating(every_steps=2))
    assert files(tmp_path) == []


def test_a_value_that_is_missing_from_the_validation_is_named(tmp_path):
    best = kt.BestCheckpoints(tmp_path, monitor="val_mae")
    with pytest.raises(ValueError, match=r"`monitor` must be one of \['val_loss'\], got 'val_mae'"):
        fit(shrinking(), best, validation_data=towards(0.0))


def test_an_array_cannot_be_monitored(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    x, y = column([0, 1]), np.eye(2, dtype="float32")
    best = kt.BestCheckpoints(tmp_path, monitor="val_f1_score")
    with pytest.raises(ValueError, match=r"`monitor` must name a single number.*shape \(2,\)"):
        model.fit(x, y, verbose=0, callbacks=[best, kt.StepEvaluation((x, y))])


# Arguments.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep": 0}, ValueError, "`keep` must be at least 1, got 0"),
        ({"keep": 1.5}, TypeError, "`keep` must be a whole number"),
        ({"keep_last": -1}, ValueError, "`keep_last` must be at least"),
        ({"mode": "lower"}, ValueError, "`mode` must be .* got 'lower'"),
        ({"monitor": ""}, ValueError, "`monitor` must not be empty"),
        ({"monitor": None}, TypeError, "`monitor` must be the name of a value, got None"),
        ({"existing": "append"}, ValueError, "`existing` must be .* got 'append'"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        kt.BestCheckpoints(tmp_path, **options)


def test_nothing_is_made_before_fit(tmp_path):
    best = kt.BestCheckpoints(tmp_path / "run")
    assert files(tmp_path) == []
    assert best.checkpoints == []
    assert best.best is None
    assert best.last is None


def test_a_directory_that_cannot_be_written_is_an_error_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="`directory` must be a directory"):
        fit(shrinking(), kt.BestCheckpoints(tmp_path / "file"), evaluating())


def test_a_model_whose_configuration_cannot_be_saved_is_known_before_training(tmp_path):
    class Bare(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, x):
            return self.layer(x)

        def get_config(self):
            return {"layer": keras.saving.serialize_keras_object(self.layer)}

    def model():
        model = Bare(Opaque())
        model.compile("sgd", "mse")
        return model

    class Opaque(keras.layers.Layer):
        def __init__(self, function=lambda x: x, lock=None):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def get_config(self):
            raise NotImplementedError("no configuration")

    with pytest.raises(ValueError, match=r"`save_weights_only` must be True .*no configuration"):
        fit(model(), kt.BestCheckpoints(tmp_path), evaluating())
    best = kt.BestCheckpoints(tmp_path, save_weights_only=True, keep=1, keep_last=0)
    trained = fit(model(), best, evaluating(), steps=3)
    assert files(tmp_path) == ["checkpoints.json", "step-00000003.weights.h5"]
    kernel = trained.get_weights()[0]
    trained.layer.dense.kernel.assign(0 * kernel)
    best.restore()
    assert trained.get_weights()[0] == pytest.approx(kernel)


# What is there already.


def test_a_directory_with_another_run_is_an_error_before_training(tmp_path):
    fit(shrinking(), kt.BestCheckpoints(tmp_path), evaluating())
    before = files(tmp_path)
    model = shrinking()
    with pytest.raises(
        ValueError, match=r"must not hold another run.*step 10.*at step 0.*existing"
    ):
        fit(model, kt.BestCheckpoints(tmp_path), evaluating())
    assert files(tmp_path) == before
    assert int(model.optimizer.iterations) == 0


def test_continue_ranks_on_with_what_is_there(tmp_path):
    """The trouble of keras-team/keras#17012: a restart forgets the best value."""
    fit(shrinking(), kt.BestCheckpoints(tmp_path, keep=1), evaluating(0.8**4))
    best = kt.BestCheckpoints(tmp_path, keep=1, existing="continue")
    fit(shrinking(0.05), best, evaluating(0.8**4), steps=3)
    assert best.best.step == 4
    assert best.best.metrics["val_loss"] == pytest.approx(0.0, abs=1e-9)
    loaded = keras.models.load_model(best.best.path)
    assert float(loaded.get_weights()[0].item()) == pytest.approx(weight_after(4), rel=1e-6)
    assert steps(best.checkpoints) == [4, 3]


def test_replace_starts_afresh_and_leaves_what_is_not_ours(tmp_path):
    (tmp_path / "step-00000099.keras").write_text("mine")
    fit(shrinking(), kt.BestCheckpoints(tmp_path), evaluating())
    best = kt.BestCheckpoints(tmp_path, existing="replace", keep=1)
    fit(shrinking(0.05), best, evaluating(), steps=2)
    assert files(tmp_path) == ["checkpoints.json", "step-00000002.keras", "step-00000099.keras"]
    assert len(written(tmp_path)["evaluations"]) == 2


def test_a_second_fit_goes_on(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=2, existing="replace")
    model = fit(shrinking(), best, evaluating(0.8**4), steps=6)
    fit(model, best, evaluating(0.8**4), steps=6)
    assert steps(best.checkpoints) == [4, 5, 12]
    assert len(written(tmp_path)["evaluations"]) == 12


def test_a_restored_model_goes_on_from_the_step_of_its_checkpoint(tmp_path):
    fit(shrinking(), kt.BestCheckpoints(tmp_path), evaluating(0.8**4))
    model = kt.Checkpoints(tmp_path).restore(step=10)
    best = kt.BestCheckpoints(tmp_path)
    evaluation = evaluating(0.8**4)
    fit(model, best, evaluation, steps=3)
    assert evaluation.history["step"] == [11, 12, 13]
    assert best.best.step == 4


def test_the_same_step_evaluated_again_is_not_stored_again(tmp_path):
    best = kt.BestCheckpoints(tmp_path, keep=9)
    model = fit(shrinking(), best, evaluating(), steps=3)
    fit(model, best, evaluating(at_start=True), steps=1)
    assert sorted(steps(best.checkpoints)) == [1, 2, 3, 4]


# Bit for bit.


@keras.saving.register_keras_serializable("tests")
class Scale(keras.layers.Layer):
    """A custom layer with a weight of each kind."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.seen = self.add_weight(initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1.0)
        return x * self.scale


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A subclassed model with layers in a list."""

    def __init__(self, units=4):
        super().__init__()
        self.units = units
        self.parts = [
            keras.layers.Flatten(),
            keras.layers.Dense(units),
            keras.layers.BatchNormalization(),
            Scale(),
            keras.layers.Dropout(0.3),
        ]
        self.head = keras.layers.Dense(3)

    def call(self, x, training=False):
        for part in self.parts:
            x = part(x, training=training)
        return self.head(x)

    def get_config(self):
        return {"units": self.units}


def data(rows=24, seed=0):
    """Inputs `[rows, 4]` and labels of three classes."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, 4)).astype("float32"), generator.integers(0, 3, rows)


VALIDATION = data(8, seed=1)


def functional():
    """A frozen layer, batch norm, a custom layer, and seeds."""
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, trainable=False)(inputs)
    x = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(3)(Scale()(x)))


def compiled(model, optimizer=None, **options):
    """`model` with an optimizer that keeps averages of the weights."""
    averaging = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or averaging, loss, metrics=["accuracy"], **options)
    return model


def with_policy(policy, optimizer):
    keras.config.set_dtype_policy(policy)
    try:
        return compiled(functional(), optimizer)
    finally:
        keras.config.set_dtype_policy("float32")


FORMS = {
    "functional": lambda: compiled(functional()),
    "subclassed": lambda: compiled(Subclassed(), "sgd"),
    "mixed_float16": lambda: with_policy(
        "mixed_float16",
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)),
    ),
    "bfloat16": lambda: with_policy("bfloat16", "adam"),
}
if BACKEND != "torch":
    FORMS["executions of two steps"] = lambda: compiled(
        functional(), "adam", steps_per_execution=2, jit_compile=True
    )


def values_of(model):
    """Every weight and optimizer variable as bytes, in order."""
    variables = [*model.weights, *(model.optimizer.variables if model.optimizer else [])]
    return [keras.ops.convert_to_numpy(v.value).tobytes() for v in variables]


class Copies(Trick):
    """Copies the state at each evaluation, independently of any checkpoint."""

    def __init__(self):
        super().__init__()
        self.at = {}

    def on_evaluation(self, evaluation):
        if not evaluation.by_fit:
            self.at[evaluation.step] = values_of(self.model)


def checked(directory, model, weights_only=False):
    """Trains on while checkpoints are written; each with the state at its step."""
    best = kt.BestCheckpoints(directory, keep=9, save_weights_only=weights_only)
    copies = Copies()
    evaluation = kt.StepEvaluation(VALIDATION, every_steps=1)
    x, y = data()
    callbacks = [best, evaluation, copies]
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    assert best.failures == 0
    assert len(best.checkpoints) == len(copies.at) >= 4
    return best, copies


@pytest.mark.parametrize("form", FORMS)
def test_a_file_holds_the_state_of_its_step_bit_for_bit(tmp_path, form):
    best, copies = checked(tmp_path, FORMS[form]())
    for checkpoint in best.checkpoints:
        loaded = keras.models.load_model(checkpoint.path)
        assert values_of(loaded) == copies.at[checkpoint.step]


def test_weights_alone_hold_the_state_as_well(tmp_path):
    best, copies = checked(tmp_path, FORMS["functional"](), weights_only=True)
    fresh = FORMS["functional"]()
    for checkpoint in best.checkpoints:
        kt.Checkpoints(tmp_path).restore(fresh, step=checkpoint.step)
        assert values_of(fresh) == copies.at[checkpoint.step]


@pytest.mark.backend("tensorflow")
def test_mirrored_replicas_are_saved_as_one(tmp_path):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        model = compiled(functional(), "adam")
    best, _ = checked(tmp_path, model)
    last = keras.models.load_model(best.last.path)
    # Trained no more after the last evaluation.
    for ours, loaded in zip(model.trainable_variables, last.trainable_variables, strict=True):
        assert np.array_equal(ours.value.values[1].numpy(), loaded.numpy())
    best.restore(step=best.checkpoints[-1].step)
    loaded = keras.models.load_model(best.checkpoints[-1].path)
    assert np.array_equal(model.get_weights()[0], loaded.get_weights()[0])


@pytest.mark.backend("jax")
def test_a_mesh_is_saved_as_one(tmp_path):
    devices = keras.distribution.list_devices()[:4]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        best, copies = checked(tmp_path, compiled(functional()))
    finally:
        keras.distribution.set_distribution(None)
    for checkpoint in best.checkpoints:
        assert values_of(keras.models.load_model(checkpoint.path)) == copies.at[checkpoint.step]


def test_a_model_with_several_optimizers_is_saved_whole(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.second = keras.optimizers.Adam()

        def build(self, shape):
            self.dense.build(shape)
            self.second.build(self.dense.trainable_variables)

        def call(self, x):
            return self.dense(x)

        def get_config(self):
            return {}

    model = Twice()
    model.build((None, 1))
    model.compile("sgd", "mse")
    model.second.variables[2].assign(np.full((1, 1), 7.0))
    best = kt.BestCheckpoints(tmp_path)
    fit(model, best, evaluating(every_steps=5))
    assert best.failures == 0
    loaded = keras.models.load_model(best.best.path)
    assert float(keras.ops.convert_to_numpy(loaded.second.variables[2].value).item()) == 7.0


def test_a_large_weight_is_written_and_may_be_asked_for_again(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Twofold(keras.layers.Dense):
        """Saves its kernel, and its mean, for which it is read once more."""

        def save_own_variables(self, store):
            super().save_own_variables(store)
            store["mean"] = keras.ops.mean(keras.ops.convert_to_tensor(self.kernel))

        def load_own_variables(self, store):
            assert np.mean(store["0"]) == pytest.approx(store["mean"], abs=1e-6)
            self.kernel.assign(store["0"])

    model = keras.Sequential([keras.Input((700,)), Twofold(700, use_bias=False)])
    model.compile("sgd", "mse")
    x = np.ones((2, 700), "float32")
    best = kt.BestCheckpoints(tmp_path)
    model.fit(x, x, verbose=0, callbacks=[best, kt.StepEvaluation((x, x))])
    assert best.failures == 0
    loaded = keras.models.load_model(best.best.path)
    assert np.array_equal(loaded.get_weights()[0], model.get_weights()[0])


OFFLINE = """
import json, sys
import numpy as np
import keras_tricks as kt
found = kt.Checkpoints(sys.argv[1])
model = found.restore()
data = np.load(sys.argv[2])
values = kt.evaluate(model, data["x"], data["y"], batch_size=8)
print(json.dumps([values, found.best.metrics]))
"""


def test_in_a_new_process_the_number_recorded_is_met_to_the_last_digit(tmp_path):
    parts = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    best, _ = checked(tmp_path / "run", compiled(keras.Sequential(parts)))
    np.savez(tmp_path / "data.npz", x=VALIDATION[0], y=VALIDATION[1])
    command = [sys.executable, "-c", OFFLINE, tmp_path / "run", tmp_path / "data.npz"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values, recorded = json.loads(done.stdout.splitlines()[-1])
    assert {f"val_{name}": value for name, value in values.items()} == {
        name: recorded[name] for name in ("val_loss", "val_accuracy")
    }
    assert recorded == best.best.metrics


def test_keeping_checkpoints_changes_no_bit_of_the_training(tmp_path):
    def trained(*callbacks):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        model = compiled(functional())
        x, y = data()
        options = {"validation_data": VALIDATION, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(x, y, batch_size=8, epochs=2, **options)
        return state_of(model), model.history.history, draws()

    best = kt.BestCheckpoints(tmp_path)
    assert trained(best, kt.StepEvaluation(VALIDATION, every_steps=1)) == trained()
    assert len(best.checkpoints) == 5


def test_without_another_thread_the_same_is_written(tmp_path):
    found = []
    for background in (True, False):
        best = kt.BestCheckpoints(tmp_path / str(background), background=background)
        fit(shrinking(), best, evaluating())
        found.append([values_of(keras.models.load_model(c.path)) for c in best.checkpoints])
    assert best.waits == 0
    assert found[0] == found[1]


def test_seeds_go_beside_the_file_and_come_back(tmp_path):
    best, _ = checked(tmp_path, FORMS["functional"]())
    model = best.restore(step=5)
    seeds = [v for v in model.variables if "seed" in v.path]
    before = [keras.ops.convert_to_numpy(seed.value).tolist() for seed in seeds]
    for seed in seeds:
        seed.assign(0 * seed.value)
    best.restore(step=5)
    assert [keras.ops.convert_to_numpy(seed.value).tolist() for seed in seeds] == before
    beside = json.loads((tmp_path / "step-00000005.seeds.json").read_text())
    assert [seed["state"] for seed in beside["seeds"]] == before
    assert len(before) == 1


# What goes wrong behind training's back.


class Saved(keras.layers.Layer):
    """Does `act(number of the save)` when its weights are written."""

    act = staticmethod(print)

    def __init__(self, **options):
        super().__init__(**options)
        self.count = 0

    def build(self, shape):
        self.one = self.add_weight(initializer="ones", name="one")

    def call(self, x):
        return x * self.one

    def save_own_variables(self, store):
        self.count += 1
        self.act(self.count)
        super().save_own_variables(store)


def watched(act):
    """A model that calls `act` while it is saved."""
    layer = Saved()
    layer.act = act
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def lines_of(capsys, word):
    return [line for line in capsys.readouterr().out.splitlines() if word in line]


def test_a_second_snapshot_waits_for_the_first_and_is_counted(tmp_path):
    running, most = [], []

    def act(count):
        running.append(count)
        most.append(len(running))
        # The first save ends only when the second has been counted as waiting.
        while count == 1 and best.waits == 0:
            threading.Event().wait(0.001)
        running.remove(count)

    best = kt.BestCheckpoints(tmp_path)
    model = watched(act)
    fit(model, best, evaluating(), steps=4)
    assert best.waits >= 1
    assert best.wait_seconds > 0
    assert max(most) == 1
    assert sorted(steps(best.checkpoints)) == [1, 2, 3, 4]


def test_an_error_in_the_other_thread_is_told_once_and_costs_one_checkpoint(tmp_path, capsys):
    def act(count):
        if count in (2, 3):
            raise RuntimeError("no more ink")

    told = []
    best = kt.BestCheckpoints(tmp_path)
    after = At(lambda _: told.append(capsys.readouterr().out))
    fit(watched(act), best, evaluating(), after, steps=5)
    assert sorted(steps(best.checkpoints)) == [1, 4, 5]
    assert (best.failures, best.error) == (2, "RuntimeError: no more ink")
    said = [place for place, text in enumerate(told, start=1) if "no more ink" in text]
    assert said == [3]
    assert told[2] == (
        "BestCheckpoints: step 3: a checkpoint could not be written: RuntimeError: no more ink.\n"
    )
    notes = {e["step"]: e.get("note") for e in written(tmp_path)["evaluations"]}
    assert notes[2] == "not stored: RuntimeError: no more ink"
    assert [name for name in files(tmp_path) if name.startswith(".")] == []


def test_a_fit_that_raises_finishes_the_save_under_way(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 5:
                raise KeyboardInterrupt

    best = kt.BestCheckpoints(tmp_path)
    model = shrinking()
    with pytest.raises(KeyboardInterrupt):
        fit(model, best, evaluating(), Stop())
    del model
    fit(shrinking(), kt.BestCheckpoints(tmp_path / "next"), evaluating(), steps=1)
    assert steps(kt.Checkpoints(tmp_path).checkpoints) == [5, 4, 3, 2, 1]


def test_a_checkpoint_deleted_during_training_costs_itself(tmp_path, capsys):
    def delete(evaluation):
        best._writer.wait()
        if evaluation.step == 5:
            (tmp_path / "step-00000004.keras").unlink()

    best = kt.BestCheckpoints(tmp_path, keep=2)
    fit(shrinking(), At(delete), best, evaluating(0.8**4))
    assert steps(best.checkpoints) == [5, 3, 10]
    (line,) = lines_of(capsys, "is gone")
    assert line.endswith(": step-00000004.keras is gone.")
    assert best.failures == 0


def test_a_directory_that_disappears_during_training_is_made_anew(tmp_path, capsys):
    def remove(evaluation):
        if evaluation.step == 5:
            best._writer.wait()
            shutil.rmtree(tmp_path / "run")

    best = kt.BestCheckpoints(tmp_path / "run", keep=2)
    fit(shrinking(), At(remove), best, evaluating(0.8**4))
    assert steps(best.checkpoints) == [5, 6, 10]
    assert len(lines_of(capsys, "disappeared with")) == 1
    assert len(written(tmp_path / "run")["evaluations"]) == 10


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("bytes_left", [100, 2_000, 4_000])
def test_a_full_disk_costs_checkpoints_and_one_message(tmp_path, capsys, weights_only, bytes_left):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(evaluation):
        best._writer.wait()
        size = bytes_left if evaluation.step in (4, 5, 6) else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

    best = kt.BestCheckpoints(tmp_path, keep=2, save_weights_only=weights_only)
    try:
        model = fit(shrinking(), At(limit), best, evaluating(0.8**4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # The best, step 4, could not be written: 3 and 7 are next.
    assert steps(best.checkpoints) == [3, 7, 10]
    assert best.failures == 3
    assert len(lines_of(capsys, "a checkpoint could not be written: File too large")) == 1
    assert float(model.get_weights()[0].item()) == pytest.approx(weight_after(10), rel=1e-5)
    assert [name for name in files(tmp_path) if name.startswith(".")] == []


# What is said.


def test_the_closing_block_names_the_best(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = column(np.ones(10))
    best = kt.BestCheckpoints("run")
    shrinking().fit(x, 0 * x, batch_size=1, verbose=2, callbacks=[best, evaluating(0.8**4)])
    (line,) = lines_of(capsys, "- Best")
    last = (weight_after(10) - weight_after(4)) ** 2
    assert line.startswith("- Best val_loss ")
    assert line.endswith(
        f" at step 4, {last:.4g} at the last, step 10. The best is run/step-00000004.keras."
    )


def test_a_fit_without_evaluation_is_told_so(tmp_path):
    best = kt.BestCheckpoints(tmp_path)
    fit(shrinking(), best)
    (finding,) = best.summary()
    assert finding.text.startswith("No checkpoint was kept, since nothing was evaluated. Add ")


def test_verbose_names_each_checkpoint(tmp_path, capsys):
    fit(shrinking(), kt.BestCheckpoints(tmp_path, verbose=1), evaluating(0.64), steps=3)
    lines = lines_of(capsys, "BestCheckpoints: step")
    assert lines[1].endswith(", the best so far.")
    assert lines[2].startswith("BestCheckpoints: step 3: val_loss 0.01638, stored.")
