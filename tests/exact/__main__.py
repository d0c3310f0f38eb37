"""Every combination of situation, form of data, batch size, size and `jit_compile`.

    KERAS_BACKEND=jax python -m tests.exact            all of them
    KERAS_BACKEND=jax python -m tests.exact mask sum   situations with one of these words

Holds the reference against Keras where Keras is right, prints each fault and the counts; the
exit code is 1 if there was a fault.
"""

import sys
import time

import tests.conftest  # noqa: F401  settles the environment before Keras is imported

# isort: split
import itertools
from operator import attrgetter

import keras

from tests.exact.case import Case, against_keras, faults, product


def count(cases: list[Case]) -> int:
    """Evaluates the cases of one situation, prints what is wrong, and returns how many are."""
    wrong = 0
    for case in cases:
        try:
            found = faults(case)
        except Exception as error:  # noqa: BLE001  a case that raises is a fault like another
            found = [f"{type(error).__name__}: {error}"]
        if found:
            wrong += 1
            print(f"  {case}: {'; '.join(found)}", flush=True)
    return wrong


def main(words: list[str]) -> int:
    """Runs the product and returns the exit code."""
    backend, start, total, wrong = keras.backend.backend(), time.monotonic(), 0, 0
    cases = product(torch=backend == "torch")
    for name, group in itertools.groupby(cases, attrgetter("situation")):
        if words and not any(word in name for word in words):
            continue
        chosen = list(group)
        doubts = against_keras(name, jit=backend != "torch")
        print("".join(f"  reference of {name}: {line}\n" for line in doubts), end="")
        found = count(chosen) + len(doubts)
        total, wrong = total + len(chosen), wrong + found
        print(f"{name}: {len(chosen)} cases, {found} wrong", flush=True)
    seconds = time.monotonic() - start
    print(f"{backend}: {total} cases, {wrong} wrong, {seconds:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
