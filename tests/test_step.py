"""The step: training batches consumed, whatever Keras's own counters say."""

import itertools
import threading

import keras
import pytest

import keras_tricks as kt
from keras_tricks._trick import Trick
from tests.small_fit import AtStep, numbers, regression, state_of

X, Y = numbers(20)  # in batches of 3: six whole ones and one of two, 7 steps an epoch
FIT = {"batch_size": 3, "verbose": 0}


class Steps(Trick):
    """Keeps every step that it hears, its epoch and its thread."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs, self.threads = [], [], set()

    def on_step(self, step):
        self.steps.append(step)
        self.epochs.append(self.run.epoch)
        self.threads.add(threading.current_thread())


# Keras's own, at the end of the first epoch of such data.
RAN_OUT = pytest.mark.filterwarnings("ignore:Your input ran out of data")


def unknown_length(x=X, y=Y):
    """The same batches from a source that does not say how many there are."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(3)


def test_each_step_is_heard_once_and_a_second_fit_counts_on():
    steps, model = Steps(), regression(0.01)
    model.fit(X, Y, epochs=2, callbacks=[steps], **FIT)
    model.fit(X, Y, epochs=3, initial_epoch=2, callbacks=[steps], **FIT)
    assert steps.steps == list(range(1, 22))
    assert steps.epochs == [0] * 7 + [1] * 7 + [2] * 7
    assert steps.threads == {threading.main_thread()}


def test_steps_of_a_fit_without_tricks_count():
    steps, model = Steps(), regression(0.01)
    model.fit(X, Y, **FIT)
    model.fit(X, Y, callbacks=steps, **FIT)
    model.fit(X, Y, **FIT)
    model.fit(X, Y, callbacks=steps, **FIT)
    assert steps.steps == [*range(8, 15), *range(22, 29)]


@RAN_OUT
@pytest.mark.backend("tensorflow", "jax")
@pytest.mark.parametrize("data", ["arrays", "unknown length"])
def test_steps_per_execution_that_does_not_divide_the_epoch(data):
    steps, model = Steps(), regression(0.01, steps_per_execution=3)
    if data == "arrays":
        model.fit(X, Y, epochs=2, callbacks=[steps], **FIT)
    else:
        model.fit(unknown_length(), epochs=2, callbacks=[steps], shuffle=False, verbose=0)
    assert steps.steps == [3, 6, 7, 10, 13, 14]


def test_gradient_accumulation():
    steps, model = Steps(), regression()
    model.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=4), "mse")
    model.fit(X, Y, epochs=2, callbacks=[steps], **FIT)
    model.fit(X, Y, callbacks=[steps], **FIT)
    assert steps.steps == list(range(1, 22))
    assert int(model.optimizer.iterations) == 5


def scaled_model(**options):
    """A model whose loss is scaled so much that the gradients overflow at first."""
    inner = keras.optimizers.SGD(0.01)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**126)
    model = regression()
    model.compile(optimizer, "mse", **options)
    return model


def test_loss_scaling_with_overflows():
    steps, model = Steps(), scaled_model()
    model.fit(X + 1, Y, callbacks=[steps], **FIT)
    model.fit(X + 1, Y, callbacks=[steps], **FIT)
    assert steps.steps == list(range(1, 15))
    assert int(model.optimizer.iterations) < 14


@RAN_OUT
@pytest.mark.backend("tensorflow", "jax")
def test_loss_scaling_steps_per_execution_and_unknown_length():
    steps, model = Steps(), scaled_model(steps_per_execution=3)
    model.fit(unknown_length(X + 1), epochs=2, callbacks=[steps], shuffle=False, verbose=0)
    assert steps.steps == [3, 6, 7, 10, 13, 14]


@RAN_OUT
def test_data_of_unknown_length_trains_as_if_it_were_known():
    steps, model = Steps(), regression(0.01)
    model.fit(unknown_length(), epochs=3, callbacks=[steps], shuffle=False, verbose=0)
    known = regression(0.01)
    known.fit(X, Y, epochs=3, shuffle=False, **FIT)
    assert steps.steps == list(range(1, 22))
    assert list(state_of(model).values()) == list(state_of(known).values())
    assert int(model.optimizer.iterations) == 21


class StoppedError(RuntimeError):
    """What a user's callback raises."""


def interrupt(model):
    raise StoppedError


def test_a_fit_after_an_exception_counts_on():
    steps, model = Steps(), regression(0.01)
    with pytest.raises(StoppedError):
        model.fit(X, Y, callbacks=[steps, AtStep(4, interrupt)], **FIT)
    model.fit(X, Y, callbacks=[steps], **FIT)
    assert steps.steps == list(range(1, 12))


def test_each_of_many_fits_after_an_exception_is_heard(tmp_path):
    # Keras's threads may be the last to let go of the fit that raised, while the next one begins.
    model, heard = regression(0.01), []
    evaluation = kt.StepEvaluation((X, Y), every_steps=10**6, at_end=False, log_dir=tmp_path)
    for _ in range(10):
        with pytest.raises(StoppedError):
            model.fit(X, Y, callbacks=[evaluation, AtStep(4, interrupt)], **FIT)
        model.fit(X, Y, callbacks=[evaluation], **FIT)
        heard.append(evaluation.step)
    assert heard == list(range(11, 120, 11))


def test_a_fit_that_raised_listens_no_longer():
    steps, model = Steps(), regression(0.01)
    kept = None
    try:
        model.fit(X, Y, callbacks=[steps, AtStep(4, interrupt)], **FIT)
    except StoppedError as error:
        kept = error  # as a notebook does, and with it the frames of that `fit`
    model.fit(X, Y, **FIT)
    assert steps.steps == [1, 2, 3, 4]
    model.fit(X, Y, callbacks=[steps], **FIT)
    assert steps.steps == [1, 2, 3, 4, *range(12, 19)]
    kept.__traceback__ = None


@pytest.mark.backend("tensorflow")
def test_under_a_mirrored_strategy():
    import tensorflow as tf

    steps = Steps()
    with tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        # Collectives of one process know one group of devices only, and tests have several.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    ).scope():
        model = regression(0.01)
        # A multiple of the replicas, which Keras itself asks of the first batch.
        model.fit(X[:18], Y[:18], batch_size=4, epochs=2, verbose=0, callbacks=[steps])
    assert steps.steps == list(range(1, 11))


def test_a_callback_list_of_the_user_s_own_is_enough():
    steps, model = Steps(), regression(0.01)
    evaluation = kt.StepEvaluation((X, Y), every_steps=4)
    callbacks = keras.callbacks.CallbackList([steps, evaluation], add_history=True, model=model)
    model.fit(X, Y, epochs=2, callbacks=callbacks, **FIT)
    assert steps.steps == list(range(1, 15))
    assert evaluation.history["step"] == [4, 8, 12, 14]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_the_list_does_not_matter(order, shared_model):
    tricks = [Steps(), kt.StepEvaluation((X, Y), every_steps=4), Steps()]
    first, evaluation, second = tricks
    shared_model.fit(X, Y, callbacks=[tricks[place] for place in order], **FIT)
    heard = list(range(first.steps[0], first.steps[0] + 7))
    assert first.steps == second.steps == heard
    due = [step for step in heard if step % 4 == 0 or step == heard[-1]]
    assert evaluation.history["step"] == due


@pytest.fixture(scope="module")
def shared_model():
    """One model for many fits: a step goes on from one to the next."""
    return regression(0.01)


class Threads(keras.callbacks.Callback):
    """Keeps the threads on which Keras calls it after a batch."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.threads = set()

    def on_train_batch_end(self, batch, logs=None):
        self.threads.add(threading.current_thread())


@pytest.mark.backend("jax", "torch")
def test_keras_s_hooks_stay_asynchronous(shared_model):
    heard = Threads()
    tricks = [kt.StepEvaluation((X, Y), every_steps=4), kt.StepBudget(5), Steps()]
    shared_model.fit(X, Y, callbacks=[*tricks, heard], **FIT)
    assert heard.threads
    assert threading.main_thread() not in heard.threads
