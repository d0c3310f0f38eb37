"""One training step run eagerly, seen in every tensor, which changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tricks import _backend
from keras_tricks._backend import keras_private, tensors
from keras_tricks._backend.randomness import OwnRandomness
from keras_tricks._backend.recording import Recorder, dtype_of, host, is_own, source_of
from keras_tricks._backend.tensor_rows import (
    GRADIENT,
    INPUT,
    LOSS,
    RATIO,
    SAMPLE_WEIGHT,
    TARGET,
    WEIGHT,
    first_bad,
    rows_equal,
    statistics,
)
from keras_tricks._backend.tensor_trace import LossFact, Trace

Data = tuple[Any, Any, Any]


Sink = Callable[[str, str, np.ndarray], None]


def replay(
    model: keras.Model, data: Data, *, metrics: bool = False, sink: Sink | None = None
) -> Trace:
    """Runs forward pass, loss and gradients of one batch on the model as it stands.

    Weights, optimizer, metrics, RNN states, seeds and the process's generators are the same
    afterwards.

    Args:
        model: The model; on JAX with the state attached, see `_backend.sync`.
        data: `(x, y, sample_weight)`, each a structure of tensors or arrays, or None.
        metrics: Whether to look for metrics that are not finite.
        sink: Is given kind, name and values of each tensor.
    """
    trace = Trace()
    sink = sink or (lambda *_: None)
    _note_data(trace, data, sink)
    _note_setup(trace, model)
    data = keras.tree.map_structure(_as_tensor, data)
    with OwnRandomness().reading(), tensors.training_mode(model):
        _backend.outside_strategy(lambda: _Replay(model, data, trace, metrics, sink).run())
    return trace


def unpacked(batch: Any) -> Data:
    """A batch as `fit` has it, as `(x, y, sample_weight)`."""
    data: Data = keras.utils.unpack_x_y_sample_weight(batch)
    return data


class _Replay:
    def __init__(
        self, model: keras.Model, data: Data, trace: Trace, metrics: bool, sink: Sink
    ) -> None:
        self.model = model
        self.data = data
        self.trace = trace
        self.metrics = metrics
        self.sink = sink
        self.recorder = Recorder(trace, sink)
        self.variables = list(model.trainable_variables)

    def run(self) -> None:
        """Forward pass, loss and gradients; what fails is noted."""
        values = [_backend.read(v) for v in self.variables]
        if self.data[0] is None:  # nobody has the batch
            self._note_weights(values, [])
            return
        extra: Any = (None, [])
        gradients: list[Any] = []
        try:
            if tensors.two_passes or not self.variables or not self.can_learn:
                with (
                    self.recorder.watching(self.model, values=True, gradients=False),
                    tensors.no_gradients(),
                ):
                    _, extra = self._compute(values, facts=True)
            if self.variables and self.can_learn:
                both = not tensors.two_passes
                with self.recorder.watching(self.model, values=both, gradients=True):
                    seen, gradients = tensors.loss_and_gradients(
                        lambda given: self._compute(given, facts=both), values
                    )
                extra = seen if both else extra
        except tensors.ERRORS as error:
            self.trace.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        self._note_loss(*extra)
        self._note_activations()
        with tensors.no_gradients():
            self._note_weights(values, gradients)

    @property
    def can_learn(self) -> bool:
        """Whether there is a loss to follow back."""
        return bool(self.model.compiled) and (
            self.data[1] is not None or keras_private.is_overridden(self.model, "compute_loss")
        )

    def _compute(self, values: list[Any], *, facts: bool) -> tuple[Any, Any]:
        x, y, sample_weight = self.data
        mapping = list(zip(self.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
            y_pred = keras_private.call(self.model, x, training=True)
            if not self.can_learn:
                return None, (None, [])
            with self._watched_losses() if facts else contextlib.nullcontext():
                loss = keras_private.total_loss(
                    self.model, x, y, y_pred, sample_weight, training=True
                )
            if facts and self.metrics:
                self._note_metrics(x, y, y_pred, sample_weight)
            added = list(self.model.losses)
            keras_private.clear_losses(self.model)
            optimizer = self.model.optimizer
            scaled = loss if optimizer is None else optimizer.scale_loss(loss)
            # A sum, since a loss may have one value for each example.
            scaled = ops.sum(ops.cast(scaled, "float32"))
        return scaled, (loss, added)

    def _note_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Names of the metrics that this batch makes NaN; the loss has a row of its own."""
        logs = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        for name, value in keras_private.pythonify(logs).items():
            if name != "loss" and not np.isfinite(value).all():
                self.trace.metrics.append(name)

    @contextlib.contextmanager
    def _watched_losses(self) -> Iterator[None]:
        """Notes what each compiled loss is called with."""
        entries = keras_private.loss_entries(self.model)
        with keras_private.replaced_losses(
            self.model, [self._watched_loss(entry) for entry in entries]
        ):
            yield

    def _watched_loss(self, entry: Any) -> Any:
        def loss(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            # Before the call: a label out of range is an error on some backends.
            self.trace.losses.append(_loss_fact(entry, y_true, y_pred))
            return entry.loss(y_true, y_pred, sample_weight)

        return loss

    def _note_loss(self, loss: Any, added: list[Any]) -> None:
        trace = self.trace
        if loss is None:
            return
        trace.rows.append(statistics("loss", LOSS, host(loss), dtype_of(loss)))
        for number, value in enumerate(added):
            array = host(value)
            if not np.isfinite(array).all():
                trace.regularizers.append(f"added loss {number + 1}")

    def _note_activations(self) -> None:
        """The activation of each loss's output: that of the last call with the same values."""
        for place, loss in enumerate(self.trace.losses):
            for call in reversed(self.trace.calls):
                if loss.output == (call.row.min, call.row.max):
                    self.trace.losses[place] = replace(loss, activation=call.activation)
                    break

    def _note_weights(self, values: list[Any], gradients: list[Any]) -> None:
        """Rows of weights, gradients and update ratios."""
        for variable in self.model.weights:
            array = host(_backend.read(variable))
            self.trace.rows.append(statistics(variable.path, WEIGHT, array, dtype_of(variable)))
            self.sink(WEIGHT, variable.path, array)
        scale = keras_private.loss_scale(self.model)
        unscaled = [
            None if g is None else ops.cast(g, "float32") / scale if scale != 1.0 else g
            for g in gradients
        ]
        for variable, gradient in zip(self.variables, unscaled, strict=False):
            if gradient is not None:
                array = host(gradient)
                row = statistics(variable.path, GRADIENT, array, dtype_of(gradient))
                self.trace.rows.append(row)
                self.sink(GRADIENT, variable.path, array)
        self._note_updates(values, unscaled)

    def _note_updates(self, values: list[Any], gradients: list[Any]) -> None:
        pairs = [
            (v, g, old)
            for v, g, old in zip(self.variables, gradients, values, strict=False)
            if g is not None
        ]
        try:
            ratios = keras_private.update_ratios(self.model, pairs)
        except tensors.ERRORS as error:
            self.trace.notes.append(f"The size of the updates is not known ({error}).")
            return
        for (variable, _, _), (ratio, finite) in zip(pairs, ratios, strict=False):
            self.trace.updates_finite &= finite
            if ratio is not None:
                self.trace.rows.append(statistics(variable.path, RATIO, np.asarray(ratio)))


def _note_data(trace: Trace, data: Data, sink: Sink) -> None:
    """Rows of the batch, and where in it something is not finite."""
    for kind, part in zip((INPUT, TARGET, SAMPLE_WEIGHT), data, strict=True):
        flat = keras.tree.flatten_with_path(part)
        for path, leaf in flat:
            if leaf is None:
                continue
            array = host(leaf) if hasattr(leaf, "dtype") else np.asarray(leaf)
            inner = ".".join(str(key) for key in path)
            name = f"{kind} {inner}" if inner else kind
            row = statistics(name, kind, array, str(getattr(array.dtype, "name", "")))
            trace.rows.append(row)
            sink(kind, name, array)
            if not row.finite:
                trace.places.append((name, first_bad(array)))
            elif kind != SAMPLE_WEIGHT and rows_equal(array):
                trace.constant.append(name)


def _note_setup(trace: Trace, model: keras.Model) -> None:
    """What the model is set to do, apart from any batch."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        rate = host(ops.convert_to_tensor(_rate(optimizer)))
        trace.learning_rate = float(rate)
        inner = keras_private.innermost_optimizer(optimizer)
        trace.clips_value = bool(getattr(inner, "clipvalue", None))
        for variable in optimizer.variables:
            array = host(_backend.read(variable))
            if array.dtype.kind not in "iub" and not np.isfinite(array.astype("float64")).all():
                trace.slots.append(str(variable.path))
    for layer in keras_private.flatten_layers(model):
        if layer is model or keras_private.has_layers(layer) or not layer.weights:
            continue
        if layer.trainable_weights:
            trace.trainable += 1
        elif not layer.trainable:
            trace.frozen.append(layer.name)


def _rate(optimizer: Any) -> Any:
    rate = optimizer.learning_rate
    return _backend.read(rate) if isinstance(rate, keras.Variable) else rate


def _loss_fact(entry: Any, y_true: Any, y_pred: Any) -> LossFact:
    loss = entry.loss
    function = getattr(loss, "fn", None)
    kind = function if type(loss).__module__.startswith("keras.") and function else type(loss)
    own = is_own(kind)
    text = source_of(kind if kind is function else type(loss).call) if own else ""
    target, output = (statistics("", LOSS, host(t)) for t in (y_true, y_pred))
    return LossFact(
        name=str(getattr(loss, "name", "loss")),
        kind=str(getattr(kind, "__name__", "loss")).replace("_", "").lower(),
        from_logits=keras_private.from_logits(loss),
        source=text,
        weight=None if entry.loss_weights is None else float(entry.loss_weights),
        target=(target.min, target.max),
        output=(output.min, output.max),
        classes=int(y_pred.shape[-1]) if len(y_pred.shape) > 1 else 0,
        sums_to_one=_sums_to_one(host(y_pred)),
    )


def _sums_to_one(array: np.ndarray) -> bool:
    if array.ndim < 2 or array.shape[-1] < 2:
        return False
    sums = array.astype("float64").sum(axis=-1)
    return bool(np.allclose(sums, 1.0, atol=1e-2) and array.min() >= 0)


def _as_tensor(leaf: Any) -> Any:
    """A leaf as the trainers hand it to the model: floats of 64 bits become Keras's float."""
    if leaf is None or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU"):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.dtype == np.float64:
        leaf = leaf.astype(keras.config.floatx())
    return ops.convert_to_tensor(leaf)
