"""Event files, read back with TensorBoard's own reader."""

import resource
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from keras_tricks._events import Events, buckets


def read(directory):
    """TensorBoard's view of a directory."""
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def points(directory, tag):
    """Step and value of each point of a tag."""
    return [(e.step, make_ndarray(e.tensor_proto)) for e in read(directory).Tensors(tag)]


def plugin(directory, tag):
    return read(directory).SummaryMetadata(tag).plugin_data.plugin_name


def test_scalars_are_read_back_at_their_steps(tmp_path):
    events = Events(tmp_path)
    values = [0.1, -3.0, 1e-9]
    for step, value in zip([1, 100, 2**40], values, strict=True):
        events.scalar("evaluation_loss_vs_iterations", value, step)
    events.close()
    tag = "evaluation_loss_vs_iterations"
    assert plugin(tmp_path, tag) == "scalars"
    assert [step for step, _ in points(tmp_path, tag)] == [1, 100, 2**40]
    assert [value for _, value in points(tmp_path, tag)] == [np.float32(value) for value in values]


def test_values_that_are_not_finite_are_kept(tmp_path):
    events = Events(tmp_path)
    for step, value in enumerate([float("nan"), float("inf"), 1e300]):
        events.scalar("loss", value, step)
    events.close()
    read_back = [float(value) for _, value in points(tmp_path, "loss")]
    np.testing.assert_array_equal(read_back, [np.nan, np.inf, np.inf])


def test_the_wall_time_is_that_of_the_call(tmp_path):
    events = Events(tmp_path)
    before = time.time()
    events.scalar("loss", 1.0, 1)
    after = time.time()
    events.close()
    assert before <= read(tmp_path).Tensors("loss")[0].wall_time <= after


def test_a_text_is_read_back(tmp_path):
    events = Events(tmp_path)
    events.text("report", "**7** → full", 7)
    events.close()
    assert plugin(tmp_path, "report") == "text"
    ((step, value),) = points(tmp_path, "report")
    assert (step, value.item().decode()) == (7, "**7** → full")


def test_a_histogram_is_read_back(tmp_path):
    values = np.random.default_rng(0).normal(size=(50, 20)).astype("float32")
    events = Events(tmp_path)
    events.histogram("weights", values, 3)
    values[:] = 0  # a training step goes on and changes its buffer
    events.close()
    assert plugin(tmp_path, "weights") == "histograms"
    ((step, triples),) = points(tmp_path, "weights")
    assert (step, triples.shape, triples[:, 2].sum()) == (3, (30, 3), 1000)


def test_buckets_count_as_numpy_does():
    values = np.random.default_rng(1).normal(size=1000)
    counts, edges = np.histogram(values, bins=30)
    left, right, found = buckets(np.append(values, [np.nan, np.inf])).T
    np.testing.assert_array_equal(found, counts)
    np.testing.assert_allclose(left, edges[:-1], atol=1e-12)
    np.testing.assert_allclose(right, edges[1:], atol=1e-12)


@pytest.mark.parametrize(
    "values",
    [[], [np.nan], [2.0, 2.0], [1.0, 1.0 + 2e-16], [-1.7e308, 1.7e308], [5e-324, 1e-323]],
)
def test_buckets_of_extreme_values_lose_none(values):
    result = buckets(np.array(values, dtype=np.float64))
    assert result[:, 2].sum() == np.isfinite(values).sum()
    assert np.isfinite(result).all()


def test_what_is_flushed_can_be_read_while_training_goes_on(tmp_path):
    events = Events(tmp_path)
    events.scalar("loss", 0.5, 1)
    events.flush()
    assert points(tmp_path, "loss") == [(1, 0.5)]
    events.close()


def test_two_writers_in_one_directory_make_two_files(tmp_path):
    first, second = Events(tmp_path), Events(tmp_path)
    first.close()
    second.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_later_writer_comes_later_in_the_curve(tmp_path):
    for step in range(12):  # the names of files that one second made must sort by age
        with closing(Events(tmp_path)) as events:
            events.scalar("loss", 0.5, step)
    assert [step for step, _ in points(tmp_path, "loss")] == list(range(12))


def test_close_ends_the_thread_and_may_come_twice(tmp_path):
    events = Events(tmp_path)
    assert "keras_tricks-events" in [thread.name for thread in threading.enumerate()]
    events.close()
    events.close()
    assert "keras_tricks-events" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match=r"`loss` cannot be added .* closed"):
        events.scalar("loss", 1.0, 1)


def test_a_forgotten_writer_still_writes_what_it_was_given(tmp_path):
    events = Events(tmp_path)
    events.scalar("loss", 0.5, 1)
    del events
    assert points(tmp_path, "loss") == [(1, 0.5)]


def test_a_full_disk_is_reported_once_and_costs_only_its_events(tmp_path, capsys):
    events = Events(tmp_path)
    events.scalar("loss", 0.5, 1)
    events.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, before[1]))
    try:
        events.text("report", "x" * 2**18, 2)
        events.text("report", "y" * 2**18, 2)
        events.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    events.scalar("loss", 0.25, 3)
    events.close()
    assert points(tmp_path, "loss") == [(1, 0.5), (3, 0.25)]
    assert isinstance(events.error, OSError)
    assert capsys.readouterr().out.count("cannot be written") == 1


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(OSError, match=r"`log_dir` must be a directory .* Pass"):
        Events(tmp_path / "run")
