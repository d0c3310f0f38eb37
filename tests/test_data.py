"""Every kind of data gives each example once, in batches of one shape, and says what is wrong."""

import threading
from importlib import import_module
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from keras_tricks._data import Batches
from keras_tricks._rows import rebatched

N = 23
X = np.arange(N * 3, dtype="float32").reshape(N, 3)
Y = np.arange(N, dtype="int64")
W = np.linspace(0.5, 2, N, dtype="float32")
HAS_TORCH = find_spec("torch") is not None  # where it is not, nothing of it can be passed either


class Sliced(keras.utils.PyDataset):
    """Batches of 5 that record what they hear."""

    def __init__(self, data=(X, Y, W), size=5, **settings):
        super().__init__(**settings)
        self.data, self.size, self.heard = data, size, []

    def __len__(self):
        return -(-len(self.data[0]) // self.size)

    def __getitem__(self, index):
        return tuple(part[index * self.size : (index + 1) * self.size] for part in self.data)

    def on_epoch_begin(self):
        self.heard.append("begin")

    def on_epoch_end(self):
        self.heard.append("end")


class Endless(Sliced):
    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(index % len(self))


class Again:
    """A re-iterable: its `__iter__` begins anew each time."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        yield from self.batches


def tf_data(size=5):
    import tensorflow as tf

    with tf.device("cpu"):
        return tf.data.Dataset.from_tensor_slices((X, Y, W)).batch(size)


def loader(**settings):
    import torch

    examples = torch.utils.data.TensorDataset(*map(torch.from_numpy, (X, Y, W)))
    return torch.utils.data.DataLoader(examples, batch_size=5, **settings)


KINDS = {
    "arrays": lambda: (X, Y, W),
    "tf.data": tf_data,
    "tf.data of unknown length": lambda: tf_data().filter(lambda *_: True),
    "PyDataset": Sliced,
    "PyDataset with threads": lambda: Sliced(workers=3, max_queue_size=2),
    "list of tuples": lambda: list(Sliced()),
    "re-iterable": lambda: Again(list(Sliced())),
    "re-iterable of lists": lambda: Again([list(batch) for batch in Sliced()]),
    "function": lambda: lambda: iter(Sliced()),
}
if HAS_TORCH:
    KINDS["DataLoader"] = loader


def numpy(tensor):
    return np.asarray(tensor)


def column(batches, part):
    """The real rows of all batches, one below the other."""
    return np.concatenate([getattr(batch, part)[: batch.rows] for batch in batches])


@pytest.mark.parametrize("batch_size", [None, 1, 7, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_each_example_comes_once_and_in_order(kind, batch_size):
    batches = Batches(KINDS[kind](), batch_size=batch_size)
    for _ in range(2):
        found = list(batches.iterate())
        np.testing.assert_array_equal(column(found, "x"), X)
        np.testing.assert_array_equal(column(found, "y"), Y)
        np.testing.assert_array_equal(column(found, "sample_weight"), W)


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_has_one_size(kind):
    found = list(Batches(KINDS[kind](), batch_size=7).iterate(multiple_of=4))
    assert [batch.rows for batch in found] == [7, 7, 7, 2]
    assert {len(part) for batch in found for part in (batch.x, batch.y, batch.sample_weight)} == {8}
    assert {batch.size for batch in found} == {8}


def test_padding_repeats_the_last_real_row():
    last = list(Batches((X, Y), batch_size=7).iterate())[-1]
    np.testing.assert_array_equal(last.y, [21, 22, 22, 22, 22, 22, 22])
    np.testing.assert_array_equal(last.x[2:], np.broadcast_to(X[-1], (5, 3)))
    assert last.sample_weight is None


def test_without_padding_the_last_batch_is_as_large_as_it_is():
    found = list(Batches((X, Y), batch_size=7).iterate(pad=False, multiple_of=4))
    assert [(batch.rows, batch.size) for batch in found] == [(7, 7), (7, 7), (7, 7), (2, 2)]


def test_arrays_smaller_than_a_batch_are_one_batch_of_their_size():
    (only,) = Batches((X, Y)).iterate(1000)
    assert only.size == only.rows == N


def test_a_larger_batch_raises_the_size_for_good():
    batches = Batches([(X[:3],), (X[3:8],), (X[8:12],)])
    assert [batch.size for batch in batches.iterate()] == [3, 5, 5]
    assert [batch.size for batch in batches.iterate()] == [5, 5, 5]


def test_each_shape_of_example_has_its_own_size():
    data = [(np.ones((n, length)),) for n, length in [(4, 10), (2, 50), (3, 10), (1, 50)]]
    found = list(Batches(data).iterate())
    assert [batch.x.shape for batch in found] == [(4, 10), (2, 50), (4, 10), (2, 50)]


def test_examples_of_another_shape_end_a_rebatched_batch_early():
    data = [(np.full((n, length), length),) for n, length in [(4, 1), (4, 1), (4, 2)]]
    found = list(Batches(data, batch_size=3).iterate(pad=False))
    assert [batch.x.shape for batch in found] == [(3, 1), (3, 1), (2, 1), (3, 2), (1, 2)]


def test_batches_without_examples_are_passed_over():
    batches = Batches([(X[:0], Y[:0]), (X[:2], Y[:2]), (X[:0], Y[:0])])
    assert [batch.rows for batch in batches.iterate()] == [2]
    assert batches.first().rows == 2


# Arrays


def arrays_of_each_library():
    import tensorflow as tf

    made = {"numpy": np.asarray, "tensorflow": tf.constant, "keras": keras.ops.convert_to_tensor}
    if HAS_TORCH:
        import torch

        made["torch"] = torch.tensor
    if find_spec("jax"):
        import jax.numpy as jnp

        made["jax"] = jnp.asarray
    return made


@pytest.mark.parametrize("library", arrays_of_each_library())
def test_arrays_of_each_library_come_as_numpy(library):
    make = arrays_of_each_library()[library]
    found = list(Batches(make(X), make(Y.astype("int32")), batch_size=5).iterate())
    assert {type(batch.x) for batch in found} == {np.ndarray}
    np.testing.assert_array_equal(column(found, "x"), X)
    np.testing.assert_array_equal(column(found, "y"), Y)


def test_floating_arrays_become_floatx_and_integers_stay():
    inputs = {"double": X.astype("float64"), "half": X.astype("float16"), "byte": Y.astype("uint8")}
    first = Batches(inputs, Y).first()
    assert {name: str(leaf.dtype) for name, leaf in first.x.items()} == {
        "double": "float32",
        "half": "float32",
        "byte": "uint8",
    }
    assert first.y.dtype == np.int64


def test_datasets_keep_their_types():
    import ml_dtypes

    data = [(X.astype("float64"), X.astype("float16"), W.astype(ml_dtypes.bfloat16))]
    batch = Batches(data, batch_size=5).first()
    assert [str(leaf.dtype) for leaf in (batch.x, batch.y, batch.sample_weight)] == [
        "float64",
        "float16",
        "bfloat16",
    ]


@pytest.mark.backend("torch")
def test_a_bfloat16_tensor_with_a_gradient_comes_as_numpy():
    import torch

    x = torch.tensor([[1.5], [2.25]], dtype=torch.bfloat16, requires_grad=True)
    (batch,) = Batches([(x,)]).iterate()
    assert batch.x.dtype.name == "bfloat16"
    np.testing.assert_array_equal(batch.x.astype("float32"), [[1.5], [2.25]])


def test_structures_keep_their_form_and_their_none():
    x = {"image": X, "rest": [Y, (W,)]}
    last = list(Batches(x, {"used": Y, "free": None}, batch_size=20).iterate())[-1]
    assert last.y["free"] is None
    np.testing.assert_array_equal(last.x["rest"][1][0][:3], W[20:])
    assert isinstance(last.x["rest"][1], tuple)


def test_a_tuple_is_x_and_y_and_a_list_is_several_inputs():
    assert Batches((X, Y)).first().y is not None
    several = Batches([X, Y]).first()
    assert several.y is None
    assert [leaf.shape for leaf in several.x] == [(N, 3), (N,)]


def test_one_array_of_weights_is_for_each_target():
    batch = Batches(X, [Y, Y], W).first()
    assert [leaf.tolist() for leaf in batch.sample_weight] == [W.tolist(), W.tolist()]


def test_texts_survive():
    texts = np.array(["a", "bcd", "ef"] * 2, object)
    for data in [texts, [(texts[:2],), (texts[2:],)], [(texts[:1].astype(str),), (texts[1:],)]]:
        found = list(Batches(data, batch_size=4).iterate())
        assert column(found, "x").tolist() == texts.tolist()


def test_texts_of_tensorflow_survive():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(["a", "bcd", "ef"]).batch(2)
    found = list(Batches(dataset).iterate())
    assert [batch.x.tolist() for batch in found] == [[b"a", b"bcd"], [b"ef", b"ef"]]


def test_a_file_is_read_slice_by_slice(tmp_path):
    h5py = import_module("h5py")  # Keras depends on it; it has no types
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = X.astype("float64")
        found = list(Batches(file["x"], batch_size=7).iterate())
    np.testing.assert_array_equal(column(found, "x"), X)
    assert found[0].x.dtype == np.float32


def test_slices_of_a_numpy_array_are_not_copied():
    assert np.shares_memory(Batches((X, Y), batch_size=7).first().x, X)


@pytest.mark.backend("tensorflow")
def test_ragged_tensors_are_cut_and_joined_but_not_padded():
    import tensorflow as tf

    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6], [7]])
    dataset = tf.data.Dataset.from_tensor_slices((ragged, np.arange(5))).batch(2)
    for data in [(ragged, np.arange(5)), dataset]:
        found = list(Batches(data, batch_size=3).iterate(multiple_of=4))
        assert [(batch.rows, batch.size, len(batch.y)) for batch in found] == [(3, 3, 3), (2, 2, 2)]
        assert found[0].x.to_list() + found[1].x.to_list() == ragged.to_list()


def test_sparse_matrices_come_as_keras_would_give_them(backend):
    import scipy.sparse

    dense = np.diag(np.arange(1.0, 6.0)).astype("float32")
    data = [(scipy.sparse.csr_matrix(dense[:2]),), (scipy.sparse.csr_matrix(dense[2:]),)]
    for given in (scipy.sparse.csr_matrix(dense), data):
        found = list(Batches(given, batch_size=3).iterate())
        rows = [keras.ops.convert_to_numpy(batch.x)[: batch.rows] for batch in found]
        np.testing.assert_array_equal(np.concatenate(rows), dense)
        assert found[-1].size == (3 if backend == "torch" else 2)


# How far is read, and what is closed


def test_steps_draws_so_many_batches_and_no_more():
    drawn = []

    def endless():
        while True:
            drawn.append(len(drawn))
            yield X[:4], Y[:4]

    assert [batch.rows for batch in Batches(endless, steps=3, batch_size=5).iterate()] == [5, 5, 2]
    assert drawn == [0, 1, 2]


def test_steps_of_arrays_counts_their_batches():
    batches = Batches((X, Y), batch_size=5, steps=2)
    assert batches.rows == sum(batch.rows for batch in batches.iterate()) == 10


def test_steps_without_a_batch_size_divides_arrays_as_keras_does():
    batches = Batches((X, Y), steps=4)
    assert [batch.rows for batch in batches.iterate(1000)] == [6, 6, 6, 5]
    assert (batches.batch_size, batches.rows) == (6, N)


@pytest.mark.parametrize("endless", [Endless, lambda: tf_data().repeat()])
def test_steps_ends_what_never_ends(endless):
    assert sum(batch.rows for batch in Batches(endless(), steps=4).iterate()) == 20


def test_a_py_dataset_hears_each_epoch_once():
    data = Sliced(workers=2)
    batches = Batches(data)
    batches.first()
    assert data.heard == []
    list(batches.iterate())
    list(batches.iterate())
    assert data.heard == ["begin", "end"] * 2


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("Worker_")]


def test_workers_end_when_the_consumer_has_enough():
    data = Endless(workers=2)
    passing = Batches(data, steps=100).iterate()
    next(passing)
    assert workers()
    passing.close()
    assert not workers()
    assert data.heard == ["begin", "end"]


@pytest.mark.parametrize("settings", [{}, {"workers": 2}])
def test_an_error_in_the_data_is_raised_and_the_workers_end(settings):
    class Broken(Sliced):
        def __getitem__(self, index):
            if index == 3:
                raise OSError("disk gone")
            return super().__getitem__(index)

    data = Broken(**settings)
    with pytest.raises(OSError, match="disk gone"):
        list(Batches(data).iterate())
    assert data.heard == ["begin", "end"]
    assert not workers()


@pytest.mark.parametrize("settings", [{}, {"workers": 2}])
def test_a_stray_stop_iteration_is_not_the_end_of_the_data(settings):
    class Stray(Sliced):
        def __getitem__(self, index):
            return next(iter([])) if index == 3 else super().__getitem__(index)

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Batches(Stray(**settings)).iterate())


def test_a_generator_of_the_data_is_closed_when_the_consumer_has_enough():
    closed = []

    def generate():
        try:
            while True:
                yield X[:4], Y[:4]
        finally:
            closed.append(True)

    passing = Batches(generate, batch_size=3).iterate()
    next(passing)
    passing.close()
    assert closed == [True]


def test_one_buffer_for_all_batches_is_no_trap():
    def generate():
        buffer = np.empty((4, 1))
        for value in range(3):
            buffer[:] = value
            yield (buffer,)

    found = [batch.x.ravel().tolist() for batch in Batches(generate, batch_size=6).iterate()]
    assert found == [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2]]


def test_rebatching_reads_no_further_than_it_must():
    drawn = []
    parts = ((drawn.append(row), (X[row : row + 1], None, None))[1] for row in range(N))
    next(rebatched(parts, 4, "x"))
    assert drawn == [0, 1, 2, 3]


def test_what_can_be_read_once_is_read_once_and_whole():
    batches = Batches(iter(list(Sliced())), once=True)
    assert batches.first().rows == batches.first().rows == 5
    np.testing.assert_array_equal(column(list(batches.iterate()), "y"), Y)
    with pytest.raises(ValueError, match="at least one example"):
        list(batches.iterate())


def test_an_endless_generator_goes_on_where_it_was():
    numbers = ((np.full((1, 1), n),) for n in range(10**6))
    batches = Batches(numbers, steps=2, once=True)
    assert batches.first().x.item() == 0
    assert [batch.x.item() for batch in batches.iterate()] == [0, 1]
    assert [batch.x.item() for batch in batches.iterate()] == [2, 3]


def test_the_first_batch_is_at_most_batch_size_large():
    assert Batches((X, Y)).first().rows == N
    assert Batches((X, Y), batch_size=4).first().rows == 4
    assert Batches(tf_data(), batch_size=4).first().rows == 4
    assert Batches(tf_data()).first().size == 5


# What is refused, before anything is read

GENERATOR = (batch for batch in [(X, Y)])
WRONG = [
    (ValueError, "`batch_size`.*-1", {"batch_size": -1}),
    (ValueError, "`batch_size`.*0", {"batch_size": 0}),
    (TypeError, "`batch_size`.*2.5", {"batch_size": 2.5}),
    (TypeError, "`batch_size`.*True", {"batch_size": True}),
    (ValueError, "`steps`.*0.*`steps=32`", {"steps": 0}),
    (TypeError, "`steps`.*'3'", {"steps": "3"}),
    (ValueError, "`data`.*23 in x and 22 in y", {"y": Y[1:]}),
    (ValueError, r"`data`.*23 in x\['a'\] and 22 in x\['b'\]\[0\]", {"x": {"a": X, "b": [Y[1:]]}}),
    (ValueError, "`data`.*23 in x and 20 in sample_weight", {"y": Y, "sample_weight": W[3:]}),
    (ValueError, "`data`.*one example", {"x": X[:0]}),
    (ValueError, "`data`.*one example", {"x": []}),
    (ValueError, "`data`.*one example", {"x": {}}),
    (ValueError, "`data`.*one example", {"x": Sliced((X[:0], Y[:0]))}),
    (ValueError, "`data`.*one example", {"x": lambda: tf_data().take(0)}),
    (ValueError, "`data`.*`steps` is None.*Endless.*`steps=100`", {"x": Endless()}),
    (ValueError, "`data`.*`steps` is None", {"x": lambda: tf_data().repeat()}),
    (ValueError, "`data`.*more than once, got a generator.*`lambda", {"x": GENERATOR}),
    (ValueError, "`data`.*more than once", {"x": zip([X], [Y], strict=True)}),
    (ValueError, "`y`.*None.*Dataset.*ndarray", {"x": tf_data, "y": Y}),
    (ValueError, "`sample_weight`.*None.*Sliced", {"x": Sliced(), "sample_weight": W}),
    (TypeError, "`data`.*NoneType", {"x": None}),
    (TypeError, "`data`.*got int in x.*asarray", {"x": [1, 2]}),
    (TypeError, "`data`.*got int in y", {"y": [0] * N}),
    (TypeError, "`data`.*got str", {"x": "data.csv"}),
    (TypeError, "`data`.*got int", {"x": 3}),
    (ValueError, "`data`.*4 parts.*one list", {"x": (X, X, Y, W)}),
    (ValueError, "`sample_weight`.*arranged", {"y": [Y, Y], "sample_weight": [W]}),
    (ValueError, r"`sample_weight`.*\(23, 3\)", {"y": [Y, Y], "sample_weight": X}),
    (ValueError, "`data`.*scalar in x", {"x": np.float32(1)}),
]


@pytest.mark.parametrize(("error", "words", "arguments"), WRONG, ids=lambda value: str(value)[:40])
def test_bad_input_is_named_with_its_value_and_the_way_out(error, words, arguments):
    arguments = {"x": X, "name": "data"} | arguments
    if callable(arguments["x"]):
        arguments["x"] = arguments["x"]()
    with pytest.raises(error, match=f"(?s){words}"):
        Batches(**arguments)


WRONG_BATCHES = [
    (ValueError, "`data`.*scalar in y.*batch", lambda: (example for example in zip(X, Y))),  # noqa: B905
    (ValueError, "`data`.*5 in x and 4 in y", lambda: iter([(X[:5], Y[:4])])),
    (ValueError, "`data`.*one example", lambda: iter([])),
    (TypeError, "`data`.*got str.*asarray", lambda: iter([(X[:5], "label")])),
    (ValueError, "`data`.*4 parts", lambda: iter([(X, X, X, Y)])),
]


@pytest.mark.parametrize(("error", "words", "data"), WRONG_BATCHES)
def test_a_bad_batch_is_named(error, words, data):
    with pytest.raises(error, match=words):
        list(Batches(data, name="data").iterate())
    with pytest.raises(error, match=words):
        Batches(data, name="data").first()
