"""Kills a process that saves checkpoints, again and again, and looks at what each kill left.

`python tests/killed_saves.py DIRECTORY KILLS` prints JSON. No backend is imported: the package is
entered past its `__init__`, so that a process starts in no time and forks without threads.
"""

import json
import os
import random
import signal
import sys
import time
import types
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
package = types.ModuleType("keras_tricks")
package.__path__ = [str(ROOT / "keras_tricks")]
sys.modules["keras_tricks"] = package

from keras_tricks._checkpoint_files import damage, read  # noqa: E402
from keras_tricks._index import Record, Rule  # noqa: E402
from keras_tricks._store import Store  # noqa: E402

PHASES = ("write", "flush", "rename", "index", "delete")
RULE = Rule("val_loss", "min", 3, 2)
FOREIGN = {"step-00000010.keras": b"somebody else's", "notes.txt": b"mine"}
PARTS = 8


def value_of(step):
    """A loss that looks like noise, the same in every process."""
    return random.Random(step).random()


def content_of(step):
    return random.Random(-step).randbytes(100_000)


def write(step):
    def into(path):
        with zipfile.ZipFile(path, "w") as archive:
            for part in range(PARTS):
                archive.writestr(f"part-{part}", content_of(step))

    return into


def loads(path, step):
    with zipfile.ZipFile(path) as archive:
        return all(archive.read(f"part-{n}") == content_of(step) for n in range(PARTS))


def saver(directory, pipe, saves):
    """Goes on where the index ends, and tells each phase and each save that is over."""
    store = Store(directory, watch=lambda phase: os.write(pipe, f"{phase}\n".encode()))
    store.open(RULE)
    for _ in range(saves):
        step = (store.index.last_step or 0) + 10
        seeds = {"seeds": [step, 0]} if step % 20 else None
        record = Record(step, 0, {"val_loss": value_of(step)})
        store.save(record, write(step), suffix=".keras", seeds=seeds)
        os.write(pipe, f"done {step}\n".encode())
    store.close()


class Child:
    """A process that saves, and what it has told so far."""

    def __init__(self, directory, saves=10**9):
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            saver(directory, writing, saves)
            os._exit(0)
        os.close(writing)
        self.told = os.fdopen(reading)
        self.lines = []
        self.times = []

    def next(self):
        line = self.told.readline().strip()
        if line:
            self.lines.append(line)
            self.times.append(time.perf_counter())
        return line

    def end(self):
        """Reads to the end, also of a process that was killed; its last phase."""
        while self.next():
            pass
        self.told.close()
        status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(status)


def typical_seconds(directory):
    """How long each phase takes, from a process that nobody kills."""
    child = Child(directory, saves=6)
    assert child.end() == 0
    spans = {phase: [0.0] for phase in PHASES}
    for line, begin, end in zip(child.lines, child.times, child.times[1:], strict=False):
        if line in spans:
            spans[line].append(end - begin)
    return {phase: sorted(times)[-2] for phase, times in spans.items()}


def kill_once(directory, phase, pause):
    """Kills a saver some time after it began `phase`: the phase it was in, the steps it ended."""
    child = Child(directory)
    for _ in range(random.randint(1, 3)):
        while child.next() != phase:
            pass
    # Busy: a sleep is longer than most phases.
    until = time.perf_counter() + pause
    while time.perf_counter() < until:
        pass
    os.kill(child.pid, signal.SIGKILL)
    assert child.end() == -signal.SIGKILL
    phases = [line for line in child.lines if line in PHASES]
    ended = child.lines[-1].startswith("done")
    return "between" if ended else phases[-1], [int(x[5:]) for x in child.lines if x[:4] == "done"]


def faults(directory, best):
    """What is not as it should be after a kill, and the best value that is there."""
    found = []
    index, messages = read(directory)
    found += messages
    ranking = index.ranking()
    now = ranking[0].metrics["val_loss"] if ranking else float("inf")
    if now > best:
        found.append(f"the best was {best} and is {now}")
    for record in index.stored:
        if damage(directory, record) or not loads(directory / record.file, record.step):
            found.append(f"{record.file} does not load")
    for name, content in FOREIGN.items():
        if not (directory / name).exists() or (directory / name).read_bytes() != content:
            found.append(f"{name} was touched")
    return found, min(now, best)


def left_behind(directory):
    """Files that are neither the index, nor kept, nor somebody else's."""
    index, _ = read(directory)
    wanted = {"checkpoints.json", *FOREIGN, *(record.file for record in index.stored)}
    wanted |= {f"step-{r.step:08d}.seeds.json" for r in index.stored if r.step % 20}
    return sorted({path.name for path in directory.iterdir()} ^ wanted), len(index.stored)


def main(directory, kills):
    for name, content in FOREIGN.items():
        (directory / name).write_bytes(content)
    random.seed(0)
    typical = typical_seconds(directory)
    landed = dict.fromkeys([*PHASES, "between"], 0)
    found, best, ended = [], float("inf"), 0
    for number in range(kills):
        phase = PHASES[number % len(PHASES)]
        where, done = kill_once(directory, phase, random.random() * typical[phase])
        landed[where] += 1
        ended += len(done)
        best = min([best, *map(value_of, done)])
        more, best = faults(directory, best)
        found += [f"kill {number} in {where}: {fault}" for fault in more]
    assert Child(directory, saves=1).end() == 0
    strangers, stored = left_behind(directory)
    report = {"landed": landed, "faults": found, "left": strangers, "stored": stored}
    print(json.dumps({**report, "saves": ended, "best": best, "seconds": typical}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
