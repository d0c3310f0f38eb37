"""Signals that ask a training to end: heard once, acted on at the end of a step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

WANTED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))


class Signals:
    """Takes note of SIGTERM and Ctrl-C while a `fit` runs in the main thread.

    Args:
        heard: Is told the first signal's name, in the handler: it must only take note.
        active: Whether the interrupted frame belongs to the `fit`; elsewhere the handlers that
            were there before act as if this one were not.

    Attributes:
        name: The signal that came, None as long as none did.
        before: The handlers that were there before, by signal.
        raised: What the user's own handler raised, to be raised again when all is saved.
    """

    def __init__(
        self, heard: Callable[[str], object], active: Callable[[FrameType | None], bool]
    ) -> None:
        self.name: str | None = None
        self.raised: BaseException | None = None
        self._heard = heard
        self._active = active
        self.before: dict[int, Any] = {}
        self._pid = os.getpid()

    def install(self) -> None:
        """Puts the handlers in place, where there is a way to do so."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in WANTED:
            before: Any = signal.getsignal(number)
            while isinstance(getattr(before, "__self__", None), Signals):
                # Left by a `fit` that raised, and ended in a thread that cannot put it back.
                before = before.__self__.before.get(number, signal.SIG_DFL)
            # A handler that Python does not know cannot be put back; one that ignores stays.
            if before is not None and before is not signal.SIG_IGN:
                self.before[number] = before
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Puts back what was there, unless somebody has put something else there since."""
        if threading.current_thread() is not threading.main_thread():
            return  # the handler passes everything on meanwhile
        for number, before in list(self.before.items()):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self.before.get(number, signal.SIG_DFL)
        if os.getpid() != self._pid:
            # A data worker inherits the handler. Ctrl-C reaches it too, and the training still
            # needs it; whoever ends it sends SIGTERM.
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if not self._active(frame) or self.name is not None:
            _pass_on(before, number, frame)
            return
        self.name = signal.Signals(number).name
        self._heard(self.name)
        if callable(before) and before is not signal.default_int_handler:
            try:
                before(number, frame)
            except BaseException as error:  # noqa: BLE001  SystemExit mostly; it is raised later
                self.raised = error


def _pass_on(before: Any, number: int, frame: FrameType | None) -> None:
    """Acts as the handler that was there before."""
    if callable(before):
        before(number, frame)
    else:
        signal.signal(number, before)
        os.kill(os.getpid(), number)
