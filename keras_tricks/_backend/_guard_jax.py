"""The guard on JAX, where a training step is a function from state to state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tricks._backend import keras_private
from keras_tricks._backend.guarding import (
    FLAG,
    MOST_WAITING,
    BaseGuard,
    Event,
    refreshed,
    with_train_step,
)


class JaxGuard(BaseGuard):
    """Selects old or new state whole inside the step, and reads later whether it did.

    With `hold`, the device runs ahead as without a guard: what comes after a rejected step is
    rejected as well until the flag is read. Without it each flag is read at once and handed to
    `at_once`, since the weights that belong to the rejected batch are those of this moment.
    """

    def reset(self) -> None:
        self._held: Any = np.zeros((), bool)
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._steps = self._since = 0

    def make(self, model: keras.Model, base: Callable[..., Any]) -> Callable[..., Any]:
        self.reset()
        train_step = model.train_step

        def guarded(state: Any, data: Any) -> Any:
            held, data = data
            logs, new = train_step(state, data)
            bad = _not_finite(state, new, logs)
            rejected = bad | held
            leaves, structure = jax.tree_util.tree_flatten(new)
            old = jax.tree_util.tree_leaves(state)
            new = jax.tree_util.tree_unflatten(
                structure, [jnp.where(rejected, a, b) for a, b in zip(old, leaves, strict=True)]
            )
            with keras.StatelessScope(
                state_mapping=list(zip(model.metrics_variables, new[3], strict=True))
            ):
                fresh = refreshed(model, logs)
            logs = {
                name: jnp.where(rejected, _value(fresh[name]), value)
                for name, value in logs.items()
            }
            return {**logs, FLAG: (bad, rejected)}, new

        def watched(step_function: Callable[..., Any]) -> Callable[..., Any]:
            def step(state: Any, data: Any) -> Any:
                logs, state = step_function(state, (self._held, data))
                self._note(logs.pop(FLAG), state, data)
                return logs, state

            return step

        with keras_private.watched_steps(model, watched):
            return with_train_step(model, guarded)

    def _note(self, flags: tuple[Any, Any], state: Any, data: Any) -> None:
        bad, rejected = flags
        self._since += 1
        if self.hold:
            self._held = rejected
            self._waiting.append((self._steps, bad, data))
            self._steps += 1
        elif bool(bad):
            # The next step takes over the buffers of this state, maybe in the same execution.
            self.at_once(state, Event(-self._since, data))

    def events(self, logs: dict[str, Any], batch: Any, count: int, *, wait: bool) -> list[Event]:
        self._since = 0
        found = []
        while self._waiting:
            number, bad, data = self._waiting[0]
            late = wait or len(self._waiting) > MOST_WAITING
            if not late and not bad.is_ready():
                break
            self._waiting.popleft()
            if bool(bad):
                found.append(Event(self._steps - 1 - number, data))
                self._waiting.clear()
        return found


def _not_finite(old: Any, new: Any, logs: Any) -> Any:
    """Whether something became not finite."""
    pairs = zip(jax.tree_util.tree_leaves(old), jax.tree_util.tree_leaves(new), strict=True)
    found = [
        jnp.any(jnp.isfinite(a) & ~jnp.isfinite(b))
        for a, b in pairs
        if jnp.issubdtype(b.dtype, jnp.floating)
    ]
    values = [jnp.asarray(_value(value)) for value in keras.tree.flatten(logs)]
    found += [
        ~jnp.all(jnp.isfinite(value))
        for value in values
        if jnp.issubdtype(value.dtype, jnp.floating)
    ]
    return jnp.any(jnp.stack(found)) if found else jnp.zeros((), bool)


def _value(value: Any) -> Any:
    return value.value if isinstance(value, keras.Variable) else value
