"""Exact evaluation: the forward pass sees one shape, losses and metrics only real examples."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import keras_private, passes
from keras_tricks._backend.runner import take_rows
from keras_tricks._data import Batch, Batches
from keras_tricks._draws import resamples

_engines: weakref.WeakKeyDictionary[keras.Model, Engine] = weakref.WeakKeyDictionary()

OWN_TAIL = "own tail: full batches at one shape, the ragged one at its own, weighted by rows"


def engine_of(model: keras.Model) -> Engine:
    """The engine of a compiled model; compiling the model anew makes a new one."""
    engine = _engines.get(model)
    if engine is None or engine.stamp != _stamp(model):
        engine = _engines[model] = Engine(model)
    return engine


def _stamp(model: keras.Model) -> tuple[Any, ...]:
    """Changes with everything that the compiled functions depend on."""
    return (
        id(keras_private.loss_tracker(model)),
        model.jit_compile,
        model.run_eagerly,
        id(keras.distribution.distribution()),
    )


def training_results(model: keras.Model, sums: list[np.ndarray]) -> dict[str, Any]:
    """What the training metrics say with `sums` in their variables."""
    engine = engine_of(model)
    return _ordered(keras_private.pythonify(engine.results_of(sums)))


@dataclass
class Sums:
    """Loss sums of each batch, kept on the device until somebody asks.

    Attributes:
        rows: Rows of each batch.
        numbers: For each batch numerator and denominator of each compiled loss, then the
            rest of the loss; shape `[2 * terms + 1]`.
    """

    rows: list[int]
    numbers: list[Any]

    def table(self, to_host: Any) -> np.ndarray:
        """The numbers on the host, in double precision: sums of millions stay exact."""
        return np.stack([to_host(n) for n in self.numbers]).astype("float64")

    def column(self, index: int, to_host: Any) -> np.ndarray:
        """One number of each batch."""
        column: np.ndarray = self.table(to_host)[:, index]
        return column

    def values(
        self, terms: list[passes.Term], to_host: Any, by_rows: Container[int] = ()
    ) -> tuple[list[float], float]:
        """Value of each loss over all examples, and of the rest; see `loss_values`."""
        rows = np.asarray(self.rows, "float64")
        return loss_values(self.table(to_host), rows, [term.summed for term in terms], by_rows)


def loss_values(
    table: np.ndarray, rows: np.ndarray, summed: list[bool], by_rows: Container[int] = ()
) -> tuple[list[float], float]:
    """Losses over all examples from the sums of each batch.

    A mean is a sum over a sum. A `sum` has the batch's scale, so it is the mean of the
    batches' sums, weighted by rows, as Keras has it.

    Args:
        table: Shape `[batches, 2 * losses + 1]`.
        rows: Rows of each batch, shape `[batches]`.
        summed: Whether each loss is a `sum`.
        by_rows: Losses that depend on their whole batch: their values are weighted by rows.
    """
    values = []
    for index, is_sum in enumerate(summed):
        numerators, denominators = table[:, 2 * index], table[:, 2 * index + 1]
        if is_sum:
            values.append(float((numerators * rows).sum() / rows.sum()))
        elif index in by_rows:
            means = np.divide(numerators, denominators, out=0 * numerators, where=denominators != 0)
            values.append(float((means * rows).sum() / rows.sum()))
        else:
            total = denominators.sum()
            values.append(float(numerators.sum() / total) if total else 0.0)
    return values, float((table[:, -1] * rows).sum() / rows.sum())


class Engine:
    """Evaluates one compiled model, exactly and without a trace of itself.

    Attributes:
        notes: What is not exact: name of the metric, loss or layer, and a sentence.
    """

    def __init__(self, model: keras.Model) -> None:
        self.stamp = _stamp(model)
        self.runner = _backend.runner(model)
        self.notes: dict[str, str] = {}
        self.own_step = keras_private.is_overridden(model, "test_step")
        self._own_tail = False
        self._whole_only = False
        self._own_tail_losses: set[int] = set()
        self._sizes: set[int] = set()
        self._forward_probed = False
        self._update_probed = False
        if self.own_step:
            self.notes["test_step"] = (
                "own tail: a user's `test_step` gets the ragged batch as it is, and its "
                "values are Keras's for these batches"
            )

    def evaluate(self, batches: Batches, default_batch_size: int) -> dict[str, Any]:
        """Results over all of `batches`: the loss first, then by name on every backend."""
        return _ordered(
            _backend.outside_strategy(lambda: self._evaluate(batches, default_batch_size))
        )

    def results_of(self, metrics: list[np.ndarray]) -> dict[str, Any]:
        """The metrics' results with these values, read without touching the variables."""
        self.runner.metrics = keras_private.metric_variables(self.runner.model)
        results: dict[str, Any] = self.runner.results(
            [keras.ops.convert_to_tensor(value) for value in metrics]
        )
        return results

    def _evaluate(self, batches: Batches, default_batch_size: int) -> dict[str, Any]:
        model = self.runner.model
        _backend.sync(model)
        if self.own_step:
            self._check_mesh(batches, default_batch_size)
        stream = batches.iterate(
            default_batch_size,
            multiple_of=self.runner.multiple_of,
            at_least=self._compiled_size(batches.batch_size or default_batch_size),
            pad=not self.own_step,
        )
        try:
            with _backend.undisturbed(model):
                return self._run(model, stream)
        finally:
            stream.close()

    def _run(self, model: keras.Model, stream: Iterable[Batch]) -> dict[str, Any]:
        sums = Sums([], [])
        carried: list[Any] = []
        metrics: list[Any] = []
        logs: dict[str, Any] = {}
        for batch in stream:
            if not sums.rows:
                _backend.build(model, (batch.x, batch.y, batch.sample_weight))
                carried, metrics = self.runner.start()
            sums.rows.append(batch.rows)
            self._sizes.add(batch.size)
            if self.own_step:
                data = (batch.x, batch.y, batch.sample_weight)
                carried, metrics, logs = self.runner.test_step(carried, metrics, data)
            else:
                carried, metrics, numbers, logs = self._add(batch, carried, metrics)
                sums.numbers.append(numbers)
        if not sums.rows:
            raise ValueError("The evaluation data gave no batch. Pass data with examples.")
        return self._results(model, sums, metrics, logs)

    def _compiled_size(self, batch_size: int) -> int:
        """The size to fill a set to that is smaller than one batch.

        That which a model is fixed to, or that of the batches before, where its forward pass
        has been compiled; a set that is always smaller keeps its own.
        """
        fixed = keras_private.fixed_batch_size(self.runner.model)
        return fixed or (batch_size if batch_size in self._sizes else 0)

    def _check_mesh(self, batches: Batches, default_batch_size: int) -> None:
        """A user's `test_step` cannot be given a part of a padded batch."""
        devices = self.runner.multiple_of
        rows = batches.rows
        size = batches.batch_size or default_batch_size
        if devices == 1 or rows is None:
            return
        for count in {min(size, rows), rows % size or size}:
            if count % devices:
                raise ValueError(
                    f"The model's own `test_step` would get a batch of {count} rows, which "
                    f"{devices} devices do not divide. Pass the data through "
                    f"`kt.pad_batches(data, batch_size={-(-size // devices) * devices})`, "
                    "and let `test_step` use its sample weights."
                )

    def _add(
        self, batch: Batch, carried: list[Any], metrics: list[Any]
    ) -> tuple[list[Any], list[Any], Any, dict[str, Any]]:
        """Adds one batch: new carried values, new metric values, loss sums, logs."""
        runner = self.runner
        if self._own_tail:
            batch = _unpadded(batch)
        forward = runner.forward(self._given(carried, metrics), batch.x, spread=not self._own_tail)
        if not self._forward_probed and self._probe_forward(batch, carried, metrics, forward):
            return self._add(batch, carried, metrics)
        metrics = self._taken(forward.carried, metrics)
        data = runner.place((batch.x, batch.y, batch.sample_weight))
        span = (0, batch.rows)
        full = batch.size - batch.rows < runner.multiple_of
        telling = batch.rows > 1 and _dense(batch) and (full or not runner.adds_by_rows)
        if telling and not self._update_probed:
            self._probe_update(metrics, data, forward, batch.rows)
        whole = full or self._whole_only or not self._update_probed
        update = runner.update if whole else runner.update_by_rows
        new, numbers, logs = update(metrics, data, forward, span)
        return forward.carried, new, numbers, logs

    def _given(self, carried: list[Any], metrics: list[Any]) -> list[Any]:
        """Carried values, those of metrics that the forward pass updates from the metrics."""
        known = {id(v): value for v, value in zip(self.runner.metrics, metrics, strict=True)}
        return [
            known.get(id(v), value) for v, value in zip(self.runner.carried, carried, strict=True)
        ]

    def _taken(self, carried: list[Any], metrics: list[Any]) -> list[Any]:
        """Metric values, those that the forward pass updated from the carried ones."""
        known = {id(v): value for v, value in zip(self.runner.carried, carried, strict=True)}
        return [
            known.get(id(v), value) for v, value in zip(self.runner.metrics, metrics, strict=True)
        ]

    def _probe_forward(
        self, batch: Batch, carried: list[Any], metrics: list[Any], forward: passes.Forward
    ) -> bool:
        """Looks once whether outputs or added losses depend on the batch as a whole.

        The same forward pass again, with other examples in half of its rows, shows it and
        compiles nothing. Returns whether this batch has to be done again, unpadded.
        """
        runner = self.runner
        if batch.size < 2 or not _dense(batch):
            return False
        self._forward_probed = True
        outputs = keras.tree.flatten(forward.y_pred)
        self._whole_only = any(len(t.shape) == 0 or t.shape[0] != batch.size for t in outputs)
        half = (batch.size + 1) // 2
        other = runner.forward(
            self._given([*carried, *forward.carried[len(carried) :]], metrics),
            keras.tree.map_structure(lambda leaf: _mixed(leaf, half), batch.x),
            spread=True,
        )
        in_call = {id(v) for v in runner.metrics} & {id(v) for v in runner.carried}
        names = self._depending(forward, other, half)
        self.notes.update(dict.fromkeys(names, OWN_TAIL))
        self._own_tail = bool(names or in_call or self._whole_only)
        return self._own_tail and (batch.size > batch.rows or runner.multiple_of > 1)

    def _depending(self, forward: passes.Forward, other: passes.Forward, half: int) -> list[str]:
        """Layers whose added loss, and the model whose outputs, depend on other rows."""
        to_host = self.runner.to_host
        pairs = zip(self.runner.facts.added_losses, forward.losses, other.losses, strict=False)
        names = [name for name, a, b in pairs if not _alike(to_host(a), to_host(b))]
        if not self._whole_only:
            outputs = zip(
                keras.tree.flatten(forward.y_pred), keras.tree.flatten(other.y_pred), strict=True
            )
            if not all(_alike(to_host(a)[:half], to_host(b)[:half]) for a, b in outputs):
                names.append(self.runner.model.name)
        return list(dict.fromkeys(names))

    def _probe_update(
        self, metrics: list[Any], data: Any, forward: passes.Forward, rows: int
    ) -> None:
        """Looks once which values depend on how examples fall into batches.

        A batch in one piece or in parts of unequal size, then its first part once more:
        what is a sum over examples is the same both ways. One batch can look so by chance,
        so targets and outputs are also drawn anew from its rows, apart from each other.
        """
        self._update_probed = True
        if self._whole_only:
            return
        self._compare(metrics, data, forward, rows)
        for draw in resamples(self.runner, data, forward, rows):
            self._compare(metrics, *draw, rows)

    def _compare(self, metrics: list[Any], data: Any, forward: passes.Forward, rows: int) -> None:
        """Notes what differs between a batch in one piece and in parts."""
        runner, part = self.runner, max(1, rows // 3)
        one, whole, _ = runner.update(metrics, data, forward, (0, rows))
        spans = [(0, rows)] if runner.adds_by_rows else [(0, part), (part, rows)]
        two, pieces = metrics, []
        for span in spans:
            two, numbers, _ = runner.update_by_rows(two, data, forward, span)
            pieces.append((span[1] - span[0], numbers))
        again = (0, part)
        one = runner.update_by_rows(one, data, forward, again)[0]
        two = runner.update_by_rows(two, data, forward, again)[0]
        self._note_metrics(runner.results(one), runner.results(two))
        self._note_losses(Sums([rows], [whole]), Sums(*map(list, zip(*pieces, strict=True))))

    def _note_metrics(self, one: dict[str, Any], two: dict[str, Any]) -> None:
        one, two = keras_private.pythonify(one), keras_private.pythonify(two)
        model = self.runner.model
        ours = {"loss", *keras_private.loss_metric_names(model)}
        for key in one:
            if key not in ours and not _alike(np.asarray(one[key]), np.asarray(two[key])):
                self._whole_only = True
                self.notes[key] = (
                    "not decomposable: it gives one value for a batch, so that this is the "
                    "mean over batches of their values, weighted by rows"
                )

    def _note_losses(self, whole: Sums, pieces: Sums) -> None:
        terms, to_host = self.runner.facts.terms, self.runner.to_host
        one, one_rest = whole.values(terms, to_host)
        two, two_rest = pieces.values(terms, to_host)
        for position, term in enumerate(terms):
            values = (one[position], two[position])
            if term.summed:
                values = tuple(s.column(2 * position, to_host).sum() for s in (whole, pieces))
            if not _alike(np.asarray(values[0]), np.asarray(values[1])):
                self._whole_only = True
                self._own_tail_losses.add(position)
                self.notes[term.name] = OWN_TAIL
        if not _alike(
            np.asarray(one_rest), np.asarray(two_rest), abs(one_rest) + sum(map(abs, one))
        ):
            self._whole_only = True
            self.notes["compute_loss"] = OWN_TAIL

    def _results(
        self, model: keras.Model, sums: Sums, metrics: list[Any], logs: dict[str, Any]
    ) -> dict[str, Any]:
        """Metrics from their variables, losses from their sums."""
        results = self.runner.results(metrics)
        if logs and set(logs) != set(results):
            # A user's own step or `compute_metrics` decides what is shown.
            results = logs
        results = keras_private.pythonify(results)
        if not sums.numbers:
            return results
        terms = self.runner.facts.terms
        values, rest = sums.values(terms, self.runner.to_host, self._own_tail_losses)
        exact = {}
        names = keras_private.loss_metric_names(model)
        if names:
            exact = {names[t.index]: value for t, value in zip(terms, values, strict=True)}
        if any(metric is keras_private.loss_tracker(model) for metric in model.metrics):
            exact["loss"] = rest + sum(t.weight * v for t, v in zip(terms, values, strict=True))
        results.update({key: exact[key] for key in results if key in exact})
        return results


def _ordered(results: dict[str, Any]) -> dict[str, Any]:
    return {key: results[key] for key in sorted(results, key=lambda key: (key != "loss", key))}


def _unpadded(batch: Batch) -> Batch:
    """The batch at its own size."""
    if batch.size == batch.rows:
        return batch
    x, y, weights = take_rows((batch.x, batch.y, batch.sample_weight), 0, batch.rows)
    return replace(batch, x=x, y=y, sample_weight=weights, size=batch.rows)


def _dense(batch: Batch) -> bool:
    """Whether all of a batch are arrays, rather than ragged or sparse tensors."""
    leaves = keras.tree.flatten((batch.x, batch.y, batch.sample_weight))
    return all(leaf is None or isinstance(leaf, np.ndarray) for leaf in leaves)


def _mixed(leaf: np.ndarray | None, half: int) -> np.ndarray | None:
    """The leaf with its first row in the place of all rows from `half` on."""
    if leaf is None:
        return None
    mixed: np.ndarray = leaf.copy()
    mixed[half:] = leaf[0]
    return mixed


def _alike(a: np.ndarray, b: np.ndarray, scale: float = 0.0) -> bool:
    """Whether two values differ by rounding only."""
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    finite = np.concatenate([np.abs(a[np.isfinite(a)]), np.abs(b[np.isfinite(b)]), [scale]])
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-5 * float(finite.max()), equal_nan=True))
