"""`kt.Resume`: a `fit` that was interrupted ends, bit for bit, where an uninterrupted one ends.

A restart is played in this process: all seeds are set again, and the model, the data and the
callbacks are made anew. `test_resume_process.py` kills real processes.
"""

import functools
import gc
import random
import tempfile
import warnings

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._backend.data_position import Passed, passed
from keras_tricks._resume_writer import settle
from tests.small_fit import (
    BACKEND,
    BATCH_SIZE,
    STEPS,
    draws,
    examples,
    noisy_model,
    numbers,
    regression,
    state_of,
)

X, Y = numbers(20)
NEVER = 10**6


class PowerCutError(Exception):
    """What interrupts a `fit`."""


class PowerCut(keras.callbacks.Callback):
    """Interrupts a `fit` before its batch with this number, from 0, over epochs."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def on_train_batch_begin(self, batch, logs=None):
        if self.left == 0:
            raise PowerCutError
        self.left -= 1


def small_model(**options):
    """Dropout, a metric, and Adam, on one number."""
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


def started(data, *callbacks, model=small_model, seed=3, **options):
    """Model after a `fit` as a new process makes it: all seeds, the model, the data."""
    keras.backend.clear_session(free_memory=False)
    if seed is not None:
        keras.utils.set_random_seed(seed)
    made = model()
    x, y = data()
    options = {"epochs": 3, "verbose": 0, **options}
    with warnings.catch_warnings():
        # Keras warns of every end of data whose length it does not know.
        warnings.filterwarnings("ignore", "Your input ran out of data")
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored")
        made.fit(x, y, callbacks=list(callbacks), **options)
    return made


def cut(directory, batch, *args, every_steps=3, **options):
    """Starts a `fit`, interrupts it before a batch, and waits until the last save is written."""
    with pytest.raises(PowerCutError):
        started(*args, kt.Resume(directory, every_steps=every_steps), PowerCut(batch), **options)
    gc.collect()
    settle(directory)


def outcome(*args, **options):
    """All that a `fit` leaves: state, `History`, and the next random numbers."""
    model = started(*args, **options)
    return state_of(model), model.history.history, draws()


def interrupted(directory, batch, *args, every_steps=3, **options):
    """Starts a `fit`, interrupts it before a batch, starts it again: its outcome and `Resume`."""
    cut(directory, batch, *args, every_steps=every_steps, **options)
    resume = kt.Resume(directory, every_steps=every_steps)
    return outcome(*args, resume, **options), resume


def dataset(*, shuffle=None, unknown=False, repeat=False):
    """A `tf.data.Dataset` of seven batches."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if shuffle is not None:
        data = data.shuffle(20, seed=shuffle, reshuffle_each_iteration=True)
    data = data.batch(3)
    if unknown:
        data = data.filter(lambda *_: True)
    return data.repeat() if repeat else data


class Batches(keras.utils.PyDataset):
    """Seven batches, in an order that each epoch draws anew from a generator of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = np.random.default_rng(0)
        self.order = np.arange(20)

    def __len__(self):
        return 7

    def __getitem__(self, index):
        rows = self.order[3 * index : 3 * index + 3]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.generator.shuffle(self.order)


def loader(**options):
    """A shuffling torch `DataLoader` of seven batches."""
    import torch

    rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    return torch.utils.data.DataLoader(rows, batch_size=3, shuffle=True, **options)


def seeded_loader():
    """One with a generator of its own."""
    import torch

    return loader(generator=torch.Generator().manual_seed(5))


def endless():
    """A generator without an end, which no epoch begins anew."""
    generator = np.random.default_rng(1)
    while True:
        rows = generator.permutation(20)[:3]
        yield X[rows], Y[rows]


SOURCES = {
    "arrays in order": (lambda: (X, Y), {"batch_size": 3, "shuffle": False}),
    "arrays, shuffled": (lambda: (X, Y), {"batch_size": 3}),
    "arrays, batches shuffled": (lambda: (X, Y), {"batch_size": 3, "shuffle": "batch"}),
    "arrays, `steps_per_epoch`": (lambda: (X, Y), {"batch_size": 2, "steps_per_epoch": 5}),
    "tf.data": (lambda: (dataset(), None), {}),
    "tf.data, shuffled": (lambda: (dataset(shuffle=7), None), {}),
    "tf.data, unknown length": (lambda: (dataset(shuffle=7, unknown=True), None), {}),
    "tf.data, repeated": (
        lambda: (dataset(shuffle=7, repeat=True), None),
        {"steps_per_epoch": 5},
    ),
    "PyDataset": (lambda: (Batches(), None), {}),
    "PyDataset with workers": (lambda: (Batches(workers=2), None), {"shuffle": False}),
    "pad_batches": (lambda: (kt.pad_batches((X, Y), 3), None), {}),
    "generator": (lambda: (endless(), None), {"steps_per_epoch": 7}),
}
if BACKEND == "torch":
    SOURCES |= {
        "DataLoader": (lambda: (loader(), None), {}),
        "DataLoader with a generator": (lambda: (seeded_loader(), None), {}),
    }


@functools.cache
def undisturbed(source):
    """The outcome of the `fit` that nobody interrupts, without `Resume`."""
    data, options = SOURCES[source]
    # Where plain Keras trains on other batches each time, or counts a step that is none.
    repaired = source in ("tf.data, unknown length", "PyDataset with workers")
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [kt.Resume(folder, every_steps=NEVER)] if repaired else []
        return outcome(data, *callbacks, **options)


@pytest.mark.parametrize(
    ("source", "batch"), [("arrays, shuffled", 2), *((source, 11) for source in SOURCES)]
)
def test_it_ends_bitwise_as_without_the_interruption(source, batch, tmp_path):
    data, options = SOURCES[source]
    got, resume = interrupted(tmp_path, batch, data, **options)
    assert resume.resumed_from == (1 if batch == 2 else 9)
    assert got == undisturbed(source)
    assert resume.step == (15 if options.get("steps_per_epoch") == 5 else 21)
    assert resume.error is None


ORDERED = {"batch_size": 3, "shuffle": False}


def arrays():
    """The data in an order of its own."""
    return X, Y


@pytest.mark.parametrize(
    ("epochs", "options", "expected"),
    [
        (3, {"steps_per_epoch": None, "num_batches": 7, "at_once": 1}, Passed(6, 3, False, 0)),
        (3, {"steps_per_epoch": None, "num_batches": None, "at_once": 1}, Passed(3, 3, False, 0)),
        # A pass of 10 spans epochs of 4: after two of them 8 are read, the third cuts it short.
        (2, {"steps_per_epoch": 4, "num_batches": 10, "at_once": 1}, Passed(0, 0, True, 8)),
        (3, {"steps_per_epoch": 4, "num_batches": 10, "at_once": 1}, Passed(1, 1, True, 0)),
        (5, {"steps_per_epoch": 4, "num_batches": None, "at_once": 2}, Passed(0, 0, True, 20)),
    ],
)
def test_what_epochs_do_to_the_data(epochs, options, expected):
    assert passed(epochs, **options) == expected


def sibling_stops():
    """Keras's own callbacks, for whom each epoch counts."""
    return [
        keras.callbacks.EarlyStopping("loss", patience=2, min_delta=1.0),
        keras.callbacks.ReduceLROnPlateau("mae", patience=1, min_delta=1.0, factor=0.5),
    ]


def test_the_patience_of_keras_s_callbacks_goes_on(tmp_path):
    def fit(*callbacks):
        return outcome(arrays, *callbacks, *sibling_stops(), epochs=9, **ORDERED)

    with pytest.raises(PowerCutError):
        fit(kt.Resume(tmp_path, every_steps=3), PowerCut(11))
    got, plain = fit(kt.Resume(tmp_path, every_steps=3)), fit()
    assert got == plain
    assert len(plain[1]["loss"]) < 9


def evaluated(folder):
    """Evaluations with callbacks inside them, a budget, and the best checkpoints."""
    stop = keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=9.0, mode="min")
    evaluation = kt.StepEvaluation(
        (X[:9], Y[:9]), every_steps=4, at_start=True, callbacks=[stop], log_dir=folder / "events"
    )
    checkpoints = kt.BestCheckpoints(folder / "checkpoints", keep=2, save_weights_only=True)
    return [evaluation, checkpoints, kt.StepBudget(19)]


def told(callbacks):
    """What they found."""
    evaluation, checkpoints, budget = callbacks
    kept = [(c.step, c.rank, c.metrics, c.path.name) for c in checkpoints.checkpoints]
    return evaluation.history, kept, budget.step


@pytest.mark.parametrize("batch", [3, 11])
def test_the_other_callbacks_know_what_they_knew(batch, tmp_path):
    whole = evaluated(tmp_path / "whole")
    expected = outcome(arrays, *whole, **ORDERED), told(whole)
    first, second = evaluated(tmp_path / "parts"), evaluated(tmp_path / "parts")
    folder = tmp_path / "resume"
    with pytest.raises(PowerCutError):
        started(arrays, *first, kt.Resume(folder, every_steps=5), PowerCut(batch), **ORDERED)
    got = outcome(arrays, kt.Resume(folder, every_steps=5), *second, **ORDERED)
    assert got == expected[0]
    assert repr(told(second)) == repr(expected[1])  # in which a mean of nothing is NaN
    # The fifth evaluation is the third without an improvement: the patience is at its end.
    assert expected[1][0]["step"] == [0, 4, 8, 12]
    assert expected[1][2] == 12


COMPILED = {
    "gradient accumulation": lambda: small_model_with(gradient_accumulation_steps=4),
    "loss scaling": lambda: small_model_with(scaled=True),
}
if BACKEND != "torch":
    COMPILED["steps_per_execution"] = lambda: small_model(steps_per_execution=3)


def small_model_with(*, scaled=False, **options):
    """The small model with another optimizer, whose rate follows a schedule."""
    model = small_model()
    schedule = keras.optimizers.schedules.CosineDecay(0.02, 20)
    optimizer = keras.optimizers.Adam(schedule, **options)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**20)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("name", COMPILED)
def test_what_the_optimizer_counts_goes_on(name, tmp_path):
    options = {"model": COMPILED[name], **ORDERED}
    (state, *rest), resume = interrupted(tmp_path, 3, arrays, every_steps=4, **options)
    expected, *others = outcome(arrays, **options)
    # Keras names the variables of an inner optimizer by who builds it.
    assert list(state.values()) == list(expected.values())
    assert rest == others
    assert resume.step == 21


def test_a_run_is_interrupted_again_and_again(tmp_path):
    steps = []
    for batch in (5, 9, 4, 1, 7):
        resume = kt.Resume(tmp_path, every_steps=2)
        with pytest.raises(PowerCutError):
            started(arrays, resume, PowerCut(batch), **ORDERED)
        steps.append(resume.resumed_from)
    got = outcome(arrays, kt.Resume(tmp_path, every_steps=2), **ORDERED)
    assert got == undisturbed("arrays in order")
    # Batches read again are heard by a callback that counts them.
    assert steps == [None, 4, 8, 10, 10]


def test_a_run_that_has_finished_trains_nothing(tmp_path, capsys):
    first = kt.Resume(tmp_path, every_steps=5)
    plain = outcome(arrays, first, **ORDERED)
    capsys.readouterr()
    again = kt.Resume(tmp_path, every_steps=5)
    assert outcome(arrays, again, **ORDERED) == plain
    assert "has finished before; nothing is trained" in capsys.readouterr().out
    assert again.resumed_from == again.step == 21


def test_more_epochs_go_on_where_the_run_finished(tmp_path):
    started(arrays, kt.Resume(tmp_path, every_steps=5), **{**ORDERED, "epochs": 2})
    resume = kt.Resume(tmp_path, every_steps=5)
    assert outcome(arrays, resume, **ORDERED) == undisturbed("arrays in order")
    assert (resume.resumed_from, resume.skipped_batches) == (14, 0)


def test_a_larger_budget_goes_on_in_mid_epoch(tmp_path):
    started(arrays, kt.StepBudget(10), kt.Resume(tmp_path, every_steps=5), **ORDERED)
    resume = kt.Resume(tmp_path, every_steps=5)
    assert outcome(arrays, kt.StepBudget(30), resume, **ORDERED) == undisturbed("arrays in order")
    assert (resume.resumed_from, resume.skipped_batches) == (10, 3)


def test_a_second_fit_is_resumed_after_the_first(tmp_path):
    def two(resume, cut=None):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model = small_model()
        for callbacks in ([resume], [resume, *([] if cut is None else [PowerCut(cut)])]):
            model.fit(X, Y, verbose=0, callbacks=callbacks, **ORDERED)
        return state_of(model)

    expected = two(kt.Resume(tmp_path / "whole", every_steps=3))
    with pytest.raises(PowerCutError):
        two(kt.Resume(tmp_path / "parts", every_steps=3), cut=5)
    resume = kt.Resume(tmp_path / "parts", every_steps=3)
    assert two(resume) == expected
    assert resume.resumed_from == 12


def damaged(path, how):
    """Spoils a file."""
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 3
        path.write_bytes(content[:middle] + b"\x55\xaa" * 8 + content[middle + 16 :])


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_the_save_before_serves_if_the_newest_is_damaged(how, tmp_path, capsys):
    cut(tmp_path, 10, arrays, **ORDERED)
    older, newest = sorted(tmp_path.glob("resume-*.npz"))
    damaged(newest, how)
    resume = kt.Resume(tmp_path, every_steps=3)
    assert outcome(arrays, resume, **ORDERED) == undisturbed("arrays in order")
    assert resume.resumed_from == int(older.stem[-8:]) == 6
    assert f"{newest.name} is damaged" in capsys.readouterr().out


def wider():
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def with_rate(rate):
    model = small_model()
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return model


def with_sgd():
    model = small_model()
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": wider}, r"`model` must be .*units=3.*, got Dense\(units=4\)"),
        ({"model": with_sgd}, r"`optimizer` must be .*Adam.*, got SGD"),
        ({"model": lambda: with_rate(0.03)}, r"`optimizer` must be .*, 0\.01, got .* 0\.03"),
        ({"batch_size": 4}, r"`x` must be .*, 7, got 5 \(batches per epoch\)"),
    ],
)
def test_what_was_changed_is_refused_with_both_values(options, words, tmp_path):
    cut(tmp_path, 10, arrays, **ORDERED)
    before = sorted(tmp_path.glob("*.npz"))
    with pytest.raises(ValueError, match=words):
        started(arrays, kt.Resume(tmp_path, every_steps=3), **{**ORDERED, **options})
    assert sorted(tmp_path.glob("*.npz")) == before


@pytest.mark.backend("tensorflow", "jax")
def test_a_dataset_whose_order_nobody_can_repeat_is_refused(tmp_path):
    import tensorflow as tf

    tf.random.set_seed(None)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20).batch(3).prefetch(1)
    model = regression()
    with pytest.raises(ValueError, match=r"`shuffle` and no seed\. Pass it a `seed`"):
        model.fit(data, shuffle=False, verbose=0, callbacks=[kt.Resume(tmp_path, every_steps=3)])


def test_shuffled_arrays_need_no_seed(tmp_path):
    """The order of the interrupted epoch comes again, though nobody set a seed."""
    seen = []

    class Seeing(keras.Sequential):
        def train_step(self, *args, **kwargs):
            return super().train_step(*args, **kwargs)

    def model():
        made = Seeing([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        made.compile(keras.optimizers.SGD(0.1), "mse")
        return made

    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(None)
    options = {"model": model, "seed": None, "batch_size": 1, "epochs": 1}
    with pytest.raises(PowerCutError):
        started(arrays, kt.Resume(tmp_path, every_steps=4), PowerCut(13), **options)
    random.seed()
    np.random.seed()  # noqa: NPY002 - another process begins with other numbers
    made = started(arrays, kt.Resume(tmp_path, every_steps=4), Losses(seen), **options)
    assert len(seen) == 20
    assert made.history.history["loss"] != []


class Losses(keras.callbacks.Callback):
    """Keeps each batch's mean loss so far."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])


def test_idle_it_changes_no_bit(tmp_path):
    x, y = examples()

    def fit(*callbacks):
        options = {"model": noisy_model, "batch_size": BATCH_SIZE, "epochs": 2}
        return outcome(lambda: (x, y), *callbacks, **options)

    assert fit(kt.Resume(tmp_path, every_steps=4)) == fit()
    assert STEPS == 7


def test_a_full_disk_costs_the_save_and_not_the_run(tmp_path, capsys):
    resume = kt.Resume(tmp_path / "resume", every_steps=3)
    remove = Removing(tmp_path / "resume")
    got = outcome(arrays, resume, remove, **ORDERED)
    assert got == undisturbed("arrays in order")
    assert resume.failures > 0
    assert "could not be stored" in capsys.readouterr().out


class Removing(keras.callbacks.Callback):
    """Takes the directory away in mid-epoch."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4 and self.directory.exists():
            self.directory.rename(self.directory.with_name("gone"))
