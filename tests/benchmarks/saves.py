"""What a checkpoint costs the training: `python -m tests.benchmarks.saves [backend ...]`.

One `fit` in which the savers take turns. A save's stall is the sum over steps of (step time −
median step time), from the step that starts it to the one in which it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_tricks as kt
from keras_tricks._run import Evaluation
from keras_tricks._table import table
from keras_tricks._trick import Trick

LEGS = ("tensorflow", "jax", "torch")
MEGABYTES = (50, 100, 200)
APART = 14
"""Steps from one save to the next: more than the slowest takes."""
ROUNDS = 6


def model_of(megabytes: int) -> keras.Model:
    """A model whose weights and Adam's two averages of them take so many MB, in four layers."""
    width = round((megabytes * 1e6 / (4 * 3 * 4)) ** 0.5)
    layers = [keras.layers.Dense(width, "relu", use_bias=False) for _ in range(4)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile("adam", "mse")
    return model


def state_bytes(model: keras.Model) -> int:
    """Bytes of all that a checkpoint holds."""
    variables = [*model.variables, *model.optimizer.variables]
    return sum(int(np.prod(v.shape)) * 4 for v in variables)


class Clock(keras.callbacks.Callback):
    """When each step began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.began.append(time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Overridden, so that Keras waits for the device at each step, on every backend."""


class Announcer(Trick):
    """Announces an evaluation that took no time, so that nothing but the save is measured."""

    evaluates = True

    def __init__(self, steps: list[int], rider: kt.BestCheckpoints) -> None:
        super().__init__()
        self.steps = steps
        self.rider = rider
        self.ended: dict[int, int] = {}

    def on_step(self, step: int) -> None:
        if step in self.steps:
            self.run.announce(Evaluation(step, 0, {"val_loss": 1 / step}))
        elif self.steps and not self.rider._writer._thread.busy:
            last = max((s for s in self.steps if s < step), default=None)
            if last is not None:
                self.ended.setdefault(last, step)


class Turn(keras.callbacks.Callback):
    """Lets a callback of Keras see the ends of some batches only."""

    def __init__(self, callback: keras.callbacks.Callback, steps: list[int]) -> None:
        super().__init__()
        self.callback = callback
        self.steps = steps
        self.count = 0

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self.callback.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self.callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.callback.on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        if self.count in self.steps:
            _ = self.model  # on JAX this brings the state to the model, as a saver needs it
            self.callback.on_train_batch_end(batch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self.callback.on_train_end(logs)


def stalls(megabytes: int, folder: Path) -> dict[str, list[float]]:
    """Seconds that each save cost, by saver, and the median step under ""."""
    model = model_of(megabytes)
    savers = ["keras_tricks", "ModelCheckpoint"]
    if importlib.util.find_spec("orbax"):
        savers.append("OrbaxCheckpoint")
    turns: dict[str, list[int]] = {name: [] for name in savers}
    first = 2 * APART
    for number in range(ROUNDS * len(savers)):
        turns[savers[number % len(savers)]].append(first + number * APART)
    steps = first + ROUNDS * len(savers) * APART
    best = kt.BestCheckpoints(folder / "ours", keep=1, keep_last=1)
    announcer = Announcer(turns["keras_tricks"], best)
    clock = Clock()
    keras_own = keras.callbacks.ModelCheckpoint(folder / "last.keras", save_freq=1)
    callbacks = [clock, announcer, best, Turn(keras_own, turns["ModelCheckpoint"])]
    if "OrbaxCheckpoint" in savers:
        orbax_own = keras.callbacks.OrbaxCheckpoint(folder / "orbax", save_freq=1, max_to_keep=2)
        callbacks.append(Turn(orbax_own, turns["OrbaxCheckpoint"]))
    width = model.input_shape[-1]
    x = np.random.default_rng(0).normal(size=(8, width)).astype("float32")
    batches = (x for _ in iter(int, 1))
    model.fit(
        ((b, b) for b in batches),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=callbacks,
    )
    assert best.failures == 0, best.error
    took = np.diff(clock.began)
    usual = statistics.median(took)
    # The second half of the pause after a save, in which nothing is going on.
    quiet = [took[s + APART // 2 : s + APART - 2] for steps in turns.values() for s in steps]
    usual = statistics.median(np.concatenate(quiet))
    found: dict[str, list[float]] = {"": [usual]}
    for name, at in turns.items():
        found[name] = []
        for step in at:
            end = announcer.ended.get(step, step) if name == "keras_tricks" else step
            end = step + APART // 2 if name == "OrbaxCheckpoint" else end
            # Step number n is entry n - 1; its hooks, with the save, are over when n + 1 begins.
            found[name].append(float(np.sum(took[step - 1 : end] - usual)))
    found["bytes"] = [float(state_bytes(model))]
    return found


def peak_bytes() -> int:
    """The most memory since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def forget_peak() -> None:
    """Lets the peak begin with what is there now."""
    Path("/proc/self/clear_refs").write_text("5")


def growth(megabytes: int, folder: Path) -> float:
    """Peak of memory while the first save is written, less that of steps before, over the state."""
    model = model_of(megabytes)
    best = kt.BestCheckpoints(folder / "growth", keep=1)
    peaks = []

    class Peaks(Trick):
        evaluates = True

        def on_step(self, step: int) -> None:
            if step == 20:
                forget_peak()
            if step == 40:
                peaks.append(peak_bytes())
                forget_peak()
                self.run.announce(Evaluation(step, 0, {"val_loss": 1.0}))

        def on_end(self) -> None:
            best._writer.wait()
            peaks.append(peak_bytes())

    width = model.input_shape[-1]
    x = np.random.default_rng(0).normal(size=(8, width)).astype("float32")
    model.fit(
        ((x, x) for _ in iter(int, 1)),
        steps_per_epoch=60,
        verbose=0,
        callbacks=[Peaks(), best],
    )
    return (peaks[1] - peaks[0]) / state_bytes(model)


def leg(megabytes: int, what: str) -> None:
    """Measures in this process and prints JSON."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        found: Any = (stalls if what == "stalls" else growth)(megabytes, Path(folder))
    print(json.dumps(found))


def measured(backend: str, megabytes: int, what: str) -> Any:
    """What a process of its own measured."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "tests.benchmarks.saves", "leg", str(megabytes), what]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=1800
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures and prints."""
    cells = []
    for backend in sys.argv[1:] or LEGS:
        for size in MEGABYTES:
            found = measured(backend, size, "stalls")
            memory = measured(backend, size, "growth")
            keras_own = statistics.median(found["ModelCheckpoint"])
            for name in found.keys() - {"", "bytes"}:
                seconds = statistics.median(found[name])
                grown = f"{memory:.2f}" if name == "keras_tricks" else ""
                row = [backend, size, name, f"{seconds:.3f}", f"{seconds / keras_own:.2f}", grown]
                cells.append(row)
    columns = ["backend", "MB", "saver", "stall s", "of ModelCheckpoint", "memory / state"]
    print(table(sorted(cells), columns))


if __name__ == "__main__":
    if sys.argv[1:2] == ["leg"]:
        leg(int(sys.argv[2]), sys.argv[3])
    else:
        main()
