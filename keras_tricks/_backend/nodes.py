"""A list with attributes that Keras takes for a list."""

from __future__ import annotations

from typing import Any, TypeVar

# `fit` flattens its callbacks with `keras.tree`, which looks into lists, not into what is derived
# from one. Its registry of further classes is private.
from keras.src.tree.tree_api import register_tree_node_class

T = TypeVar("T")


class ListNode(list[T]):
    """The base of a class of lists that Keras flattens as it does a list."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_tree_node_class(cls)

    def tree_flatten(self) -> tuple[list[T], None]:
        """For the registry of optree, which Keras uses on TensorFlow and JAX."""
        return list(self), None

    @classmethod
    def tree_unflatten(cls, metadata: None, children: Any) -> list[T]:  # noqa: ARG003
        """A plain list: the attributes belong to the one that was flattened."""
        return list(children)

    def torchtree_flatten(self) -> tuple[list[T], None]:
        """For the registry of PyTorch."""
        return list(self), None

    @classmethod
    def torchtree_unflatten(cls, children: Any, metadata: None) -> list[T]:  # noqa: ARG003
        """As `tree_unflatten`, the arguments in PyTorch's order."""
        return list(children)

    def torchtree_flatten_with_keys(self) -> tuple[list[tuple[Any, T]], None]:
        """The children with their places."""
        from torch.utils import _pytree  # where Keras takes it from; there is no public one

        return [(_pytree.SequenceKey(i), child) for i, child in enumerate(self)], None
