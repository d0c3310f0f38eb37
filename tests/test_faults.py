"""Each planted fault is named, by its place and its cause."""

import keras
import numpy as np
import pytest

import keras_tricks as kt
from tests.faults import FAULTS

BACKEND = keras.backend.backend()


def shown(fault, **options):
    """The first report of a `fit` with the fault in it, None without one."""
    model, x, y, *weights = fault.make()
    if fault.stagnant:
        x, y = (np.concatenate([part] * 60) for part in (x, y))
        options.update(stagnant_steps=20, min_improvement=0.05)
    printer = kt.TensorPrinter(**options)
    model.fit(
        x,
        y,
        24,
        epochs=1 if fault.stagnant else 8,
        verbose=0,
        sample_weight=(weights or [None])[0],
        shuffle=False,
        callbacks=[printer],
    )
    return printer.reports[0] if printer.reports else None


def among(value, right):
    return any(one in (value or "") for one in ([right] if isinstance(right, str) else right))


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")  # it is the fault
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if BACKEND not in f.absent])
def test_a_planted_fault_is_named(name):
    fault = FAULTS[name]
    report = shown(fault)
    assert report is not None
    assert among(report.cause, fault.cause), report.diagnosis
    right = [fault.producer] if isinstance(fault.producer, str) else fault.producer
    if not fault.stagnant:
        assert report.producer in right
