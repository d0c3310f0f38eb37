"""Work for another thread, which lives only as long as there is some."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from keras_tricks import host


class Background:
    """Runs jobs one after the other in a thread that is there only while there are jobs.

    The thread is no daemon: a process that ends waits for the job that is under way, and an idle
    one has nothing to wait for. A job reports its own failures; none may leave it.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way or waiting."""
        return self._thread is not None

    def submit(self, job: Callable[[], object]) -> None:
        """Adds a job behind those that wait."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name)
                self._thread.start()

    def wait(self) -> float:
        """Waits until nothing is left to do; the seconds that took."""
        began = host.clock()
        thread = self._thread
        if thread is not None:
            thread.join()
        return host.clock() - began

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            job()
