"""Misspelt keywords, told with the value and the way out."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def checks_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """The function or `__init__`, which tells of a keyword that it lacks what may be meant."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function
    shown = function.__qualname__.removesuffix(".__init__")
    known = [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY and p.name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for keyword, value in kwargs.items():
            if keyword not in known:
                raise TypeError(_refusal(shown, keyword, value, known))
        return function(*args, **kwargs)

    return checked


def _refusal(name: str, keyword: str, value: object, known: list[str]) -> str:
    meant = difflib.get_close_matches(keyword, known, n=1)
    shown = reprlib.repr(value)
    way_out = f"`{meant[0]}={shown}`" if meant else f"one of {', '.join(known)}"
    return f"`{name}` has no argument `{keyword}`, got {keyword}={shown}. Pass {way_out}."
