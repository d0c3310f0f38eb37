"""Models on several devices: the same situations, split over replicas."""

import contextlib
from collections.abc import Iterator

import keras

import keras_tricks as kt
from tests.exact.case import differences, predictions_of
from tests.exact.situation import SITUATIONS, Reading, examples

BATCH_SIZE = 50
# 1 and 51 leave all replicas but one without rows, 50 is divided by 2 alone, 1001 by none.
SIZES = (1, 49, 50, 51, 1001)


@contextlib.contextmanager
def mirrored(replicas: int) -> Iterator[None]:
    """The scope of a `MirroredStrategy` on so many logical devices of the CPU."""
    import tensorflow as tf

    devices = [device.name for device in tf.config.list_logical_devices("CPU")[:replicas]]
    with tf.distribute.MirroredStrategy(
        devices,
        # Collectives of one process know one group of devices only, and tests have several.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    ).scope():
        yield


@contextlib.contextmanager
def data_parallel(replicas: int) -> Iterator[None]:
    """A `DataParallel` distribution over so many of JAX's devices, and none afterwards."""
    import jax

    devices = [f"cpu:{device.id}" for device in jax.devices("cpu")[:replicas]]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def faults_on(model: keras.Model, name: str) -> list[str]:
    """Returns a sentence for each value that is wrong, over all sizes."""
    found = []
    everything = predictions_of(model, name)
    for rows in SIZES:
        x, y, weight = examples(name, rows)
        predictions = keras.tree.map_structure(lambda leaf, n=rows: leaf[:n], everything)
        right = SITUATIONS[name].right(Reading(model, x, y, weight, predictions, BATCH_SIZE))
        got = kt.evaluate(model, x, y, weight, batch_size=BATCH_SIZE)
        found += [f"{rows} rows: {line}" for line in differences(got, right)]
    return found
