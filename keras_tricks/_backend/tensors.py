"""What a replay and the guard ask of a backend: `_tensors_<backend>.py` has the answers."""

from __future__ import annotations

import importlib
from typing import Any

from keras_tricks import _backend
from keras_tricks._backend import keeping

_module: Any = importlib.import_module(f"{__name__.rpartition('.')[0]}._tensors_{_backend.NAME}")

concrete = _module.concrete
probed = _module.probed
loss_and_gradients = _module.loss_and_gradients
no_gradients = _module.no_gradients
training_mode = _module.training_mode
two_passes: bool = _module.TWO_PASSES
# A replay runs layers and losses of the user's own, which may raise more than a backend does.
ERRORS: tuple[type[Exception], ...] = (
    *keeping.ERRORS,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
)
whole = _module.whole
Guard = _module.Guard
