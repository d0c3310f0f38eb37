"""Kills one `fit` after another in a directory of checkpoints: `killed_fits.py DIRECTORY COUNT`.

Each `fit` runs in a fork of a process that has imported the backend and never used it, goes on
from what the one before left, and first looks at all of that. Prints JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import keras_tricks as kt

SHRINKS = 0.99
TARGET = SHRINKS**10


def model():
    """A weight of 1 that each step takes towards 0 by a hundredth, and 2.4 MB that stay."""
    layers = keras.layers
    x = keras.Input((1,))
    y = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="weight")(x)
    ballast = layers.Dense(300_000, trainable=False)(x)
    ballast = layers.Dense(1, trainable=False, kernel_initializer="zeros")(ballast)
    made = keras.Model(x, layers.Add()([y, ballast]))
    made.compile(keras.optimizers.SGD((1 - SHRINKS) / 2), "mse")
    return made


def faults_in(directory):
    """What is wrong with the checkpoints, by NumPy; the best loss; the model of the newest."""
    if not (directory / "checkpoints.json").exists():
        return [], None, None
    found = kt.Checkpoints(directory)
    faults, newest = [], None
    for checkpoint in found.checkpoints:
        loaded = keras.models.load_model(checkpoint.path)
        weight = float(loaded.get_layer("weight").get_weights()[0].item())
        right = SHRINKS**checkpoint.step
        if abs(weight / right - 1) > 1e-4:
            faults.append(f"step {checkpoint.step} has {weight}, not {right}")
        if abs(checkpoint.metrics["val_loss"] - (weight - TARGET) ** 2) > 1e-6:
            faults.append(f"step {checkpoint.step} has {checkpoint.metrics}")
    if found.last is not None:
        newest = found.restore(step=found.last.step)
    return faults, found.best and found.best.metrics["val_loss"], newest


def train(directory, tell, parent):
    """Looks, says what it saw, and trains until it is killed."""
    faults, best, newest = faults_in(directory)
    tell({"faults": faults, "best": best})

    class Third(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if os.getppid() != parent:
                os._exit(1)  # nobody is left to kill this process
            if batch == 2:
                tell("trains")

    ones = np.ones((100_000, 1), "float32")
    evaluation = kt.StepEvaluation((ones[:1], TARGET * ones[:1]), every_steps=1)
    keeper = kt.BestCheckpoints(directory, keep=2, keep_last=2, existing="continue")
    (newest or model()).fit(
        *(ones, 0 * ones), batch_size=1, verbose=0, callbacks=[Third(), evaluation, keeper]
    )


def started(directory, *, looks_only=False):
    """The process and what it tells, a line each."""
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child:
        os.close(writing)
        return child, os.fdopen(reading)
    os.close(reading)

    def tell(what):
        os.write(writing, f"{json.dumps(what)}\n".encode())
        if looks_only:
            os._exit(0)

    try:
        train(directory, tell, parent)
    finally:
        os._exit(1)


def main(directory, count):
    """Kills `count` times at random instants of the saves."""
    chance = random.Random(1)
    found = {"kills": 0, "faults": [], "best": []}
    for number in range(count + 1):
        child, lines = started(directory, looks_only=number == count)
        saw = json.loads(lines.readline())
        found["faults"] += saw["faults"]
        found["best"].append(saw["best"])
        if number < count and lines.readline():
            time.sleep(chance.uniform(0.02, 0.5))
            os.kill(child, signal.SIGKILL)
            found["kills"] += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        else:
            os.waitpid(child, 0)
        lines.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
