"""The measurements of one backend; prints its rows as JSON on the last line."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np

import keras_tricks as kt

STEPS = 500
ROUNDS = 7


def examples(rows: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and ten classes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, *shape)).astype("float32")
    return x, rng.integers(0, 10, rows)


def step_model() -> keras.Model:
    """A net whose step takes about a millisecond on a CPU."""
    model = keras.Sequential(
        [keras.Input((64,)), *[keras.layers.Dense(128, "relu") for _ in range(4)]]
    )
    model.add(keras.layers.Dense(10, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def conv_model() -> keras.Model:
    """A small convolutional net, compiled with XLA."""
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (16, 32, 32):
        model.add(keras.layers.Conv2D(filters, 3, activation="relu"))
        model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(10, "softmax"))
    loss = "sparse_categorical_crossentropy"
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=True)
    return model


def seconds(function: Callable[[], Any]) -> float:
    """Time of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def ratios(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median ratio of each variant to the first one, timed in turn."""
    for run in variants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds):
        order = list(variants)
        for name in order if round_number % 2 else reversed(order):
            times[name].append(seconds(variants[name]))
    base = times[next(iter(variants))]
    print(json.dumps({k: [round(t, 4) for t in v] for k, v in times.items()}), file=sys.stderr)
    return {
        name: statistics.median(t / b for t, b in zip(values, base, strict=True))
        for name, values in times.items()
    }


def row(what: str, who: str, ratio: float, to: str) -> dict[str, Any]:
    """A row of the table."""
    return {"what": what, "who": who, "ratio": f"{ratio:.2f}", "to": to}


def step_cost(folder: str) -> list[dict[str, Any]]:
    """Time of a `fit` in which nothing is due, against `fit` alone."""
    model = step_model()
    x, y = examples(32 * STEPS, (64,))
    validation = examples(100, (64,), seed=1)

    def fit(callbacks: list[keras.callbacks.Callback]) -> Callable[[], Any]:
        return lambda: model.fit(x, y, batch_size=32, verbose=0, callbacks=callbacks)

    never = 10**9
    variants = {
        "bare fit": fit([]),
        "keras: TensorBoard, ModelCheckpoint, TerminateOnNaN": fit(
            [
                keras.callbacks.TensorBoard(f"{folder}/keras"),
                keras.callbacks.ModelCheckpoint(f"{folder}/never.keras", save_freq=never),
                keras.callbacks.TerminateOnNaN(),
            ]
        ),
        "keras_tricks: StepEvaluation, StepBudget": fit(
            [
                kt.StepEvaluation(validation, every_steps=never, at_end=False, log_dir=folder),
                kt.StepBudget(never),
            ]
        ),
    }
    found = ratios(variants, ROUNDS)
    return [row("idle step", name, found[name], "bare fit") for name in list(variants)[1:]]


def evaluation_cost() -> list[dict[str, Any]]:
    """Time of an evaluation that has been made before, against `model.evaluate`."""
    model = conv_model()
    rows = []
    for label, count in (("even set", 64 * 16), ("ragged set", 64 * 15 + 23)):
        x, y = examples(count, (28, 28, 1))
        variants: dict[str, Callable[[], Any]] = {
            "keras": partial(model.evaluate, x, y, batch_size=64, verbose=0),
            "keras_tricks": partial(kt.evaluate, model, x, y, batch_size=64),
        }
        found = ratios(variants, ROUNDS)
        what = f"evaluation, {label}"
        rows.append(row(what, "kt.evaluate", found["keras_tricks"], "model.evaluate"))
    return rows


def first_ragged() -> list[dict[str, Any]]:
    """Time of the first ragged evaluation after an even one, against a later one."""
    even, ragged = examples(64 * 16, (28, 28, 1)), examples(64 * 15 + 23, (28, 28, 1))

    def keras_evaluate(model: keras.Model, data: Any) -> Any:
        return model.evaluate(*data, batch_size=64, verbose=0)

    def our_evaluate(model: keras.Model, data: Any) -> Any:
        return kt.evaluate(model, *data, batch_size=64)

    def ratio(evaluate: Callable[[keras.Model, Any], Any]) -> float:
        model = conv_model()
        evaluate(model, even)
        evaluate(model, even)
        first = seconds(lambda: evaluate(model, ragged))
        later = [seconds(lambda: evaluate(model, ragged)) for _ in range(5)]
        return first / statistics.median(later)

    found = {
        name: statistics.median(ratio(evaluate) for _ in range(5))
        for name, evaluate in (("keras", keras_evaluate), ("kt", our_evaluate))
    }
    what = "first ragged evaluation"
    return [
        row(what, "model.evaluate", found["keras"], "a later one"),
        row(what, "kt.evaluate", found["kt"], "a later one"),
    ]


def main() -> None:
    """Measures all and prints JSON."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        rows = [*step_cost(folder), *evaluation_cost(), *first_ragged()]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
