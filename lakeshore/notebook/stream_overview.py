"""What panels of many jobs know: the rows of a fan-out, kept up by `poll`, and one look at a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lakeshore.errors import UnknownInvocation
from lakeshore.notebook import render_overview as render
from lakeshore.notebook.render_overview import GroupState, JobSaid, QueueState
from lakeshore.notebook.render_packed import call_shown
from lakeshore.notebook.render_style import PANEL
from lakeshore.notebook.render_values import clip
from lakeshore.notebook.render_words import progress_words
from lakeshore.notebook.stream_feed import POLL_SECONDS, JobFeed, no_worker_note, worker_present
from lakeshore.notebook.stream_watch import looks_at
from lakeshore.planes.contract import Plane
from lakeshore.states import TERMINAL, State

RECENT = 10
VALUES_SHOWN, VALUE_TEXT = 5, 100
"""Of each job in a fan-out: its last values, and the characters of each."""


class GroupFeed:
    """The rows of a fan-out. Looks at the jobs that have not ended, as many a poll as time allows.

    Parameters
    ----------
    plane : Plane
        Where the jobs live.
    ids : sequence of str
        In the order to show them.
    name : str, optional
        What people call the fan-out.
    clock : callable
        Unix seconds; stands for the plane's clock.
    """

    gestures = ("cancel", "detach", "freeze")

    def __init__(
        self,
        plane: Plane,
        ids: Sequence[str],
        *,
        name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.plane, self._clock = plane, clock
        self._looks = looks_at(plane)
        self._rows: dict[str, dict[str, Any] | None] = dict.fromkeys(ids)
        self._open = list(self._rows)
        self._missing: set[str] = set()
        self._feeds: dict[str, JobFeed | None] = {}
        self.panel = GroupState(name)
        self.ended = not ids

    @property
    def id(self) -> str:
        """The first job's id, or ``""``."""
        return next(iter(self._rows), "")

    @property
    def state(self) -> str:
        """``"running"`` while a job has not ended; then ``"failed"`` if one failed, and so on."""
        states = {row["state"] for row in self._rows.values() if row is not None}
        order = (State.RUNNING, State.QUEUED, State.FAILED, State.CANCELLED, State.SUCCEEDED)
        return next((s for s in order if s in states), State.QUEUED)

    def require(self) -> None:
        """Check that the jobs exist.

        Raises
        ------
        UnknownInvocation
            When one of them has no row.
        """
        if self._missing:
            raise UnknownInvocation(
                f"no invocation {min(self._missing)!r} on this plane; `%lakeshore ls` lists what is there"
            )

    def poll(self) -> bool:
        """Look at the jobs that have not ended; return whether anything changed."""
        deadline = time.monotonic() + POLL_SECONDS
        changed = False
        looked = 0
        for id in self._open:
            if looked and time.monotonic() > deadline:
                break
            looked += 1
            row = self._looks.get(id)
            if row is None:
                self._missing.add(id)
            else:
                changed |= _shown(row) != _shown(self._rows[id])
                self._rows[id] = row
        # Those not looked at go first the next time.
        self._open = [
            id
            for id in self._open[looked:] + self._open[:looked]
            if id not in self._missing and not self._has_ended(id)
        ]
        self.panel.rows = [row for row in self._rows.values() if row is not None]
        self.ended = not self._open
        changed |= self._take_names(deadline) | self._take_said(deadline)
        notes = self._notes()
        changed, self.panel.notes = changed or notes != self.panel.notes, notes
        return changed or self.ended

    def note(self, text: str) -> None:
        """Show a note above the jobs, until the next poll."""
        self.panel.notes = [text]

    def end(self, how: str) -> None:
        """Note how the following ended: ``"ended"``, ``"frozen"`` or ``"detached"``."""
        if how != "ended":
            self.panel.notes = [*self.panel.notes, f"{how}; the jobs go on"]

    def cancel(self) -> None:
        """Cancel every job that has not ended."""
        for id in self._open:
            self.plane.cancel(id)

    def html(self) -> str:
        """The live panel's changing part."""
        return render.group_html(self.panel, self._clock())

    def figure(self) -> str:
        """A group has none."""
        return ""

    def opening(self) -> str:
        """One line of HTML for places that show no widget."""
        return f'<div class="{PANEL}">{len(self._rows)} jobs, the first <code>{self.id}</code></div>'

    def record(self) -> str:
        """The static HTML record."""
        return render.group_record(self.panel, self._clock())

    def text(self) -> str:
        """The record as plain text."""
        return render.group_text(self.panel, self._clock())

    def line(self) -> str:
        """One line of plain text: the counts."""
        return render.group_text(self.panel, self._clock()).partition("\n")[0]

    def _take_names(self, deadline: float) -> bool:
        unnamed = [row["id"] for row in render.pick(self.panel.rows) if row["id"] not in self.panel.names]
        for id in unnamed:
            if time.monotonic() > deadline and not self.ended:
                break
            self.panel.names[id] = call_shown(self.plane.envelope(id))
        return bool(unnamed)

    def _take_said(self, deadline: float) -> bool:
        """Follow the shown jobs that have begun, those first that were not looked at the last time."""
        shown = [row["id"] for row in render.pick(self.panel.rows) if row["started_at"] is not None]
        self._feeds = {id: feed for id, feed in self._feeds.items() if id in shown}
        for id in shown:
            if id not in self._feeds:
                self._feeds[id] = JobFeed(self.plane, id, clock=self._clock)
        changed = False
        for id, feed in list(self._feeds.items()):
            if feed is None:
                continue
            if time.monotonic() > deadline and not self.ended:
                break
            feed.poll()
            said = _said(feed, self._clock())
            changed |= said != self.panel.said.get(id)
            self.panel.said[id] = said
            del self._feeds[id]
            self._feeds[id] = None if feed.ended else feed  # now the last in turn
        return changed

    def _has_ended(self, id: str) -> bool:
        row = self._rows[id]
        return row is not None and row["state"] in TERMINAL

    def _notes(self) -> list[str]:
        notes: list[str] = []
        states = {row["state"] for row in self.panel.rows}
        if State.QUEUED in states and State.RUNNING not in states:
            queue = next(row["queue"] for row in self.panel.rows if row["state"] == State.QUEUED)
            if not worker_present(self._looks, queue, self._clock()):
                notes.append(no_worker_note(queue, self.plane))
        return notes


def _shown(row: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """What a panel shows of a row; its lease moves on without being seen."""
    return None if row is None else tuple(row[name] for name in _SHOWN)


_SHOWN = ("state", "queue", "attempt", "worker_id", "error", "started_at", "finished_at")


def _said(feed: JobFeed, now: float) -> JobSaid:
    shown = [*feed.panel.tail[-VALUES_SHOWN:], *([feed.panel.result] if feed.panel.result else [])]
    values = tuple(clip(" ".join(each.text.split()), VALUE_TEXT) for each in shown)
    return JobSaid(progress_words(feed.panel, now), values)


def queue_state(plane: Plane, name: str, now: float) -> QueueState:
    """Look at a queue once: counts by state, the newest jobs, the workers that asked for it."""
    counts: dict[str, int] = {state: plane.count(name, state) for state in State}
    notes = []
    if counts[State.QUEUED] and not worker_present(plane, name, now):
        notes.append(no_worker_note(name, plane))
    rows = plane.invocations(name, limit=RECENT)
    names = {row["id"]: call_shown(plane.envelope(row["id"])) for row in rows}
    return QueueState(name, counts, rows, plane.workers(name), notes, names)
