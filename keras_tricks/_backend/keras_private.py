"""Every private attribute of Keras that this package touches, each with its reason.

`tests/test_keras_private.py` checks them one by one, so that a Keras release which
moves one is named by a failing test rather than by a user's traceback.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
from keras import Variable


def loss_tracker(model: keras.Model) -> keras.metrics.Mean | None:
    """The running mean behind `logs["loss"]`: its total and count give windowed means."""
    return getattr(model, "_loss_tracker", None)


def compile_loss(model: keras.Model) -> Any | None:
    """The compiled losses: the only place that knows which loss belongs to which output."""
    return getattr(model, "_compile_loss", None)


def loss_entries(model: keras.Model) -> list[Any]:
    """`(path, loss, weight, name)` of every compiled loss; empty before the first build."""
    container = compile_loss(model)
    return list(container._flat_losses or []) if container is not None else []


@contextlib.contextmanager
def replaced_losses(model: keras.Model, losses: list[Any]) -> Iterator[None]:
    """Puts `losses` in the place of the compiled ones while a step is traced.

    `compute_loss`, also a user's own, calls them through the compiled container, so this
    is where the numerator and the denominator of each can be had.
    """
    container = compile_loss(model)
    if container is None or container._flat_losses is None:
        yield
        return
    original = container._flat_losses
    container._flat_losses = [
        entry._replace(loss=loss) for entry, loss in zip(original, losses, strict=True)
    ]
    try:
        yield
    finally:
        container._flat_losses = original


def targets_by_output(model: keras.Model, y: Any, y_pred: Any) -> Any:
    """The only target, at the place of the only output that has a loss.

    Keras takes a tensor with as many rows as there are outputs for a list of their targets.
    """
    container = compile_loss(model)
    losses = getattr(container, "_user_loss", None)
    if not isinstance(losses, list | tuple) or not isinstance(y_pred, list | tuple):
        return y
    only = [loss is not None for loss in losses]
    if keras.tree.is_nested(y) or len(only) != len(y_pred) or sum(only) != 1:
        return y
    return type(y_pred)(y if has_loss else None for has_loss in only)


def loss_metric_names(model: keras.Model) -> list[str]:
    """Names of the means Keras keeps for each loss of a model with several."""
    container = compile_loss(model)
    return [metric.name for metric in container.metrics] if container is not None else []


def flat_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Every single metric: the compiled container keeps its own out of `model.metrics`."""
    found: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None)
        found.extend(inner if isinstance(inner, list) and inner else [metric])
    return found


@contextlib.contextmanager
def wrapped_metric_functions(model: keras.Model, wrap: Any) -> Iterator[None]:
    """Replaces the function inside each function metric by `wrap(function)`.

    Keras counts a function that returns one number as one example, whatever the batch's
    rows; only its result shows that, so it has to be seen where it is called.
    """
    wrapped = [m for m in flat_metrics(model) if isinstance(m, keras.metrics.MeanMetricWrapper)]
    originals = [metric._fn for metric in wrapped]
    for metric, function in zip(wrapped, originals, strict=True):
        metric._fn = wrap(function)
    try:
        yield
    finally:
        for metric, function in zip(wrapped, originals, strict=True):
            metric._fn = function


@contextlib.contextmanager
def given_losses(model: keras.Model, losses: list[Any]) -> Iterator[None]:
    """Makes `model.losses` return `losses`.

    The losses that layers added belong to the forward pass, which is another trace than
    the one in which `compute_loss` sums them. Keras's JAX trainer uses the same attribute.
    """
    model._losses_override = list(losses)
    try:
        yield
    finally:
        model._losses_override = []


def added_losses(model: keras.Model) -> list[str]:
    """Layers behind the first of `model.losses`: those added in the last call.

    Only these can depend on the batch; what follows them comes from the weights. Inside a
    stateless scope the scope keeps them, and each layer knows which are its own.
    """
    return [layer.name for layer in flatten_layers(model) for _ in layer._get_own_losses()]


def clear_losses(model: keras.Model) -> None:
    """Drops the tensors that layers keep of a trace that is over."""
    model._clear_losses()


def additional_loss(model: keras.Model, loss: Any) -> Any:
    """One of `model.losses`, summed and cast as `compute_loss` does it."""
    return model._aggregate_additional_loss(loss)


def total_loss(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool
) -> Any:
    """`compute_loss`, also that of a user from before it had a `training` argument."""
    return model._compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
    )


def call(model: keras.Model, x: Any, *, training: bool) -> Any:
    """The forward pass as Keras's own steps make it; `call` need not take `training`."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def flatten_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """All layers, nested ones and the model itself included."""
    return model._flatten_layers()


def is_built(model: keras.Model) -> bool:
    """Whether layers, losses and metrics have the variables that an evaluation reads."""
    parts = [model._compile_loss, model._compile_metrics]
    return all(layer.built for layer in flatten_layers(model)) and all(
        part.built for part in parts if part is not None
    )


def build(model: keras.Model, batch: tuple[Any, Any, Any]) -> None:
    """Builds layers, losses, metrics and optimizer from one batch `(x, y, sample_weight)`."""
    model._symbolic_build(data_batch=batch)


def regularized(model: keras.Model) -> list[tuple[Variable, Any]]:
    """Regularised variables with their values, for a stateless scope.

    Inside one, `model.losses` reads them from the scope alone.
    """
    return [(v, v.value) for v in model.trainable_variables if v.regularizer is not None]


def fixed_batch_size(model: keras.Model) -> int | None:
    """The only batch size that a model takes, as a stateful RNN does; None for any."""
    for tensor in keras.tree.flatten(getattr(model, "inputs", None) or []):
        if tensor.shape and tensor.shape[0] is not None:
            return int(tensor.shape[0])
    return None


def rnn_states(model: keras.Model) -> list[Variable]:
    """States of stateful RNN layers, which no list of the model's variables holds."""
    states: list[Variable] = []
    for layer in flatten_layers(model):
        if getattr(layer, "stateful", False) and getattr(layer, "states", None) is not None:
            states.extend(s for s in keras.tree.flatten(layer.states) if isinstance(s, Variable))
    return states


def seed_states(model: keras.Model) -> list[Variable]:
    """States of the seed generators of all layers."""
    found: dict[int, Variable] = {}
    for layer in flatten_layers(model):
        for generator in layer._seed_generators:
            found[id(generator.state)] = generator.state
    return list(found.values())


def global_seed_generator() -> keras.random.SeedGenerator | None:
    """What random operations without a seed draw from, None before the first of them."""
    generator: keras.random.SeedGenerator | None = (
        keras.src.backend.common.global_state.get_global_attribute("global_seed_generator")
    )
    return generator


def set_global_seed_generator(generator: keras.random.SeedGenerator | None) -> None:
    """Puts another in its place; with None Keras makes a new one when it is asked for."""
    keras.src.backend.common.global_state.set_global_attribute("global_seed_generator", generator)


def metric_variables(model: keras.Model) -> list[Variable]:
    """Variables of all metrics, the loss's running mean among them."""
    found: dict[int, Variable] = {}
    for metric in model.metrics:
        for variable in metric.variables:
            found[id(variable)] = variable
    return list(found.values())


def get_mask(tensor: Any) -> Any | None:
    """The mask that travels with a tensor of this trace, or None."""
    return keras.src.backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask; a tensor that crossed a trace has lost it."""
    keras.src.backend.set_keras_mask(tensor, mask)


def mask_as_weights(sample_weight: Any, mask: Any, dtype: str) -> Any | None:
    """Weights with the mask multiplied in, as Keras's `sum` reduction sees them."""
    return keras.src.losses.loss.apply_mask(sample_weight, mask, dtype=dtype, reduction="sum")


def same_rank(values: Any, weights: Any) -> tuple[Any, Any]:
    """Keras's rule for weights whose rank differs from the values' by one."""
    squeezed: tuple[Any, Any] = keras.src.losses.loss.squeeze_or_expand_to_same_rank(
        values, weights
    )
    return squeezed


def pythonify(logs: dict[str, Any]) -> dict[str, Any]:
    """Scalars as Python floats, the keys' order kept (Keras's own helper sorts them)."""
    flat: dict[str, Any] = {}
    for key, value in logs.items():
        if isinstance(value, dict):
            flat.update(pythonify(value))
            continue
        array = keras.ops.convert_to_numpy(value)
        flat[key] = float(array) if array.size == 1 else array
    return flat


def is_overridden(model: keras.Model, method: str) -> bool:
    """Whether the user's class brings its own `method` of `keras.Model`."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def innermost_optimizer(optimizer: Any) -> Any | None:
    """The optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def update_counter(model: keras.Model) -> Variable | None:
    """The variable that counts the updates which the optimizer was asked for.

    The public `iterations` divides by `gradient_accumulation_steps`; the private counter
    behind it does not.
    """
    optimizer = innermost_optimizer(getattr(model, "optimizer", None))
    return getattr(optimizer, "_iterations", None)


def skip_all_epochs(model: keras.Model) -> None:
    """Lets the running `fit` begin after its last epoch, so that it trains nothing.

    `fit` reads the attribute after `on_train_begin`; it has no other way to train zero steps.
    """
    model._initial_epoch = sys.maxsize


def restore_initial_epoch(model: keras.Model) -> None:
    """Undoes `skip_all_epochs` for the next `fit`."""
    model._initial_epoch = None


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Lets the running `fit` begin at `epoch`, with the attribute that Keras's own backup uses."""
    model._initial_epoch = epoch


def running_fit() -> dict[str, Any] | None:
    """The local variables of the `fit` that is calling, None outside one.

    How the data is read is decided there, and no callback is told: `epoch_iterator` reads it.
    """
    return _locals_of("fit", "epoch_iterator", sys._getframe(1))


def in_fit(frame: Any) -> bool:
    """Whether a frame was called by a `fit` that has begun to train."""
    return _locals_of("fit", "epoch_iterator", frame) is not None


def _locals_of(function: str, name: str, frame: Any) -> dict[str, Any] | None:
    while frame is not None:
        if frame.f_code.co_name == function and name in frame.f_locals:
            found: dict[str, Any] = frame.f_locals
            return found
        frame = frame.f_back
    return None


def known_batches(epoch_iterator: Any) -> int | None:
    """Batches of a pass: what the data says, or what Keras has counted where it does not."""
    count: int | None = epoch_iterator._num_batches
    return count


def set_known_batches(epoch_iterator: Any, count: int | None) -> None:
    """What Keras counted in the epochs that are not run again."""
    epoch_iterator._num_batches = count


def between_passes(epoch_iterator: Any) -> bool:
    """Whether the next epoch begins with the first batch of a pass, also with `steps_per_epoch`."""
    if epoch_iterator.steps_per_epoch is None or epoch_iterator._current_iterator is None:
        return True
    return epoch_iterator._steps_seen == 0


def new_pass(epoch_iterator: Any) -> Any:
    """An iterator as Keras makes one for each pass."""
    return iter(epoch_iterator._get_iterator())


def carry_pass(epoch_iterator: Any, iterator: Any, seen: int) -> None:
    """Lets the next epoch go on with `iterator`, of which `seen` batches are read."""
    epoch_iterator._current_iterator = iterator
    epoch_iterator._steps_seen = seen


def tf_dataset(adapter: Any) -> Any | None:
    """The dataset that an adapter reads, None if it is no `tf.data.Dataset`."""
    return getattr(adapter, "_dataset", None)


def torch_loader(adapter: Any) -> Any | None:
    """The loader that an adapter reads, None if it is no `DataLoader`."""
    return getattr(adapter, "_dataloader", None)


def shuffles_arrays(adapter: Any) -> bool:
    """Whether Keras draws an order for arrays."""
    return bool(getattr(adapter, "_shuffle", False))


def array_rows(adapter: Any) -> int | None:
    """Examples in arrays, None for any other data."""
    rows: int | None = getattr(adapter, "_num_samples", None)
    return rows


def set_tf_dataset(epoch_iterator: Any, dataset: Any) -> None:
    """What TensorFlow's `fit` reads from its next pass on."""
    epoch_iterator._distributed_dataset = dataset


def tf_read(epoch_iterator: Any) -> Any | None:
    """What TensorFlow's `fit` reads, None on another backend."""
    return getattr(epoch_iterator, "_distributed_dataset", None)


def tf_inputs(dataset: Any) -> list[Any]:
    """The datasets that a `tf.data.Dataset` is made of."""
    return list(dataset._inputs()) if hasattr(dataset, "_inputs") else []


def tf_seeds(dataset: Any) -> tuple[Any, Any] | None:
    """The two seeds of a dataset that draws random numbers, None for any other."""
    if not hasattr(dataset, "_seed"):
        return None
    return dataset._seed, getattr(dataset, "_seed2", None)


def calling_list() -> keras.callbacks.CallbackList | None:
    """The `CallbackList` whose `on_train_begin` is running, None when called by hand.

    A callback is told its model but not its neighbours, and nothing tells it that `fit`
    has ended by an exception; the list knows the first, and its end is the second.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "on_train_begin":
            owner = frame.f_locals.get("self")
            if isinstance(owner, keras.callbacks.CallbackList):
                return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def has_layers(layer: Any) -> bool:
    """Whether a layer consists of others: only their own weights are nobody else's."""
    return bool(getattr(layer, "_layers", None))


def operations(model: keras.Model) -> list[Any]:
    """Layers and, in functional models, operations such as `ops.log(x)`, which are no layers."""
    found: dict[int, Any] = {}
    for layer in flatten_layers(model):
        for operation in [layer, *(getattr(layer, "operations", None) or ())]:
            if not isinstance(operation, keras.layers.InputLayer):
                found[id(operation)] = operation
    return list(found.values())


def from_logits(loss: Any) -> bool | None:
    """What a loss expects; None where it has no such choice. A wrapper keeps it with its `fn`."""
    value = getattr(loss, "from_logits", None)
    if value is None:
        value = getattr(loss, "_fn_kwargs", {}).get("from_logits")
    return None if value is None else bool(value)


def loss_scale(model: keras.Model) -> float:
    """By what `optimizer.scale_loss` multiplies."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 1.0
    with keras.StatelessScope():
        return float(keras.ops.convert_to_numpy(optimizer.scale_loss(keras.ops.ones(()))))


def update_ratios(model: keras.Model, pairs: list[tuple[Variable, Any, Any]]) -> list[Any]:
    """Norm of the update over that of the weight, and whether all that it assigns is finite.

    Makes each variable's update alone, in a scope that keeps it from being assigned, so that no
    more than one variable is held twice. `update_step` is public, and TensorFlow's optimizers
    assign past any scope: the base class's way of assigning takes the place of theirs. Weight
    decay is left out.

    Args:
        model: The model.
        pairs: Variable, gradient and value.
    """
    optimizer = innermost_optimizer(getattr(model, "optimizer", None))
    if optimizer is None or not pairs or not optimizer.built:
        return []
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    names = ("assign", "assign_add", "assign_sub")
    gradients = optimizer._clip_gradients([gradient for _, gradient, _ in pairs])
    with keras.StatelessScope():
        rate = optimizer.learning_rate
    ratios = []
    for name in names:
        optimizer.__dict__[name] = getattr(base, name).__get__(optimizer)
    try:
        for (variable, _, value), gradient in zip(pairs, gradients, strict=True):
            with keras.StatelessScope(state_mapping=[(variable, value)]) as scope:
                optimizer.update_step(gradient, variable, rate)
                new = scope.get_current_value(variable)
                values = list(scope.state_mapping.values())
            finite = all(_is_finite(value) for value in values)
            ratios.append((_ratio(new, value), finite))
    finally:
        for name in names:
            del optimizer.__dict__[name]
    return ratios


def _ratio(new: Any, old: Any) -> float | None:
    """None for a weight that is zero."""
    new, old = (keras.ops.cast(tensor, "float32") for tensor in (new, old))
    update, size = (
        float(keras.ops.convert_to_numpy(keras.ops.norm(keras.ops.reshape(tensor, (-1,)))))
        for tensor in (new - old, old)
    )
    return update / size if size else None


def _is_finite(value: Any) -> bool:
    if "float" not in keras.backend.standardize_dtype(value.dtype):
        return True
    return bool(keras.ops.convert_to_numpy(keras.ops.all(keras.ops.isfinite(value))))


@contextlib.contextmanager
def watched_steps(model: keras.Model, wrap: Any) -> Iterator[None]:
    """While a train function is made, its loop calls `wrap(step)` in the place of the jitted step.

    On JAX an execution of several steps is a loop in Python around the jitted step. Only between
    the two can each step's flag and batch be had.
    """
    make = model._make_function
    model.__dict__["_make_function"] = lambda step, **options: make(wrap(step), **options)
    try:
        yield
    finally:
        del model.__dict__["_make_function"]


def function_of(metric_or_loss: Any) -> Any | None:
    """The function inside a metric or loss that wraps one."""
    return getattr(metric_or_loss, "_fn", None) or getattr(metric_or_loss, "fn", None)
