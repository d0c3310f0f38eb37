"""Replay and guard on PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import torch

from keras_tricks._backend._guard_torch import TorchGuard

TWO_PASSES = False
Guard = TorchGuard
no_gradients = torch.no_grad


def concrete(tensor: Any) -> bool:
    """Whether the tensor has a value that can be read now."""
    return isinstance(tensor, np.ndarray) or (
        isinstance(tensor, torch.Tensor) and tensor.device.type != "meta"
    )


def probed(tensor: Any, note: Callable[[Any], None]) -> Any:
    """The same tensor, whose gradient is shown to `note` when it arrives."""
    if tensor.requires_grad:
        # On another tensor than the layer's own, which an operation in place may change.
        tensor = tensor.view_as(tensor)

        def hook(gradient: Any) -> None:
            note(gradient)

        tensor.register_hook(hook)
    return tensor


def loss_and_gradients(
    compute: Callable[[list[Any]], tuple[Any, Any]], values: list[Any]
) -> tuple[Any, list[Any]]:
    """Runs `compute(values)`, whose result is a loss and what else is wanted, and its gradients."""
    values = [value.detach().requires_grad_() for value in values]
    with torch.enable_grad():
        loss, extra = compute(values)
        if not loss.requires_grad:
            return extra, [None] * len(values)
        return extra, list(torch.autograd.grad(loss, values, allow_unused=True))


@contextlib.contextmanager
def training_mode(model: keras.Model) -> Iterator[None]:
    """Puts each module into the mode of training, and the mode and the generators back after it."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        model.train()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def whole(batch: Any) -> Any:
    """The batch as it is."""
    return batch
