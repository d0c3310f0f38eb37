"""What cannot work is refused before the first step: the parameter, the value, the way out."""

import itertools

import keras
import numpy as np
import pytest

import keras_tricks as kt
from tests.small_fit import numbers, regression

X, Y = numbers(20)


class Unending(keras.utils.PyDataset):
    """Batches without an end."""

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return X, Y


class Empty(keras.utils.PyDataset):
    """No batches."""

    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError(index)


def tf_data(change):
    """A changed `tf.data.Dataset`."""
    import tensorflow as tf

    return change(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4))


def one_shot():
    """A generator."""
    yield X, Y


EVALUATIONS = {
    "every_steps=0": (
        lambda: kt.StepEvaluation((X, Y), every_steps=0),
        (ValueError, "`every_steps`", "got 0.", "Pass `every_steps=1`"),
    ),
    "every_steps=2.5": (
        lambda: kt.StepEvaluation((X, Y), every_steps=2.5),  # type: ignore[arg-type]
        (TypeError, "`every_steps`", "got 2.5.", "Pass `every_steps="),
    ),
    "every_steps=True": (
        lambda: kt.StepEvaluation((X, Y), every_steps=True),
        (TypeError, "`every_steps`", "got True.", "Pass `every_steps="),
    ),
    "batch_size=-1": (
        lambda: kt.StepEvaluation((X, Y), batch_size=-1),
        (ValueError, "`batch_size`", "got -1.", "Pass `batch_size="),
    ),
    "batch_size=1.5": (
        lambda: kt.StepEvaluation((X, Y), batch_size=1.5),  # type: ignore[arg-type]
        (TypeError, "`batch_size`", "got 1.5.", "Pass `batch_size="),
    ),
    "steps=0": (
        lambda: kt.StepEvaluation((X, Y), steps=0),
        (ValueError, "`steps`", "got 0.", "Pass `steps="),
    ),
    "prefix=''": (
        lambda: kt.StepEvaluation((X, Y), prefix=""),
        (ValueError, "`prefix`", "got ''.", 'Pass `prefix="val_"`'),
    ),
    "no data": (
        lambda: kt.StepEvaluation(None),
        (TypeError, "`validation_data`", "got NoneType", "numpy.asarray"),
    ),
    "unequal arrays": (
        lambda: kt.StepEvaluation((X, Y[:7])),
        (ValueError, "`validation_data`", "got 20 in x and 7 in y.", "Cut the longer one"),
    ),
    "empty arrays": (
        lambda: kt.StepEvaluation((X[:0], Y[:0])),
        (ValueError, "`validation_data`", "got none.", "Look whether"),
    ),
    "empty tf.data": (
        lambda: kt.StepEvaluation(tf_data(lambda data: data.take(0))),
        (ValueError, "`validation_data`", "got none.", "Look whether"),
    ),
    "empty tf.data of unknown length": (
        lambda: kt.StepEvaluation(tf_data(lambda data: data.filter(lambda *_: False))),
        (ValueError, "`validation_data`", "got none.", "Look whether"),
    ),
    "empty PyDataset": (
        lambda: kt.StepEvaluation(Empty()),
        (ValueError, "`validation_data`", "got none.", "Look whether"),
    ),
    "empty re-iterable": (
        lambda: kt.StepEvaluation(lambda: iter(())),
        (ValueError, "`validation_data`", "got none.", "Look whether"),
    ),
    "unending tf.data": (
        lambda: kt.StepEvaluation(tf_data(lambda data: data.repeat())),
        (ValueError, "`validation_data`", "without an end", "Pass `steps=100`"),
    ),
    "unending PyDataset": (
        lambda: kt.StepEvaluation(Unending()),
        (ValueError, "`validation_data`", "without an end", "Pass `steps=100`"),
    ),
    "a generator": (
        lambda: kt.StepEvaluation(one_shot()),
        (ValueError, "`validation_data`", "got a generator.", "Pass a list of its batches"),
    ),
    "callbacks": (
        lambda: kt.StepEvaluation((X, Y), callbacks=["early"]),
        (TypeError, "`callbacks`", "got str.", "Pass instances"),
    ),
    "a misspelt keyword": (
        lambda: kt.StepEvaluation((X, Y), evry_steps=5),  # type: ignore[call-arg]
        (TypeError, "`evry_steps`", "got evry_steps=5.", "Pass `every_steps=5`"),
    ),
    "budget of 0": (
        lambda: kt.StepBudget(0),
        (ValueError, "`steps`", "got 0.", "Pass `steps=1`"),
    ),
    "budget of 2.5": (
        lambda: kt.StepBudget(2.5),  # type: ignore[arg-type]
        (TypeError, "`steps`", "got 2.5.", "Pass `steps="),
    ),
}


@pytest.fixture(scope="module")
def model():
    """One model, which never makes a step."""
    return regression(0.01)


def refused(error, act):
    """The message with which `act` is refused."""
    with pytest.raises(error) as refusal:
        act()
    return str(refusal.value)


@pytest.mark.parametrize("case", EVALUATIONS)
def test_a_callback_is_refused_before_the_first_step(model, case):
    make, (error, *parts) = EVALUATIONS[case]
    message = refused(error, lambda: model.fit(X, Y, batch_size=3, verbose=0, callbacks=[make()]))
    assert [part for part in parts if part not in message] == []
    assert int(model.optimizer.iterations) == 0


def test_a_log_dir_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "run"
    evaluation = kt.StepEvaluation((X, Y), log_dir=path)
    message = refused(OSError, lambda: model.fit(X, Y, verbose=0, callbacks=[evaluation]))
    assert all(part in message for part in ["`log_dir`", str(path), "Pass"])
    assert int(model.optimizer.iterations) == 0
    good = kt.StepEvaluation((X, Y), log_dir=tmp_path / "run")
    regression().fit(X, Y, verbose=0, callbacks=[good])
    assert good.history["step"] == [1]


EVALUATE = {
    "batch_size": (
        lambda model: kt.evaluate(model, X, Y, batch_size=-1),
        (ValueError, "`batch_size`", "got -1.", "Pass `batch_size="),
    ),
    "steps": (
        lambda model: kt.evaluate(model, X, Y, steps=0),
        (ValueError, "`steps`", "got 0.", "Pass `steps="),
    ),
    "empty": (
        lambda model: kt.evaluate(model, X[:0], Y[:0]),
        (ValueError, "`x`", "got none.", "Look whether"),
    ),
    "an empty iterator": (
        lambda model: kt.evaluate(model, itertools.chain()),
        (ValueError, "`x`", "got none.", "Look whether"),
    ),
    "unending": (
        lambda model: kt.evaluate(model, Unending()),
        (ValueError, "`x`", "without an end", "Pass `steps=100`"),
    ),
    "targets beside a dataset": (
        lambda model: kt.evaluate(model, Unending(), Y, steps=1),
        (ValueError, "`y`", "got ndarray.", "Let the Unending give `(x, y)`"),
    ),
    "no model": (
        lambda _: kt.evaluate(X, X, Y),
        (TypeError, "`model`", "got ndarray.", "Pass `evaluate(model, x, y)`"),
    ),
    "not compiled": (
        lambda _: kt.evaluate(keras.Sequential([keras.layers.Dense(1)]), X, Y),
        (ValueError, "`model`", "Call `model.compile("),
    ),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_evaluate_refuses(model, case):
    call, (error, *parts) = EVALUATE[case]
    message = refused(error, lambda: call(model))
    assert [part for part in parts if part not in message] == []


def test_a_trick_that_refuses_leaves_the_next_fit_alone(model, tmp_path):
    (tmp_path / "file").touch()
    bad = kt.StepEvaluation((X, Y), log_dir=tmp_path / "file")
    refused(OSError, lambda: model.fit(X, Y, verbose=0, callbacks=[bad, kt.StepBudget(1)]))
    fresh = regression(0.01)
    refused(OSError, lambda: fresh.fit(X, Y, verbose=0, callbacks=[kt.StepBudget(1), bad]))
    fresh.fit(X, Y, batch_size=3, verbose=0)
    assert int(fresh.optimizer.iterations) == 7
    assert np.isfinite(fresh.get_weights()[0]).all()
