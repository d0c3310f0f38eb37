"""The two halves of an evaluation step, traced or run by each backend.

`forward_pass` only ever sees full batches. `update_pass` gets what belongs to the real
examples, cut from it, so that losses and metrics never meet the padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import keras
from keras import Variable, ops

from keras_tricks._backend import keras_private


@dataclass(frozen=True)
class Term:
    """One compiled loss.

    Attributes:
        index: Its place among the compiled losses.
        name: Name of the loss, as the user knows it.
        summed: Whether it is a `sum`, whose scale is the batch's.
        weight: Its factor in the total.
    """

    index: int
    name: str
    summed: bool
    weight: float


@dataclass
class Facts:
    """What only a trace can tell about a model, filled in while tracing.

    Attributes:
        terms: The compiled losses.
        added_losses: Layers that add a loss when called.
        assigned: Variables that the forward pass assigns to and nobody carried on.
    """

    terms: list[Term] = field(default_factory=list)
    added_losses: list[str] = field(default_factory=list)
    assigned: list[Variable] = field(default_factory=list)


@dataclass
class Forward:
    """Outputs of a forward pass; a pytree of plain lists for the backends."""

    y_pred: Any
    masks: list[Any]
    losses: list[Any]
    carried: list[Any]

    def parts(self) -> tuple[Any, list[Any], list[Any], list[Any]]:
        """The fields, for a backend whose functions return plain structures."""
        return self.y_pred, self.masks, self.losses, self.carried


def current(scope: keras.StatelessScope, variables: list[Variable], before: list[Any]) -> list[Any]:
    """The variables' values at the end of a scope that was given `before`."""
    values = [scope.get_current_value(variable) for variable in variables]
    return [
        old if new is None else ops.cast(new, variable.dtype)
        for variable, new, old in zip(variables, values, before, strict=True)
    ]


def forward_pass(
    model: keras.Model,
    x: Any,
    mapping: list[tuple[Variable, Any]],
    carried: list[Variable],
    facts: Facts,
) -> Forward:
    """Runs the model on one batch without assigning to any variable.

    Args:
        model: The model.
        x: Inputs, every leaf of shape `[size, ...]`.
        mapping: Values to use in place of the variables' own, those of `carried` among them.
        carried: Variables whose new values the next batch starts from.
        facts: Receives what the trace shows.
    """
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        given = {variable_id: id(value) for variable_id, value in scope.state_mapping.items()}
        y_pred = keras_private.call(model, x, training=False)
        losses = list(model.losses)
        facts.added_losses[:] = keras_private.added_losses(model)
        keras_private.clear_losses(model)
    known = {id(variable) for variable in carried}
    facts.assigned[:] = [
        variable
        for variable in [*model.variables, *keras_private.metric_variables(model)]
        if id(variable) not in known
        and scope.get_current_value(variable) is not None
        and id(scope.get_current_value(variable)) != given.get(id(variable))
    ]
    values = [scope.get_current_value(variable) for variable in carried]
    masks = [keras_private.get_mask(leaf) for leaf in keras.tree.flatten(y_pred)]
    return Forward(y_pred, masks, losses, values)


def rows_of(structure: Any) -> Any:
    """Rows of the first tensor of a structure, a number or a tensor."""
    leaf = next(leaf for leaf in keras.tree.flatten(structure) if leaf is not None)
    return ops.shape(leaf)[0]


def loss_sums(
    loss: Any, y_true: Any, y_pred: Any, sample_weight: Any, rows: Any
) -> tuple[Any, Any, Any, bool]:
    """Numerator, denominator and value of a loss on one batch.

    The value is what `loss(...)` returns; numerators and denominators of several batches
    add up to what it would return on all of them at once. Follows `keras.Loss.__call__`.

    Args:
        loss: A `keras.Loss`.
        y_true: Targets.
        y_pred: Outputs, with their mask attached.
        sample_weight: Weights or None.
        rows: Number of examples.

    Returns:
        `(numerator, denominator, value, summed)`; `summed` for the reduction `"sum"`.
    """
    if type(loss).__call__ is not keras.Loss.__call__:
        value = loss(y_true, y_pred, sample_weight)
        return _per_batch(value, rows)
    mask = keras_private.get_mask(y_pred)

    def converted(tensor: Any) -> Any:
        return ops.convert_to_tensor(tensor, dtype=loss.dtype)

    values = loss.call(
        keras.tree.map_structure(converted, y_true), keras.tree.map_structure(converted, y_pred)
    )
    own_mask = keras_private.get_mask(values)
    if own_mask is not None:
        mask = own_mask if mask is None else mask & own_mask
    values = ops.convert_to_tensor(values, dtype=loss.dtype)
    weights = None if sample_weight is None else converted(sample_weight)
    weights = keras_private.mask_as_weights(weights, mask, values.dtype)
    if weights is not None:
        values, weights = keras_private.same_rank(values, ops.cast(weights, values.dtype))
        values = values * weights
    if len(values.shape) == 0:
        return _per_batch(values, rows, summed=loss.reduction == "sum")
    numerator = ops.sum(values)
    if loss.reduction == "sum":
        return numerator, ops.ones_like(numerator), numerator, True
    denominator = _denominator(loss.reduction, values, weights, mask)
    value = ops.divide_no_nan(numerator, denominator)
    return numerator, denominator, values if loss.reduction in (None, "none") else value, False


def _per_batch(value: Any, rows: Any, summed: bool = False) -> tuple[Any, Any, Any, bool]:
    """A loss that gives one number for a batch: weighted by its rows."""
    value = ops.convert_to_tensor(value)
    mean = ops.mean(value)
    if summed:
        return mean, ops.ones_like(mean), value, True
    rows = ops.cast(rows, mean.dtype)
    return mean * rows, rows, value, False


def _denominator(reduction: str | None, values: Any, weights: Any, mask: Any) -> Any:
    """What Keras divides the summed losses by."""
    if reduction == "mean_with_sample_weight" and weights is not None:
        return ops.sum(weights)
    elements = _size(values)
    if mask is None or reduction in (None, "none", "mean_with_sample_weight"):
        return elements
    valid = ops.sum(ops.cast(mask, values.dtype))
    return elements * ops.divide_no_nan(valid, _size(mask, values.dtype))


def _size(tensor: Any, dtype: Any = None) -> Any:
    """Number of elements, also where the batch dimension is only known at run time."""
    return ops.sum(ops.ones_like(tensor, dtype=dtype or tensor.dtype))


class _Recorder:
    """Stands in for a compiled loss and keeps its numerator and denominator."""

    def __init__(self, loss: Any, index: int, sums: dict[int, tuple[Any, Any, Any, bool]]) -> None:
        self.loss = loss
        self.index = index
        self.sums = sums

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        sums = loss_sums(self.loss, y_true, y_pred, sample_weight, rows_of(y_pred))
        self.sums[self.index] = sums
        return sums[2]


def update_pass(
    model: keras.Model,
    data: tuple[Any, Any, Any],
    forward: Forward,
    mapping: list[tuple[Variable, Any]],
    metrics: tuple[list[Variable], list[Any]],
    rows: Any,
    facts: Facts,
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Adds one cut batch to losses and metrics without assigning to any variable.

    Args:
        model: The model.
        data: `(x, y, sample_weight)`, every leaf with `rows` rows.
        forward: The forward pass of these rows.
        mapping: Values to use in place of the variables' own.
        metrics: The metrics' variables and their values so far.
        rows: Number of examples, a number or a tensor.
        facts: Receives the compiled losses.

    Returns:
        The metrics' new values; `[numerator, denominator]` of each compiled loss in turn,
        then the rest of the loss (regularisers, added losses, what a user's `compute_loss`
        adds); what `compute_metrics` returned.
    """
    x, y, sample_weight = data
    y = keras_private.targets_by_output(model, y, forward.y_pred)
    for leaf, mask in zip(keras.tree.flatten(forward.y_pred), forward.masks, strict=True):
        if mask is not None:
            keras_private.set_mask(leaf, mask)
    sums: dict[int, tuple[Any, Any, Any, bool]] = {}
    entries = keras_private.loss_entries(model)
    recorders: list[Any] = [_Recorder(e.loss, i, sums) for i, e in enumerate(entries)]
    variables, values = metrics
    with (
        keras.StatelessScope(
            state_mapping=[*mapping, *zip(variables, values, strict=True)]
        ) as scope,
        keras_private.given_losses(model, forward.losses),
        keras_private.replaced_losses(model, recorders),
        keras_private.wrapped_metric_functions(model, _one_number_per_row),
    ):
        total = keras_private.total_loss(model, x, y, forward.y_pred, sample_weight, training=False)
        rest = _rest(model, total, sums, entries)
        tracker = keras_private.loss_tracker(model)
        if tracker is not None:
            tracker.update_state(total, sample_weight=rows)
        logs = settled(model.compute_metrics(x, y, forward.y_pred, sample_weight=sample_weight))
        new = current(scope, variables, values)
    _note_terms(entries, sums, facts)
    numbers = [ops.cast(n, "float32") for i in sorted(sums) for n in sums[i][:2]]
    return new, [*numbers, ops.cast(rest, "float32")], logs


def _rest(model: keras.Model, total: Any, sums: dict[int, Any], entries: list[Any]) -> Any:
    """The part of the total that no compiled loss accounts for."""
    if not keras_private.is_overridden(model, "compute_loss"):
        extra = [keras_private.additional_loss(model, loss) for loss in model.losses]
        return ops.cast(sum(extra[1:], extra[0]), "float32") if extra else ops.zeros((), "float32")
    rest = ops.mean(ops.cast(total, "float32"))
    for index, (_, _, value, _) in sums.items():
        weight = entries[index].loss_weights
        mean = ops.mean(ops.cast(value, "float32"))
        rest = rest - (mean if weight is None else mean * weight)
    return rest


def _one_number_per_row(function: Any) -> Any:
    """Repeats a metric function's single number for each row of the batch.

    Keras would count it as one example, and so weight a batch of one like a batch of 64.
    """

    def repeated(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        masked = keras_private.get_mask(y_pred) is not None
        values = ops.convert_to_tensor(function(y_true, y_pred, *args, **kwargs))
        if len(values.shape) or masked:
            return values
        first = next(leaf for leaf in keras.tree.flatten(y_pred) if leaf is not None)
        column = first[(slice(None), *([0] * (len(first.shape) - 1)))]
        return ops.ones_like(column, dtype=values.dtype) * values

    return repeated


def _note_terms(entries: list[Any], sums: dict[int, Any], facts: Facts) -> None:
    """Keeps the losses' names, kinds and weights, which every trace finds the same."""
    facts.terms[:] = [
        Term(
            index=index,
            name=str(getattr(entries[index].loss, "name", "loss")),
            summed=sums[index][3],
            weight=1.0
            if entries[index].loss_weights is None
            else float(entries[index].loss_weights),
        )
        for index in sorted(sums)
    ]


def results_pass(
    model: keras.Model, variables: list[Variable], values: list[Any]
) -> dict[str, Any]:
    """What the metrics say with `values` in their variables."""
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
        return settled(model.get_metrics_result())


def settled(logs: dict[str, Any]) -> dict[str, Any]:
    """Results as tensors: a metric may return its variable, which outside of the scope is another.

    Call it inside the scope. On TensorFlow even `convert_to_tensor` returns the variable.
    """
    return {
        name: settled(value)
        if isinstance(value, dict)
        else value.value
        if isinstance(value, Variable)
        else value
        for name, value in (logs or {}).items()
    }


def reset_values(model: keras.Model, variables: list[Variable]) -> list[Any]:
    """The variables' values after a reset, which the variables themselves do not see."""
    with keras.StatelessScope() as scope:
        for metric in model.metrics:
            metric.reset_state()
    values = [scope.get_current_value(variable) for variable in variables]
    return [
        variable.value if value is None else ops.cast(value, variable.dtype)
        for variable, value in zip(variables, values, strict=True)
    ]
