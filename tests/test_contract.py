"""What every public name, and every callback among them, keeps to."""

import doctest
import inspect
import json
import re
import threading
from dataclasses import is_dataclass

import keras
import numpy as np
import pytest

import keras_tricks as kt
from keras_tricks._trick import Trick
from tests.small_fit import AtStep, numbers, regression, state_of

X, Y = numbers(20)  # 7 steps an epoch
FIT = {"batch_size": 3, "verbose": 0}
NEVER = 10**6
PUBLIC = {name: getattr(kt, name) for name in kt.__all__ if not name.startswith("__")}
TRICKS = [
    name for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, Trick)
]
# One of each, idle: nothing is due in two fits of an epoch.
MAKE = {
    "BestCheckpoints": lambda folder: kt.BestCheckpoints(
        folder / "checkpoints", monitor="val_loss"
    ),
    "Resume": lambda folder: kt.Resume(folder / "resume", every_steps=NEVER),
    "StepBudget": lambda _: kt.StepBudget(NEVER),
    "StepEvaluation": lambda folder: kt.StepEvaluation(
        (X, Y), every_steps=NEVER, at_end=False, log_dir=folder / "events"
    ),
    "TensorPrinter": lambda folder: kt.TensorPrinter(
        directory=folder / "tensors", log_dir=folder / "log", every_steps=NEVER, guard=False
    ),
}


@pytest.fixture(params=TRICKS)
def name(request):
    """The name of a public callback."""
    return request.param


@pytest.fixture
def make(name, tmp_path):
    """Makes one; a new callback has a line of its own above."""
    return lambda: MAKE[name](tmp_path)


def sections(value):
    """The docstring's sections by their headings."""
    parts = re.split(r"(?m)^(Args|Attributes|Returns|Raises|Example):$", inspect.getdoc(value))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("public", PUBLIC)
def test_every_public_name_is_documented(public):
    value = PUBLIC[public]
    found = sections(value)
    parameters = [p for p in inspect.signature(value).parameters if p != "self"]
    documented = found.get("Args", "") + found.get("Attributes", "")
    assert inspect.getdoc(value).splitlines()[0].endswith((".", "?"))
    assert [p for p in parameters if f"\n    {p}: " not in documented] == []
    if public in TRICKS or inspect.isfunction(value):
        assert ">>> " in found["Example"]
        assert "Raises" in found


@pytest.mark.parametrize("public", PUBLIC)
def test_the_example_of_every_public_name_is_right(public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"keras_tricks": kt, "keras": keras, "np": np}
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(PUBLIC[public], public, globs=names):
        assert runner.run(test).failed == 0, f"see the output above: {test.name}"


@pytest.mark.parametrize("public", [n for n in PUBLIC if not is_dataclass(PUBLIC[n])])
def test_every_public_name_tells_a_misspelt_keyword(public):
    last = list(inspect.signature(PUBLIC[public]).parameters)[-1]
    with pytest.raises(TypeError) as told:
        PUBLIC[public](**{f"{last}_": 5})
    assert str(told.value) == (
        f"`{public}` has no argument `{last}_`, got {last}_=5. Pass `{last}=5`."
    )


def test_arguments_after_the_first_are_keyword_only(name):
    parameters = list(inspect.signature(PUBLIC[name]).parameters.values())
    assert {p.kind for p in parameters[1:]} <= {inspect.Parameter.KEYWORD_ONLY}


def test_no_hook_makes_keras_s_hooks_synchronous(name):
    for hook in ("batch_end", "train_batch_end", "test_batch_end", "predict_batch_end"):
        own = getattr(PUBLIC[name], f"on_{hook}")
        assert own is getattr(keras.callbacks.Callback, f"on_{hook}")


def test_making_one_touches_nothing(make, tmp_path):
    threads = threading.active_count()
    make()
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def fitted(*callbacks):
    """A model after two fits."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = regression(0.01)
    for _ in range(2):
        model.fit(X, Y, callbacks=list(callbacks), **FIT)
    return model


def test_it_serves_two_fits_and_idle_changes_nothing(make):
    trick = make()
    model = fitted(trick)
    assert trick.step == 14
    plain = fitted()
    assert state_of(model) == state_of(plain)
    assert model.history.history == plain.history.history


class Interruption(RuntimeError):  # noqa: N818 - it is none of the callback's errors
    """What ends a fit."""


def interrupt(model):
    raise Interruption


# A second `fit` goes on with the first, or has nothing left to do: an epoch has seven steps.
GOES_ON = ("Resume",)


def test_it_serves_a_fit_after_one_that_raised(make, name):
    trick, model = make(), regression(0.01)
    with pytest.raises(Interruption):
        model.fit(X, Y, callbacks=[trick, AtStep(4, interrupt)], **FIT)
    model.fit(X, Y, callbacks=[trick], **FIT)
    assert trick.step == (7 if name in GOES_ON else 11)


def test_its_state_passes_through_json_to_the_next_process(make, name):
    trick, later, model = make(), make(), regression(0.01)
    model.fit(X, Y, callbacks=[trick], **FIT)
    later.load_state(json.loads(json.dumps(trick.state())))
    model.fit(X, Y, callbacks=[later], **FIT)
    assert later.step == (7 if name in GOES_ON else 14)


class Counting(keras.Sequential):
    """Counts how often somebody wants the state of a running `fit`."""

    synced = 0

    def jax_state_sync(self):
        type(self).synced += 1
        super().jax_state_sync()


def synced(*callbacks):
    """How often that is in a fit."""
    Counting.synced = 0
    model = Counting([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, callbacks=list(callbacks), batch_size=1, verbose=0)
    return Counting.synced


@pytest.mark.backend("jax")
def test_idle_steps_leave_the_model_alone(make):
    # Some at the ends of the epoch and the fit, but none in its twenty steps.
    assert synced(make()) - synced() < 10
