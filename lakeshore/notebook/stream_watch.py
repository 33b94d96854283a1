"""Looking at a plane for many panels at once: one held request in place of several a panel and moment.

A plane on this machine, and a control plane that has not the route for it, each panel looks at itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lakeshore.errors import LakeshoreError, NotSupported, PlaneUnavailable, WaitTimeout
from lakeshore.planes.contract import Plane

HOLD_SECONDS: Final = 1.0
"""How long a request may wait for news: what is new to be looked at waits for it, at most."""
GAP_SECONDS: Final = 0.1
"""Between two requests: a panel is drawn no oftener."""
FORGET_SECONDS: Final = 5.0
"""What nobody asked for so long is looked at no longer."""
WORKERS_SECONDS: Final = 1.9
AWAY_SECONDS: Final = 2.0
"""How long a request rides an outage out before the panels are told."""
KEPT_BYTES, WAITING_BYTES = 1024 * 1024, 4 * 1024 * 1024
"""Frames of one journal: kept for a second panel of the job, and waiting to be read at most."""
NAMES_BYTES: Final = 40_000
"""The names in one request, together."""


class Looks(Protocol):
    """What panels ask of a plane."""

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return a row."""
        ...

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers of a queue."""
        ...

    def journal_read(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 30.0
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what is there after `since`."""
        ...


@dataclass(slots=True)
class _Journal:
    base: int
    finished: bool = False
    live: bool = False
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 0
    asked_at: float = 0.0

    @property
    def cursor(self) -> int:
        return self.frames[-1][0] if self.frames else self.base

    def take(self, frames: list[tuple[int, bytes]], finished: bool) -> None:
        self.frames += frames
        self.size += sum(len(data) for _, data in frames)
        self.finished, self.live = finished, True

    def drop(self, since: int) -> None:
        """Let go of what was read, where it is much."""
        while self.size > KEPT_BYTES and self.frames and self.frames[0][0] <= since:
            self.base = self.frames[0][0]
            self.size -= len(self.frames.pop(0)[1])


@dataclass(slots=True)
class _Row:
    mark: int | None = None
    row: dict[str, Any] | None = None
    asked_at: float = 0.0


class Watch:
    """What the panels of one control plane look at, kept up by one thread while there are any."""

    def __init__(self, plane: Any) -> None:
        self._plane, self._quick = plane, plane.with_timeout(AWAY_SECONDS)
        self._lock = threading.Lock()
        self._journals: dict[str, _Journal] = {}
        self._rows: dict[str, _Row] = {}
        self._once: dict[str, float] = {}
        self._workers: dict[str | None, tuple[float, list[dict[str, Any]]]] = {}
        self._thread: threading.Thread | None = None
        self._fault: PlaneUnavailable | None = None
        self.supported = True

    @property
    def idle(self) -> bool:
        """Whether nobody looks at anything."""
        return self._thread is None

    def get(self, inv_id: str) -> dict[str, Any] | None:
        """Return a row, as it was a moment ago.

        Raises
        ------
        PlaneUnavailable
            When the control plane does not answer.
        """
        with self._lock:
            known = self._rows.get(inv_id)
            if known is not None:
                known.asked_at = time.monotonic()
                if self._fault is not None:
                    raise self._fault
                if known.mark is not None:
                    return None if known.row is None else dict(known.row)
            elif self._again(inv_id):
                self._rows[inv_id] = _Row(asked_at=time.monotonic())
                self._start()
        row: dict[str, Any] | None = self._plane.get(inv_id)
        return row

    def forget(self, inv_id: str) -> None:
        """Ask for a row itself the next time: it was changed from here."""
        with self._lock:
            self._rows.pop(inv_id, None)

    def workers(self, queue: str | None = None) -> list[dict[str, Any]]:
        """List the workers of a queue, for all panels that ask within a moment."""
        at, listed = self._workers.get(queue, (0.0, []))
        if not at or time.monotonic() - at > WORKERS_SECONDS:
            listed = self._plane.workers(queue)
            self._workers[queue] = time.monotonic(), listed
        return listed

    def journal_read(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 0
    ) -> Generator[tuple[int, bytes]]:
        """Yield what is there after `since`; returns where the journal is finished.

        Raises
        ------
        WaitTimeout
            When more may come.
        """
        with self._lock:
            known = self._journals.get(inv_id)
            frames, finished, live = [], False, False
            if known is not None:
                known.asked_at = time.monotonic()
                if self._fault is not None:
                    raise self._fault
                live = known.live and since >= known.base
                if live:
                    known.drop(since)
                    frames, finished = [each for each in known.frames if each[0] > since], known.finished
        if live:
            yield from frames
            if finished:
                return
            raise WaitTimeout(f"journal_read: nothing more of {inv_id!r} yet")
        try:
            for seq, data in self._plane.journal_read(inv_id, since=since, timeout=0):
                since = seq
                yield seq, data
        except WaitTimeout:
            with self._lock:
                if known is None and self._again(f"j/{inv_id}"):
                    self._journals[inv_id] = _Journal(since, asked_at=time.monotonic())
                    self._start()
            raise

    # -- the thread -------------------------------------------------------------

    def _again(self, name: str) -> bool:
        """Whether it was asked for before, so that it pays to keep looking; under the lock."""
        now = time.monotonic()
        before = self._once.get(name)
        if len(self._once) > 10_000:
            self._once.clear()
        self._once[name] = now
        room = sum(map(len, self._journals)) + sum(map(len, self._rows)) < NAMES_BYTES
        return self.supported and room and before is not None and now - before < FORGET_SECONDS

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lakeshore-watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while self._look():
                pass
        except NotSupported:
            self.supported = False
        except LakeshoreError:
            pass  # whoever asks next asks by itself, and is told
        finally:
            with self._lock:
                self._journals.clear()
                self._rows.clear()
                self._thread = self._fault = None

    def _look(self) -> bool:
        """Ask once for all; False when there is nothing to look at."""
        began = time.monotonic()
        with self._lock:
            for kept in (self._journals, self._rows):
                for name in [name for name, each in kept.items() if began - each.asked_at > FORGET_SECONDS]:
                    del kept[name]
            if not (self._journals or self._rows):
                return False
            asked = {
                name: (each.cursor, each.finished)
                for name, each in self._journals.items()
                if each.size < WAITING_BYTES
            }
            known = {name: each.mark for name, each in self._rows.items()}
        try:
            told = self._quick.look(asked, known, hold=HOLD_SECONDS)
        except PlaneUnavailable as exc:
            self._fault = exc
            time.sleep(GAP_SECONDS)
            return True
        with self._lock:
            self._fault = None
            for name in asked:
                journal = self._journals.get(name)
                if journal is not None:
                    journal.take(*told.journals.get(name, ([], journal.finished)))
            for name, (mark, row) in told.rows.items():
                if name in self._rows:
                    self._rows[name].mark, self._rows[name].row = mark, row
        time.sleep(max(0.0, GAP_SECONDS - (time.monotonic() - began)))
        return True


_watches: dict[int, tuple[Any, Watch]] = {}
_guard = threading.Lock()


def looks_at(plane: Plane) -> Looks:
    """Return what looks at a plane: the watch of a control plane, one for all its panels, or itself."""
    if not hasattr(plane, "look"):
        return plane
    with _guard:
        for key, (known, watch) in list(_watches.items()):
            if known is not plane and watch.idle:
                del _watches[key]
        return _watches.setdefault(id(plane), (plane, Watch(plane)))[1]
