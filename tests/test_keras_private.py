"""Each private attribute of Keras that the package relies on is there and means what it relies on.

A Keras release that moves one is named here by the attribute, before a user's traceback does.
"""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable

import keras
import numpy as np
import pytest

from keras_tricks._backend import adapters, keras_private
from tests.small_fit import numbers, regression

X, Y = numbers(20)
MEANINGS: dict[str, Callable[[], bool]] = {}


def means(attribute):
    """Registers a function that says whether an attribute means what we rely on."""

    def register(holds):
        MEANINGS[attribute] = holds
        return holds

    return register


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def still(**options):
    """A model that was trained for an epoch and learned nothing."""
    model = regression(**options)
    model.fit(X, Y, batch_size=3, verbose=0)
    return model


def two_outputs():
    """A model with a loss for each of two outputs, and a batch for it."""
    x = keras.Input((1,))
    outputs = {name: keras.layers.Dense(1, name=name)(x) for name in ("a", "b")}
    model = keras.Model(x, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 3.0})
    return model, (X, {"a": Y, "b": Y}, None)


class Adding(keras.layers.Layer):
    """Adds a loss for each batch."""

    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


class WithoutTraining(keras.Model):
    """From before `call` and `compute_loss` had an argument `training`."""

    def call(self, x):
        return x

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return keras.ops.mean(y_pred)


@means("_loss_tracker")
def _():
    tracker = still()._loss_tracker
    total, count = float(array(tracker.total)), float(array(tracker.count))
    return count == 20 and np.isclose(total, float(np.sum(X**2)))


@means("_compile_loss")
def _():
    model, batch = two_outputs()
    model._symbolic_build(data_batch=batch)
    return [metric.name for metric in model._compile_loss.metrics] == ["a_loss", "b_loss"]


@means("_flat_losses")
def _():
    model, batch = two_outputs()
    before = model._compile_loss._flat_losses
    model._symbolic_build(data_batch=batch)
    entries = model._compile_loss._flat_losses
    fields = [(entry.path, entry.name, entry.loss_weights) for entry in entries]
    replaced = entries[0]._replace(loss="ours")
    right = [(("a",), "a", 2.0), (("b",), "b", 3.0)]
    kept = all(isinstance(entry.loss, keras.Loss) for entry in entries)
    return not before and kept and fields == right and replaced.loss == "ours"


@means("_user_loss")
def _():
    model = regression(loss=["mse"])
    return list(model._compile_loss._user_loss) == ["mse"]


@means("_compile_metrics")
def _():
    model = regression(metrics=["mae"])
    before = model._compile_metrics.built
    model._symbolic_build(data_batch=(X, Y, None))
    inner = [metric.name for metric in model._compile_metrics.metrics]
    return not before and model._compile_metrics.built and inner == ["mae"]


@means("_fn")
def _():
    metric = keras.metrics.MeanAbsoluteError()
    metric._fn = lambda *_: keras.ops.full((2,), 7.0)
    metric.update_state(Y[:2], X[:2])
    return float(metric.result()) == 7.0


@means("_losses_override")
def _():
    model = regression()
    model._losses_override = [keras.ops.convert_to_tensor(3.0)]
    given = [float(loss) for loss in model.losses]
    model._losses_override = []
    return given == [3.0] and model.losses == []


@means("_get_own_losses")
def _():
    layer = Adding()
    layer(np.ones((2, 1), "float32"))
    return [float(loss) for loss in layer._get_own_losses()] == [2.0]


@means("_clear_losses")
def _():
    model = keras.Sequential([Adding()])
    model(np.ones((2, 1), "float32"))
    before = len(model.losses)
    model._clear_losses()
    return before == 1 and model.losses == []


@means("_aggregate_additional_loss")
def _():
    whole = keras.ops.convert_to_tensor([1, 2], "int32")
    loss = regression()._aggregate_additional_loss(whole)
    return float(loss) == 3.0 and keras.backend.standardize_dtype(loss.dtype) == "float32"


@means("_compute_loss")
def _():
    model = WithoutTraining()
    model.compile("sgd")
    tensor = keras.ops.ones((2, 1))
    arguments = {"y": tensor, "y_pred": tensor, "sample_weight": None, "training": False}
    return float(model._compute_loss(x=tensor, **arguments)) == 1.0


@means("_call_has_training_arg")
def _():
    return regression()._call_has_training_arg and not WithoutTraining()._call_has_training_arg


@means("_flatten_layers")
def _():
    inner = keras.Sequential([keras.layers.Dense(1)])
    outer = keras.Sequential([inner])
    return {outer, inner, inner.layers[0]} <= set(outer._flatten_layers())


@means("_symbolic_build")
def _():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    model._symbolic_build(data_batch=(X, Y, None))
    return len(model.weights) == 2 and model.optimizer.built and len(model.metrics_variables) == 4


@means("_layers")
def _():
    outer = keras.Sequential([keras.Sequential([keras.layers.Dense(1)])])
    return bool(outer._layers) and not getattr(keras.layers.Dense(1), "_layers", None)


@means("_fn_kwargs")
def _():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.BinaryCrossentropy(from_logits=True)
    return getattr(loss, "from_logits", None) is True and metric._fn_kwargs["from_logits"] is True


@means("_clip_gradients")
def _():
    optimizer = keras.optimizers.SGD(clipvalue=1.0)
    return float(array(optimizer._clip_gradients([keras.ops.full((), 3.0)])[0])) == 1.0


@means("keras.src.optimizers.base_optimizer.BaseOptimizer")
def _():
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    optimizer, variable = keras.optimizers.SGD(0.5), keras.Variable(1.0)
    optimizer.build([variable])
    for name in ("assign", "assign_add", "assign_sub"):
        optimizer.__dict__[name] = getattr(base, name).__get__(optimizer)
    with keras.StatelessScope() as scope:
        optimizer.update_step(keras.ops.ones(()), variable, 0.5)
    return (
        float(array(scope.get_current_value(variable))) == 0.5
        and float(array(variable.value)) == 1.0
    )


@means("_make_function")
def _():
    model = regression()
    calls = []
    make = keras_private.watched_steps(model, lambda step: calls.append(step) or step)
    if keras.backend.backend() == "torch":
        return not hasattr(model, "_make_function")
    with make:
        model.make_train_function(force=True)
    return len(calls) == 1 and "_make_function" not in model.__dict__


@means("_seed_generators")
def _():
    layer = keras.layers.Dropout(0.5, seed=1)
    (generator,) = layer._seed_generators
    before = array(generator.state.value).tolist()
    layer(np.ones((2, 1), "float32"), training=True)
    return before != array(generator.state.value).tolist()


@means("_iterations")
def _():
    model = regression()
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    model.fit(X, Y, batch_size=5, verbose=0)
    return int(model.optimizer._iterations) == 4 and int(model.optimizer.iterations) == 2


@means("_initial_epoch")
def _():
    model = regression()
    before = model._initial_epoch
    model._initial_epoch = sys.maxsize
    model.fit(X, Y, epochs=3, verbose=0)
    return before is None and int(model.optimizer.iterations) == 0


@means("keras.src.backend.common.global_state.get_global_attribute")
def _():
    keras.random.uniform(())
    state = keras.src.backend.common.global_state
    return isinstance(
        state.get_global_attribute("global_seed_generator"), keras.random.SeedGenerator
    )


@means("keras.src.backend.common.global_state.set_global_attribute")
def _():
    ours = keras.random.SeedGenerator(7)
    before = array(ours.state.value).tolist()
    keras.src.backend.common.global_state.set_global_attribute("global_seed_generator", ours)
    keras.random.uniform(())
    return array(ours.state.value).tolist() != before


@means("keras.src.backend.get_keras_mask")
def _():
    embedded = keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    mask = keras.src.backend.get_keras_mask(embedded)
    return array(mask).tolist() == [[True, False]]


@means("keras.src.backend.set_keras_mask")
def _():
    tensor = keras.ops.ones((1, 2))
    before = keras.src.backend.get_keras_mask(tensor)
    keras.src.backend.set_keras_mask(tensor, keras.ops.ones((1, 2), "bool"))
    return before is None and array(keras.src.backend.get_keras_mask(tensor)).all()


@means("keras.src.losses.loss.apply_mask")
def _():
    apply_mask = keras.src.losses.loss.apply_mask
    mask = keras.ops.convert_to_tensor([True, False])
    weights = keras.ops.convert_to_tensor([3.0, 4.0])
    alone = apply_mask(None, mask, dtype="float32", reduction="sum")
    both = apply_mask(weights, mask, dtype="float32", reduction="sum")
    return array(alone).tolist() == [1.0, 0.0] and array(both).tolist() == [3.0, 0.0]


@means("keras.src.losses.loss.squeeze_or_expand_to_same_rank")
def _():
    same = keras.src.losses.loss.squeeze_or_expand_to_same_rank
    values, weights = same(keras.ops.ones((3,)), keras.ops.ones((3, 1)))
    return len(values.shape) == len(weights.shape)


class Two(keras.utils.PyDataset):
    """Two batches."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return [X[index : index + 1], Y[index : index + 1]]


def adapter():
    """Keras's reader of a `PyDataset`."""
    return keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter(Two())


@means("_get_iterator")
def _():
    read = adapter()
    read.on_epoch_begin()
    batches = list(read._get_iterator())
    read.on_epoch_end()
    return len(batches) == 2 and all(isinstance(batch, tuple) for batch in batches)


@means("_standardize_batch")
def _():
    x, y = adapter()._standardize_batch(Two()[1])
    return np.array_equal(x, X[1:2]) and np.array_equal(y, Y[1:2])


class Looking(keras.callbacks.Callback):
    """Keeps what `fit` has at hand when it begins."""

    def on_train_begin(self, logs=None):
        self.fit = keras_private.running_fit()


def reading(x, y=None, **options):
    """The epoch iterator of a `fit` that is over."""
    looking, model = Looking(), regression()
    model.fit(x, y, verbose=0, callbacks=[looking], **options)
    return looking.fit["epoch_iterator"]


@means("_num_batches")
def _():
    return reading(X, Y, batch_size=3)._num_batches == 7


@means("_steps_seen")
def _():
    return reading(X, Y, batch_size=3, steps_per_epoch=4)._steps_seen == 4


@means("_current_iterator")
def _():
    iterator = reading(X, Y, batch_size=3, steps_per_epoch=4, shuffle=False)
    batch = next(iterator._current_iterator)
    return np.array_equal(array(batch[0]), X[12:15])


@means("_num_samples")
def _():
    return reading(X, Y).data_adapter._num_samples == 20


@means("_shuffle")
def _():
    adapters = [reading(X, Y, shuffle=on).data_adapter for on in (True, False)]
    return [bool(adapter._shuffle) for adapter in adapters] == [True, False]


def tf_data():
    """A shuffled dataset of TensorFlow's."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=1).batch(3)


@means("_dataset")
def _():
    data = tf_data()
    return reading(data, shuffle=False).data_adapter._dataset is data


@means("_inputs")
def _():
    return len(tf_data()._inputs()) == 1


@means("_seed")
def _():
    return any(int(seed) for seed in keras_private.tf_seeds(tf_data()._inputs()[0]))


@means("_seed2")
def _():
    return int(tf_data()._inputs()[0]._seed2) == 1


@means("_distributed_dataset")
def _():
    iterator = reading(tf_data(), shuffle=False)
    here = keras.backend.backend() == "tensorflow"
    return hasattr(iterator, "_distributed_dataset") is here


@means("_dataloader")
def _():
    if importlib.util.find_spec("torch") is None:
        return True  # nobody can pass one
    import torch

    rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    return reading(loader, shuffle=False).data_adapter._dataloader is loader


class Caller(keras.callbacks.Callback):
    """Asks for the list that calls it."""

    def on_train_begin(self, logs=None):
        self.list = keras_private.calling_list()


@means("CallbackList")
def _():
    caller = Caller()
    callbacks = keras.callbacks.CallbackList([caller])
    callbacks.on_train_begin()
    callbacks.on_train_end()
    return caller.list is callbacks and caller in callbacks.callbacks


@pytest.mark.parametrize("attribute", MEANINGS)
def test_keras_keeps(attribute):
    try:
        holds = MEANINGS[attribute]()
    except (AttributeError, ImportError, TypeError, ValueError, KeyError) as error:
        pytest.fail(f"Keras {keras.__version__} changed `{attribute}`: {error}")
    assert holds, f"Keras {keras.__version__} changed the meaning of `{attribute}`"


def names_in(module):
    """Private attributes and paths into `keras.src` that a module's code names."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            if path.startswith("keras.src."):
                found.add(path)
            elif node.attr.startswith("_") and not node.attr.startswith("__"):
                found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            name = node.args[1]
            if isinstance(name, ast.Constant) and str(name.value).startswith("_"):
                found.add(name.value)
    # Of a path only the whole one, which no other goes on from; and Python's own.
    whole = {a for a in found if not any(b.startswith(f"{a}.") for b in found)}
    return whole - {"_getframe", "_replace"}


def test_every_private_name_is_here():
    assert names_in(keras_private) | names_in(adapters) == set(MEANINGS) - {"CallbackList"}
