"""Who asks the plane for a panel: one thread a plane where the plane is elsewhere, so that no view stops.

A plane in a file or in memory answers at once, and the UI thread asks it itself. Another one may take
seconds, or be gone: one thread of its own asks it for all its panels, one after the other.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

from lakeshore.planes.sqlite import Dispatch

IDLE_SECONDS = 2.0
"""A thread that was asked nothing for so long ends."""


class Asker:
    """The thread that asks one plane; starts with the first question, ends when none comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def queued(self) -> int:
        """How many panels wait for their turn: with more of them, each asks less often."""
        return self._work.qsize()

    def ask(self, work: Callable[[], None]) -> None:
        """Let the thread do `work`, which must not raise, after what it has to do already."""
        with self._lock:
            self._work.put(work)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=contextvars.Context().run, args=(self._run,), name="lakeshore-asks", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._work.empty():
                        self._thread = None
                        return
                continue
            work()


_askers: dict[int, tuple[Any, Asker]] = {}
_guard = threading.Lock()


def asker_for(plane: Any) -> Asker | None:
    """Return the thread that asks this plane, one for all its panels; None where it answers at once."""
    if isinstance(plane, Dispatch):
        return None
    with _guard:
        for key, (known, asker) in list(_askers.items()):
            if known is not plane and asker._thread is None:
                del _askers[key]
        return _askers.setdefault(id(plane), (plane, Asker()))[1]
