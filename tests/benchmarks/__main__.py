"""`python -m tests.benchmarks [backend ...]`: one process for each backend, then one table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil

from keras_tricks._table import table

LEGS = ("tensorflow", "jax")


def measured(backend: str) -> list[dict[str, object]]:
    """Rows that a process on this backend measured."""
    environment = dict(
        os.environ, KERAS_BACKEND=backend, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3"
    )
    command = [sys.executable, "-m", "tests.benchmarks.leg"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=3600
    )
    rows: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    """Measures and prints."""
    legs = sys.argv[1:] or LEGS
    rows = [(leg, row) for leg in legs for row in measured(leg)]
    cells = [[leg, row["what"], row["who"], row["ratio"], row["to"]] for leg, row in rows]
    print(table(cells, ["backend", "what", "with", "ratio", "to"]))
    memory = psutil.virtual_memory().total / 2**30
    print(f"Medians. CPU only, {os.cpu_count()} cores, {memory:.0f} GiB.")


if __name__ == "__main__":
    main()
