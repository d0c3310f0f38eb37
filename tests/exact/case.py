"""One case: what `kt.evaluate` says of some examples, beside the right values."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import keras_tricks as kt
from tests.exact import (  # noqa: F401
    forms,
    measures,
    overrides,
    reductions,
    structures,
    whole_batch,
)
from tests.exact.situation import ROWS, SITUATIONS, Reading, examples

BATCH_SIZES = (7, 50, 64, 1000)
SIZES = ("1", "B-1", "B", "B+1", "1001")
RELATIVE, ABSOLUTE = 1e-5, 1e-6


@dataclass(frozen=True)
class Case:
    """A situation, its examples in a form, and how they are cut."""

    form: str
    batch_size: int
    rows: int
    situation: str
    jit: bool

    def __str__(self) -> str:
        jit = "jit" if self.jit else "plain"
        return f"{self.form} B={self.batch_size} n={self.rows} {jit} {self.situation}"


def rows_of(size: str, batch_size: int) -> int:
    """Returns the examples that one of `SIZES` means at a batch size."""
    around = {"B-1": batch_size - 1, "B": batch_size, "B+1": batch_size + 1}
    return around.get(size) or int(size)


def possible(form: str, name: str) -> bool:
    """Says whether Keras itself can express a situation's examples in a form."""
    return form not in SITUATIONS[name].without


def model_of(name: str, jit: bool, batch_size: int) -> keras.Model:
    """Returns the situation's model, the same one for the same question."""
    return _model(name, jit, batch_size if SITUATIONS[name].fixed else 0)


@functools.cache
def _model(name: str, jit: bool, batch_size: int) -> keras.Model:
    return SITUATIONS[name].build(jit, batch_size)


@functools.cache
def _predictions(name: str, jit: bool) -> Any:
    if jit and SITUATIONS[name].rounds_when_compiled:
        return model_of(name, jit, 0).predict(examples(name, ROWS)[0], batch_size=ROWS, verbose=0)
    return predictions_of(model_of(name, jit, 0), name)


def predictions_of(model: keras.Model, name: str) -> Any:
    """Returns the predictions for all 1001 examples, from one call of the model."""
    x, _, _ = examples(name, ROWS)
    return keras.tree.map_structure(keras.ops.convert_to_numpy, model(x, training=False))


def reading_of(case: Case) -> Reading:
    """Returns what the independent calculation of a case starts from."""
    predictions = None
    if not SITUATIONS[case.situation].fixed:
        everything = _predictions(case.situation, case.jit)
        predictions = keras.tree.map_structure(lambda leaf: leaf[: case.rows], everything)
    model = model_of(case.situation, case.jit, case.batch_size)
    return Reading(model, *examples(case.situation, case.rows), predictions, case.batch_size)


def right_values(case: Case) -> dict[str, float]:
    """Returns the right values of a case."""
    return SITUATIONS[case.situation].right(reading_of(case))


def evaluated(case: Case) -> Any:
    """Returns what `kt.evaluate` says."""
    data = forms.given(*examples(case.situation, case.rows))
    arguments, named = forms.in_form(case.form, data, case.batch_size)
    got = kt.evaluate(model_of(case.situation, case.jit, case.batch_size), *arguments, **named)
    untouched = forms.given(*examples(case.situation, case.rows))
    keras.tree.map_structure(np.testing.assert_array_equal, data, untouched)
    return got


def differences(got: dict[str, Any], right: dict[str, float]) -> list[str]:
    """Returns a sentence for each value that is not right, and for each missing or extra one."""
    lines = [f"{key}: missing" for key in right if key not in got]
    lines += [f"{key}: not expected" for key in got if key not in right]
    for key in sorted(set(got) & set(right)):
        if not np.allclose(got[key], right[key], rtol=RELATIVE, atol=ABSOLUTE):
            lines.append(f"{key}: {got[key]!r}, right is {right[key]!r}")
    return lines


def misnamed(case: Case, notes: dict[str, str]) -> list[str]:
    """Returns a sentence for each name that `.notes` lacks or has too much.

    Where all examples are in one batch, what depends on a whole batch is exact; then it may be
    named or not.
    """
    due = SITUATIONS[case.situation].notes
    lines = [f"notes name {name}" for name in notes if name not in due]
    if case.rows > case.batch_size:
        lines += [f"notes lack {name}" for name in due if name not in notes]
    return lines


def faults(case: Case) -> list[str]:
    """Returns a sentence for each thing that is wrong in a case."""
    got, right = evaluated(case), right_values(case)
    return differences(got, right) + misnamed(case, got.notes)


def against_keras(name: str, jit: bool) -> list[str]:
    """Returns a sentence for each value in which the reference differs from Keras's own.

    Keras is right where all examples are in one batch, and at any batch size about what depends
    on the batch by definition. It needs full batches for states, which JAX does not carry.
    """
    subject = SITUATIONS[name]
    by_batch = name in ("sum, weights [n]", "test_step") or subject.notes - {"recall_fn"}
    rows = 60 if subject.fixed else 51
    batch_size = 20 if subject.fixed or by_batch else rows
    if subject.fixed and keras.backend.backend() == "jax":
        return []
    case = Case("arrays", batch_size, rows, name, jit)
    model, (x, y, weight) = model_of(name, jit, batch_size), examples(name, rows)
    keras_says = model.evaluate(
        x, y, sample_weight=weight, batch_size=batch_size, verbose=0, return_dict=True
    )
    for layer in model.layers if subject.fixed else ():
        getattr(layer, "reset_states", lambda: None)()
    return differences(keras_says, right_values(case))


def product(torch: bool) -> Iterator[Case]:
    """Yields every combination, those that share a compiled model beside each other."""
    known = forms.EVERYWHERE + (forms.TORCH_ONLY if torch else ())
    for name, jit in itertools.product(SITUATIONS, (False,) if torch else (False, True)):
        for batch_size, size, form in itertools.product(BATCH_SIZES, SIZES, known):
            if possible(form, name):
                yield Case(form, batch_size, rows_of(size, batch_size), name, jit)
