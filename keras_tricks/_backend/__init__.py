"""The seam: the only folder that imports TensorFlow, JAX or PyTorch.

The rest of the package asks this module; it hands on to the backend that Keras runs on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tricks._backend import keras_private

NAME: str = keras.config.backend()

_MODULES = {"tensorflow": "_tensorflow", "jax": "_jax", "torch": "_torch"}

if NAME not in _MODULES:
    raise ImportError(
        f"keras_tricks runs on the Keras backends tensorflow, jax and torch, got {NAME!r}. "
        'Set the environment variable KERAS_BACKEND to one of them before "import keras".'
    )

_module = importlib.import_module(f"{__name__}.{_MODULES[NAME]}")

undisturbed = _module.undisturbed
random_state = _module.random_state
own_random_state = _module.own_random_state
set_random_state = _module.set_random_state
outside_strategy = _module.outside_strategy
sync = _module.sync
read = _module.read
is_chief = _module.is_chief
peak_device_bytes = _module.peak_device_bytes
latest_rows = _module.latest_rows
build = _module.build
strategy_scope = _module.strategy_scope
host_views = _module.host_views
device_copies = _module.device_copies
to_host = _module.to_host
STOP: tuple[type[BaseException], ...] = _module.STOP


def runner(model: keras.Model) -> Any:
    """What an evaluation of `model` asks of this backend: a `runner.Runner`."""
    return _module.RUNNER(model)


def global_seed() -> int | None:
    """The seed of TensorFlow's that the user gave, None without one."""
    return _module.global_seed() if NAME == "tensorflow" else None


def with_seed(seed: int, function: Callable[[], Any]) -> Any:
    """Runs `function` under a global seed of TensorFlow's."""
    return _module.with_seed(seed, function)


def install_tap(model: keras.Model, tap: Any) -> None:
    """Puts `tap` around the model's train function, in the place of an older one.

    Before each execution it asks `tap.to_skip(steps_per_execution)` how many batches are only to
    be read, which `tap.skipped(batches)` is then told.
    Around each execution it calls `tap.before(steps_per_execution)`, whose answer is how
    many steps may run; `tap.waiting()` and `tap.received(batch)` around the read of each
    batch where that happens inside; and `tap.after(count, logs)` on the main thread, with
    `count` None where only the backend knows how many steps ran. An inactive tap passes
    everything through.
    """
    remove_tap(model)
    inner = model.train_function
    outer = _module.tapped(inner, tap, model.steps_per_execution, eager=bool(model.run_eagerly))
    outer.keras_tricks_inner = inner
    model.train_function = outer


def remove_tap(model: keras.Model) -> None:
    """Takes the tap off again."""
    inner = getattr(model.train_function, "keras_tricks_inner", None)
    if inner is not None:
        model.train_function = inner


def untapped(model: keras.Model) -> Any:
    """The model's train function without the tap."""
    return getattr(model.train_function, "keras_tricks_inner", model.train_function)


def publish(model: keras.Model, state: Any) -> None:
    """Makes the state of the step that just ended visible to `sync` (JAX)."""
    _module.publish(model, state)


def updates(model: keras.Model) -> int:
    """Updates that the optimizer was asked for, 0 without one or before it is built."""
    counter = keras_private.update_counter(model)
    return 0 if counter is None else int(keras.ops.convert_to_numpy(read(counter)))


def executed_steps(model: keras.Model, size: int, memory: dict[str, float]) -> int:
    """Steps of an execution of up to `size`, for data whose length nobody knows.

    The loop runs inside TensorFlow's graph. The optimizer counts its steps, except that loss
    scaling leaves out overflows; then the rows that the loss's mean has counted tell it.
    `memory` keeps what the last call of this epoch read.
    """
    tracker = keras_private.loss_tracker(model)
    rows = 0.0 if tracker is None else float(keras.ops.convert_to_numpy(read(tracker.count)))
    iterations = float(updates(model))
    new_rows = rows - memory.get("rows", 0.0)
    new_iterations = iterations - memory.get("iterations", iterations - size)
    memory.update(rows=rows, iterations=iterations)
    scaled = hasattr(model.optimizer, "inner_optimizer")
    if not scaled and 1 <= new_iterations <= size:
        return int(new_iterations)
    batch = max(memory.get("batch", 0.0), new_rows / size)
    memory["batch"] = batch
    return max(1, min(size, round(-(-new_rows // batch)))) if batch else size


def rows_counted(model: keras.Model, steps: int) -> int | None:
    """Rows of a batch by what the loss's mean has counted in `steps` steps, None if nothing."""
    tracker = keras_private.loss_tracker(model)
    rows = 0.0 if tracker is None else float(keras.ops.convert_to_numpy(read(tracker.count)))
    return round(-(-rows // steps)) or None


def metric_state(model: keras.Model) -> list[np.ndarray]:
    """The running sums of all metrics as they stand, on the host."""
    return [
        np.array(keras.ops.convert_to_numpy(read(variable)))
        for variable in keras_private.metric_variables(model)
    ]
