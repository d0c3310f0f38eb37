"""Padded batches in Keras's own `evaluate` and `fit`, against NumPy over the single examples."""

from importlib.util import find_spec

import keras
import numpy as np
import pytest

from keras_tricks._backend import adapters
from keras_tricks.pad_batches import pad_batches

pytestmark = [
    # Keras, each time that data of unknown length ends.
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
    # NumPy 2.4, where Keras asks a variable or torch a tensor for an array.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy"),
]

N = 23
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 3)).astype("float32")
Y = RANDOM.normal(size=(N, 1)).astype("float32")
W = RANDOM.uniform(0.5, 2, N).astype("float32")
W[-1] = 3  # a last example whose copies would be noticed
BACKEND = keras.backend.backend()


class Sliced(keras.utils.PyDataset):
    """Batches of 5 that record what they hear."""

    def __init__(self, data, size=5, **settings):
        super().__init__(**settings)
        self.data, self.size, self.heard, self.read = data, size, [], []

    def __len__(self):
        return -(-len(self.data[0]) // self.size)

    def __getitem__(self, index):
        self.read.append(index)
        return tuple(part[index * self.size : (index + 1) * self.size] for part in self.data)

    def on_epoch_begin(self):
        self.heard.append("begin")

    def on_epoch_end(self):
        self.heard.append("end")


class Again:
    """A re-iterable of batches."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        yield from self.batches


def tf_data(data, size=5):
    import tensorflow as tf

    with tf.device("cpu"):
        return tf.data.Dataset.from_tensor_slices(data).batch(size)


def loader(data, size=5, **settings):
    import torch

    examples = torch.utils.data.TensorDataset(*map(torch.from_numpy, data))
    return torch.utils.data.DataLoader(examples, batch_size=size, **settings)


FOR_KERAS = {
    "arrays": lambda data: data,
    "tf.data": tf_data,
    "tf.data of unknown length": lambda data: tf_data(data).filter(lambda *_: True),
    "PyDataset": Sliced,
    "PyDataset with threads": lambda data: Sliced(data, workers=2),
    "list of tuples": lambda data: list(Sliced(data)),
}
if find_spec("torch"):
    FOR_KERAS["DataLoader"] = loader
KINDS = FOR_KERAS | {"re-iterable": lambda data: Again(list(Sliced(data)))}


def batches_of(padded):
    """Every batch, as NumPy arrays."""
    return [
        keras.tree.map_structure(lambda a: None if a is None else np.asarray(a), tuple(batch))
        for batch in padded
    ]


def real(batches, part):
    """The rows of all batches whose weight is not 0."""
    return np.concatenate([batch[part][batch[2] != 0] for batch in batches])


class Seen(keras.layers.Layer):
    """Keeps the shape of each input that Python sees: at each trace, or with torch at each step."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def call(self, x):
        self.shapes.append(tuple(x.shape))
        return x


def model_of(seen=None, **settings):
    model = keras.Sequential([seen or Seen(), keras.layers.Dense(1)])
    model.build((None, 3))
    if seen is not None:
        seen.shapes.clear()
    model.compile("sgd", "mse", **settings)
    return model


def predictions(model):
    kernel, bias = (keras.ops.convert_to_numpy(weight) for weight in model.weights[:2])
    return X @ kernel + bias


@pytest.mark.parametrize(("batch_size", "weights"), [(None, True), (4, False), (40, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_real_rows_stay_and_all_batches_have_one_shape(kind, batch_size, weights):
    data = (X, Y, W) if weights else (X, Y)
    batches = batches_of(pad_batches(KINDS[kind](data), batch_size))
    np.testing.assert_array_equal(real(batches, 0), X)
    np.testing.assert_array_equal(real(batches, 1), Y)
    np.testing.assert_array_equal(real(batches, 2), W if weights else np.ones(N))
    size = batch_size or (32 if kind == "arrays" else 5)
    assert {(len(x), len(y), len(w)) for x, y, w in batches} == {(size, size, size)}
    assert {w.dtype for _, _, w in batches} == {np.dtype("float32")}


@pytest.mark.parametrize("kind", FOR_KERAS)
def test_weighted_metrics_of_keras_come_out_right(kind):
    model = model_of(weighted_metrics=["mae"])
    found = model.evaluate(pad_batches(FOR_KERAS[kind]((X, Y, W)), 8), return_dict=True, verbose=0)
    error = np.abs(predictions(model).astype("float64") - Y).ravel()
    assert found["mae"] == pytest.approx((W * error).sum() / W.astype("float64").sum(), rel=1e-5)


def test_the_loss_of_keras_is_not_made_exact():
    model = model_of()
    found = model.evaluate(pad_batches((X, Y), 16), verbose=0)
    squares = (predictions(model).astype("float64") - Y) ** 2
    assert found == pytest.approx(squares.sum() / 32, rel=1e-5)


@pytest.mark.parametrize("kind", FOR_KERAS)
def test_the_model_sees_one_shape(kind):
    seen = Seen()
    model = model_of(seen)
    padded = pad_batches(FOR_KERAS[kind]((X, Y)), 8)
    model.fit(padded, epochs=2, shuffle=False, verbose=0)
    shapes = set(seen.shapes)
    # Keras itself drops the batch size of a generator's signature on TensorFlow.
    static = BACKEND != "tensorflow" or kind.startswith("tf.data")
    assert shapes == {(8 if static else None, 3)}


@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
def test_padded_rows_teach_nothing(kind):
    model, plain = model_of(), model_of()
    plain.set_weights(model.get_weights())
    model.fit(pad_batches(FOR_KERAS[kind]((X[:3], Y[:3])), 8), shuffle=False, verbose=0)
    kernel, bias = plain.get_weights()
    error = X[:3] @ kernel + bias - Y[:3]
    # The mean squared error of Keras divides by the batch with its padding.
    kernel = kernel - 0.01 * 2 * X[:3].T @ error / 8
    bias = bias - 0.01 * 2 * error.sum(axis=0) / 8
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-5)
    np.testing.assert_allclose(model.get_weights()[1], bias, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "batch_size", "count"),
    [("arrays", 8, 3), ("tf.data", None, 5), ("PyDataset", 8, 3), ("list of tuples", 4, 6)]
    + [("DataLoader", batch_size, count) for batch_size, count in [(None, 5), (8, 3)]]
    * ("DataLoader" in FOR_KERAS),
)
def test_the_length_is_known(kind, batch_size, count):
    padded = pad_batches(FOR_KERAS[kind]((X, Y)), batch_size)
    assert len(padded) == len(list(padded)) == count


@pytest.mark.backend("torch")
def test_the_length_of_a_loader_counts_what_its_sampler_gives():
    import torch

    sampler = torch.utils.data.SubsetRandomSampler(range(9))
    for settings, count in [({"sampler": sampler}, 5), ({"drop_last": True}, 10)]:
        padded = pad_batches(loader((X, Y), **settings), 2)
        assert len(padded) == len(list(padded)) == count


@pytest.mark.parametrize("batch_size", [None, 8])
def test_tf_data_keeps_its_kind_of_length_and_a_static_size(batch_size):
    import tensorflow as tf

    endless, unknown = tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY
    full = tf_data((X, Y)).take(4)
    for dataset, count in [
        (full.repeat(), endless),
        (full.filter(lambda *_: True), unknown),
        (full.unbatch().batch(5, drop_remainder=True).take(4), unknown),
    ]:
        padded = pad_batches(dataset, batch_size)
        assert int(padded.cardinality()) == count
        assert {spec.shape[0] for spec in padded.element_spec} == {batch_size or 5}


def test_a_known_length_is_known_after_rebatching():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5, drop_remainder=True)
    padded = pad_batches(dataset, 8)
    assert len(padded) == len(list(padded)) == 3


def test_a_py_dataset_keeps_its_workers_and_hears_each_epoch():
    data = Sliced((X, Y), workers=2, max_queue_size=3)
    padded = pad_batches(data, 8)
    assert (padded.workers, padded.max_queue_size) == (2, 3)
    list(adapters.batches(padded))
    assert data.heard == ["begin", "end"]


def test_rebatching_a_py_dataset_reads_each_batch_once():
    data = Sliced((X, Y))
    assert len(list(pad_batches(data, 2))) == 12
    assert data.read == [4, 0, 1, 2, 3, 4]  # the last one first, for the length


def test_an_endless_py_dataset_stays_endless():
    class Endless(Sliced):
        num_batches = None

        def __getitem__(self, index):
            return super().__getitem__(index % 4)

    padded = pad_batches(Endless((X, Y)), 8)
    assert padded.num_batches is None
    np.testing.assert_array_equal(padded[2][0], np.concatenate([X[16:20], X[:4]]))


def test_weights_keep_their_structure_type_and_shape():
    per_step = np.ones((N, 4), "float16")
    whole = np.arange(1, N + 1)
    y = {"a": Y, "b": Y}
    last = batches_of(pad_batches((X, y, {"a": per_step, "b": whole}), 8))[-1]
    np.testing.assert_array_equal(last[2]["a"], np.repeat([[1], [0]], [7, 1], axis=0) * np.ones(4))
    np.testing.assert_array_equal(last[2]["b"], [17, 18, 19, 20, 21, 22, 23, 0])
    assert last[2]["b"].dtype == whole.dtype


def test_a_target_without_weights_gets_some():
    data = [(X[:3], [Y[:3], Y[:3]], [W[:3], None]), (X[3:5], [Y[3:5]] * 2, [W[3:5], None])]
    last = batches_of(pad_batches(data))[-1]
    np.testing.assert_array_equal(last[2][0], [*W[3:5], 0])
    np.testing.assert_array_equal(last[2][1], [1, 1, 0])


@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
def test_a_weight_that_is_not_finite_is_not_copied(kind):
    weights = W.copy()
    weights[-1] = np.nan
    last = batches_of(pad_batches(KINDS[kind]((X, Y, weights)), 8))[-1]
    np.testing.assert_array_equal(last[2][6:], [np.nan, 0])


def test_several_outputs_of_keras_take_the_weights():
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
    model = keras.Model(inputs, outputs)
    model.compile(loss="mse", weighted_metrics={"a": ["mae"], "b": ["mae"]})
    y = {"a": Y, "b": 2 * Y}
    found = model.evaluate(pad_batches((X, y), 8), return_dict=True, verbose=0)
    for name, predicted in zip("ab", model.predict_on_batch(X).values(), strict=True):
        error = np.abs(np.asarray(keras.ops.convert_to_numpy(predicted), "float64") - y[name])
        assert found[f"{name}_mae"] == pytest.approx(error.mean(), rel=1e-5)


@pytest.mark.backend("jax")
def test_a_mesh_divides_every_batch():
    devices = keras.distribution.list_devices()[:4]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        model = model_of(weighted_metrics=["mae"])
        found = model.evaluate(pad_batches((X, Y), 8), return_dict=True, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    assert found["mae"] == pytest.approx(np.abs(predictions(model) - Y).mean(), rel=1e-5)


@pytest.mark.backend("tensorflow")
def test_replicas_divide_every_batch():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        # Collectives of one process know one group of devices only, and tests have several.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    ).scope():
        model = model_of(weighted_metrics=["mae"])
    found = model.evaluate(pad_batches((X, Y), 8), return_dict=True, verbose=0)
    assert found["mae"] == pytest.approx(np.abs(predictions(model) - Y).mean(), rel=1e-5)


def test_ragged_tensors_are_padded_inside_tensorflow():
    import tensorflow as tf

    ragged = tf.ragged.constant([[1], [2, 3], [4, 5, 6]])
    dataset = tf.data.Dataset.from_tensor_slices((ragged, np.arange(3))).batch(2)
    *_, (x, y, weight) = pad_batches(dataset)
    assert x.to_list() == [[4, 5, 6], [4, 5, 6]]
    np.testing.assert_array_equal(np.stack([y, weight]), [[2, 2], [1, 0]])


@pytest.mark.backend("torch")
def test_a_loader_keeps_bfloat16():
    import torch

    data = [(torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(2))]
    batches = torch.utils.data.DataLoader(data, batch_size=None)
    ((x, _, weight),) = pad_batches(batches, 3)
    assert x.dtype == torch.bfloat16
    assert weight.tolist() == [1, 1, 0]


WRONG = [
    (ValueError, "`batch_size`.*0", lambda: (X, Y), 0),
    (TypeError, "`batch_size`.*2.5", lambda: (X, Y), 2.5),
    (TypeError, "`batch_size`.*True", lambda: (X, Y), True),
    (ValueError, "`data`.*one example", lambda: (X[:0], Y[:0]), None),
    (ValueError, "`data`.*23 in x and 22 in y", lambda: (X, Y[1:]), None),
    (ValueError, "`data`.*targets", lambda: X, None),
    (ValueError, "`data`.*targets", lambda: tf_data(X), None),
    (ValueError, "`data`.*at least one", lambda: tf_data((X, Y)).filter(lambda *_: False), None),
    (ValueError, "`data`.*more than once", lambda: iter([(X, Y)]), None),
    (TypeError, "`data`.*got int", lambda: 3, None),
]


@pytest.mark.parametrize(("error", "words", "data", "batch_size"), WRONG)
def test_bad_input_is_named_at_once(error, words, data, batch_size):
    with pytest.raises(error, match=words):
        pad_batches(data(), batch_size)


def test_a_sparse_tensor_is_refused():
    import tensorflow as tf

    sparse = tf.sparse.from_dense(np.eye(4))
    dataset = tf.data.Dataset.from_tensor_slices((sparse, np.arange(4))).batch(3)
    with pytest.raises(ValueError, match="to_dense"):
        pad_batches(dataset)


@pytest.mark.parametrize("kind", ["re-iterable", "list of tuples", "tf.data"])
def test_a_batch_larger_than_the_first_asks_for_a_batch_size(kind):
    parts = [(X[:3], Y[:3]), (X[3:10], Y[3:10])]
    if kind == "tf.data":
        data = tf_data(parts[0], 3).concatenate(tf_data(parts[1], 7))
    else:
        data = Again(parts) if kind == "re-iterable" else parts
    with pytest.raises(Exception, match="`batch_size` must be given"):
        list(pad_batches(data))
    assert kind == "list of tuples" or len(list(pad_batches(data, 7))) == 2


def test_unequal_batches_cannot_be_found_by_their_index():
    parts = [(X[:4], Y[:4]), (X[4:6], Y[4:6]), (X[6:9], Y[6:9])]
    with pytest.raises(ValueError, match="equally large"):
        list(pad_batches(parts, 3))
