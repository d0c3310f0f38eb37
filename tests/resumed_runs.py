"""Starts a training again and again and ends it at any moment; looks at what comes of it.

`python tests/resumed_runs.py DIRECTORY KILLS` prints JSON. The backend is imported once; each
training is a fork, made before the backend starts its threads.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_tricks as kt  # noqa: E402
from tests.small_fit import numbers, state_of  # noqa: E402

X, Y = numbers(20)
EPOCHS, BATCHES, EVERY = 4, 10, 4
LAST = EPOCHS * BATCHES


class Telling(keras.callbacks.Callback):
    """Tells the parent of each step before it is made, and waits at one for ever."""

    def __init__(self, pipe, resume, wait_at):
        super().__init__()
        self.pipe = pipe
        self.resume = resume
        self.wait_at = wait_at

    def on_train_batch_begin(self, batch, logs=None):
        if self.resume.run.skip:
            return
        step = self.resume.step + 1
        os.write(self.pipe, f"step {step}\n".encode())
        if step == self.wait_at:
            wait()

    def on_train_end(self, logs=None):
        os.write(self.pipe, b"end\n")


def wait():
    """Sleeps; only what a signal's handler raises ends it."""
    while True:
        signal.pause()


class Examples:
    """Validation data that tells the parent when it is read."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __iter__(self):
        with contextlib.suppress(OSError):
            os.write(self.pipe, b"evaluation\n")
        for row in range(0, 8, 2):
            yield X[row : row + 2], Y[row : row + 2]


def model():
    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [keras.layers.Dense(3, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    )
    # TensorFlow traces for longer than it trains here.
    eager = keras.backend.backend() == "tensorflow"
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=eager)
    return made


def train(directory, pipe, wait_at):
    """One start of the user's script; returns what it found."""
    made = model()
    stop = keras.callbacks.EarlyStopping("val_mae", patience=100, mode="min")
    resume = kt.Resume(directory / "resume", every_steps=EVERY)
    evaluation = kt.StepEvaluation(Examples(pipe), every_steps=5, callbacks=[stop])
    checkpoints = kt.BestCheckpoints(directory / "best", keep=2, save_weights_only=True)
    callbacks = [evaluation, checkpoints, resume, Telling(pipe, resume, wait_at)]
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    made.fit(X, Y, batch_size=2, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    kept = [(c.step, c.rank, c.metrics, c.path.name) for c in checkpoints.checkpoints]
    names = sorted(path.name for path in (directory / "best").iterdir())
    # The time that evaluations took is in none of these.
    found = (state_of(made), made.history.history, evaluation.history, kept, names)
    return {
        "step": resume.step,
        "resumed_from": resume.resumed_from,
        "interrupted_by": resume.interrupted_by,
        "error": resume.error,
        "heard": heard,
        "put back": before == after,
        "lock": (directory / "resume" / "resume.lock").exists(),
        "digest": hashlib.sha256(repr(found).encode()).hexdigest(),
    }


class Child:
    """A training, and what it tells."""

    def __init__(self, directory, wait_at=None):
        reading, writing = os.pipe()
        self.directory = directory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks, since JAX could have threads
            self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            self._train(directory, writing, wait_at)
        os.close(writing)
        self.told = os.fdopen(reading)
        self.lines = []

    @staticmethod
    def _train(directory, pipe, wait_at):
        log = os.open(directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        # A process that a shell put into the background ignores it, and so do its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 1
        try:
            result = train(directory, pipe, wait_at)
            (directory / "result.json").write_text(json.dumps(result))
            code = 0
        except KeyboardInterrupt:
            code = 3
        except Exception as error:  # noqa: BLE001 - the parent is told
            (directory / "error.txt").write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def until(self, line):
        """Waits for a line; whether it came."""
        while told := self.told.readline().strip():
            self.lines.append(told)
            if told == line or (line == "step" and told.startswith("step")):
                return True
        return False

    def send(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Waits; the exit code."""
        while told := self.told.readline().strip():
            self.lines.append(told)
        self.told.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def result(self):
        assert self.end() == 0, (self.directory / "error.txt").read_text()
        return json.loads((self.directory / "result.json").read_text())


def fresh(directory, name):
    folder = directory / name
    (folder / "resume").mkdir(parents=True)
    return folder


def kills(directory, count):
    """Kills a training at random moments, several times in a row, until it gets to its end."""
    whole = Child(fresh(directory, "whole")).result()
    landed, faults, run = {"save": 0}, [], 0
    while sum(landed.values()) - landed["save"] < count:
        run += 1
        folder = fresh(directory, f"run-{run}")
        # In this order, or a place lies behind: in the first epoch, when a save and when an
        # evaluation has begun, anywhere, at the last step, and when all is stored.
        for place in ("step 2", f"step {EVERY + 1}", "evaluation", "step", "step", f"step {LAST}"):
            child = Child(folder)
            for _ in range(random.randint(1, 3) if place in ("step", "evaluation") else 1):
                found = child.until(place)
            until = time.perf_counter() + random.random() * 0.004
            while time.perf_counter() < until:  # a sleep is longer than most saves
                pass
            child.send(signal.SIGKILL)
            child.end()
            landed[place] = landed.get(place, 0) + found
            landed["save"] += any(folder.glob("resume/.keras_tricks-*-resume-*"))
        result = Child(folder).result()
        faults += [
            f"run {run}: {name} {result[name]} instead of {whole[name]}"
            for name in ("step", "digest", "error", "lock")
            if result[name] != whole[name]
        ]
    return {"landed": landed, "faults": faults, "runs": run, "digest": whole["digest"]}


def preemption(directory):
    """SIGTERM and Ctrl-C, once and twice."""
    found = {}
    for name in ("SIGTERM", "SIGINT"):
        folder = fresh(directory, name)
        child = Child(folder)
        child.until("step 14")
        child.send(getattr(signal, name))
        found[name] = child.result()
        found[f"{name} again"] = Child(folder).result()
    folder = fresh(directory, "twice")
    child = Child(folder, wait_at=14)
    child.until("step 14")
    child.send(signal.SIGINT)
    while "SIGINT" not in (folder / "log.txt").read_text():
        time.sleep(0.01)  # two signals at once are one
    child.send(signal.SIGINT)
    found["twice, exit code"] = child.end()
    found["after that"] = Child(folder).result()
    return found


def two_processes(directory):
    """A second process in the directory of one that is there, and of one that is gone."""
    folder = fresh(directory, "shared")
    first = Child(folder, wait_at=14)
    first.until("step 14")
    second = Child(folder)
    code = second.end()
    words = (folder / "error.txt").read_text()
    first.send(signal.SIGKILL)
    first.end()
    third = Child(folder).result()
    return {"code": code, "words": words, "first": first.pid, "third": third}


def main(directory, count):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    report = {"kills": kills(directory, count)}
    report["preemption"] = preemption(directory)
    report["two"] = two_processes(directory)
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
