"""The user's own classes and functions in a model, as Python text that stands alone."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import keras

from keras_tricks._backend import keras_private


def sources(model: keras.Model) -> str:
    """Text that defines what the model holds and Keras does not have; empty where there is none.

    Of each module that defines something in the model, the imports, classes, functions and
    constants of its top level; nothing that would train.
    """
    modules = dict.fromkeys(
        module
        for part in _parts(model)
        if (module := getattr(part, "__module__", None)) and not module.startswith("keras")
    )
    texts = [_definitions(sys.modules[name]) for name in modules if name in sys.modules]
    return "\n\n\n".join(text for text in texts if text)


def _parts(model: keras.Model) -> list[Any]:
    """Classes of layers, losses, metrics and optimizer, and the functions inside them."""
    parts: list[Any] = [type(operation) for operation in keras_private.operations(model)]
    for operation in keras_private.operations(model):
        parts += [getattr(operation, name, None) for name in ("activation", "function")]
    losses = [entry.loss for entry in keras_private.loss_entries(model)]
    for thing in [*losses, *keras_private.flat_metrics(model)]:
        parts += [type(thing), keras_private.function_of(thing)]
    parts.append(type(getattr(model, "optimizer", None)))
    return [part for part in parts if part is not None]


def _definitions(module: Any) -> str:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):  # typed at a prompt
        return ""
    kept = [
        ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef)
        or (isinstance(node, ast.Assign) and _is_constant(node.value))
    ]
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    kept += [
        "\n".join([*_decorators(text, node), ast.get_source_segment(text, node) or ""])
        for node in classes
    ]
    return "\n\n".join(kept)


def _decorators(text: str, node: ast.ClassDef) -> list[str]:
    return [f"@{ast.get_source_segment(text, decorator)}" for decorator in node.decorator_list]


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
