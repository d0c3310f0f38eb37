"""What holds for all tests: the devices they see, the seed, and that they leave nothing behind."""

import importlib.metadata
import os

# All of this is read when Keras and its backend are imported, so it comes before.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    os.environ.setdefault(name, "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "4")
if os.environ.get("KERAS_BACKEND") == "jax":
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
    # Compiling takes most of this leg's time, and half as long in this way. XLA ends the process
    # at a flag that it does not know.
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()

import threading  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import keras  # noqa: E402
import pytest  # noqa: E402

BACKEND = keras.backend.backend()


def pytest_configure() -> None:
    """Gives TensorFlow four devices, as early as it takes them, and settles the environment."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration() for _ in range(4)]
        tf.config.set_logical_device_configuration(cpu, devices)
    # Keras seeds TensorFlow on every backend where it is installed, and its import sets variables.
    keras.utils.set_random_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is about other backends; `python -m tests` knows the reason given here."""
    for item in items:
        for mark in item.iter_markers("backend"):
            if BACKEND not in mark.args:
                item.add_marker(pytest.mark.skip(reason=f"{' and '.join(mark.args)} only"))


@pytest.fixture
def backend() -> str:
    """The Keras backend of this leg."""
    return BACKEND


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Starts each test from one seed and with Keras's names counted from the beginning."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a thread or changes the environment."""
    threads, environment = set(threading.enumerate()), _environment()
    yield
    left = [thread for thread in threading.enumerate() if thread not in threads and _ours(thread)]
    for thread in left:
        thread.join(1.0)  # one that is on its way out is no leak
    left = [thread for thread in left if thread.is_alive()]
    assert not left, f"the test left threads running: {left}"
    assert _environment() == environment, "the test changed the environment"


def _ours(thread: threading.Thread) -> bool:
    """Leaves aside the daemons of the backends, which live as long as the process."""
    return not thread.daemon or thread.name.startswith("keras_tricks")


def _environment() -> dict[str, str]:
    """The environment without what pytest itself writes there."""
    return {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}
