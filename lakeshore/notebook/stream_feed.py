"""What a panel knows of one job: polls a plane with its own cursors and keeps a `PanelState`.

A poll takes what is there, waits for nothing and is bounded in time; a backlog is worked off over several
polls and every frame is counted. No widget and no IPython here, so a test drives it by hand.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lakeshore import wire
from lakeshore.errors import LakeshoreError, UnknownInvocation
from lakeshore.notebook import render
from lakeshore.notebook.elsewhere import flag
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numerals import as_float, is_number
from lakeshore.notebook.render_packed import result_shown
from lakeshore.notebook.render_state import Metric, PanelState, Progress
from lakeshore.notebook.render_terminal import Terminal
from lakeshore.notebook.render_text import record_text, status_line
from lakeshore.notebook.render_values import (
    MAX_FIELDS,
    Shown,
    bundle_figure,
    bundle_text,
    clip,
    figure,
    is_rich,
    is_rich_bundle,
    one_line,
    show,
)
from lakeshore.notebook.render_words import RECORD_LINES, RECORD_ROWS
from lakeshore.notebook.stream_cursor import Cursor
from lakeshore.notebook.stream_watch import Looks, Watch, looks_at
from lakeshore.planes.contract import Plane
from lakeshore.planes.health import PRESENT_SECONDS
from lakeshore.states import TERMINAL, State

POLL_SECONDS = 0.05
"""Time one poll may spend on frames; a backlog waits for the next."""
LOOK_FOR_WORKERS_SECONDS = 2.0
FIGURE_SECONDS = 0.5
DISPLAYS_SHOWN, DISPLAY_BYTES = 8, 2 * 1024 * 1024
"""Of what a body displays a panel keeps the newest: so many, and of those what fits; one always does."""
RATE_SECONDS = 3.0

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None), dict, list, tuple, bytes})


class JobFeed:
    """One job's (or topic's) panel state, kept up by `poll`.

    Parameters
    ----------
    plane : Plane
        Where the job lives.
    id : str
        The invocation, or a topic.
    name : str, optional
        What people call it; default is what the envelope says.
    since : int
        Show only values after this cursor; -1 is all of the current attempt.
    clock : callable
        Unix seconds; stands for the plane's clock.
    """

    gestures = ("cancel", "requeue", "detach", "freeze")

    def __init__(
        self,
        plane: Plane,
        id: str,
        *,
        name: str | None = None,
        since: int = -1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.plane, self._clock = plane, clock
        self._looks = looks_at(plane)
        self.panel = PanelState(id, name)
        self.ended = False
        self._values = Cursor(self._looks, id, since)
        self._log = Cursor(self._looks, f"{id}.log")
        self._progress = Cursor(self._looks, f"{id}.progress")
        self._terminal = Terminal()
        self._rich: Any = None
        self._rich_at = 0.0
        self._displayed = 0
        self._displays: deque[dict[str, Any]] = deque(maxlen=DISPLAYS_SHOWN)
        self._told_progress = False
        self._pace: deque[tuple[float, int]] = deque()
        self._workers_at, self._present = 0.0, True
        self._gone = False
        self._known = self._row() is not None
        if not self._known:
            self.panel.state = "topic"

    @property
    def id(self) -> str:
        """The invocation."""
        return self.panel.id

    @property
    def state(self) -> str:
        """The job's state as last seen."""
        return self.panel.state

    @property
    def backlog(self) -> bool:
        """Whether the last poll ran out of time before it saw the newest frame."""
        return self._values.behind or self._log.behind

    def require(self) -> None:
        """Check that there is something to follow.

        Raises
        ------
        UnknownInvocation
            When no row has this id and no frame was ever posted to it.
        """
        if not self._known and not self.panel.frames and not self.ended:
            raise UnknownInvocation(
                f"no invocation {self.id!r} on this plane; `%lakeshore ls` lists what is there, "
                f"`%lakeshore plane` says which plane this is"
            )

    def poll(self) -> bool:
        """Take what is new; return whether anything changed that the panel shows.

        Raises
        ------
        LakeshoreError
            When the plane cannot be read now. The state stays as it was.
        """
        before = (self.panel.state, self.panel.attempt, tuple(self.panel.notes), self.panel.gap)
        row = self._row() if self._known else None
        if row is not None:
            self._take_row(row)
        deadline = time.monotonic() + POLL_SECONDS
        changed = self._take_values(deadline)
        finished = self._values.finished
        if self._known:
            changed |= self._take_log(deadline) | self._take_progress(deadline)
            finished = finished and self._log.finished and self._progress.finished
            if row is None:
                self._gone = finished = True
            finished = finished and (row is None or row["state"] in TERMINAL)
        self.ended = finished
        changed |= self._take_figure()
        self._take_rate()
        self.panel.notes = self._notes()
        return (
            changed
            or self.ended
            or before
            != (
                self.panel.state,
                self.panel.attempt,
                tuple(self.panel.notes),
                self.panel.gap,
            )
        )

    def note(self, text: str) -> None:
        """Show a note above the values, such as that the plane cannot be reached, until the next poll."""
        self.panel.notes = [text]

    def end(self, how: str) -> None:
        """Note how the following ended: ``"ended"``, ``"frozen"`` or ``"detached"``."""
        self.panel.following = how

    def cancel(self) -> None:
        """End the job as cancelled."""
        self.plane.cancel(self.id)
        self._look_anew()

    def requeue(self) -> None:
        """Queue the job again from the start; one that has not ended is cancelled first."""
        if self._known and self.state not in TERMINAL:
            self.plane.cancel(self.id)
        self.plane.requeue(self.id)
        self._look_anew()
        self.ended = False

    def _look_anew(self) -> None:
        if isinstance(self._looks, Watch):
            self._looks.forget(self.id)

    def html(self) -> str:
        """The live panel's changing part."""
        return render.panel_html(self.panel, self._clock())

    def figure(self) -> str:
        """The live panel's figure."""
        return render.figure_html(self.panel)

    def opening(self) -> str:
        """One line of HTML for places that show no widget."""
        return render.opening_html(self.panel)

    def record(self) -> str:
        """The static HTML record."""
        return render.record_html(self.panel, self._clock())

    def text(self) -> str:
        """The record as plain text."""
        return record_text(self.panel, self._clock())

    def line(self) -> str:
        """One line of plain text: where the job stands."""
        return status_line(self.panel, self._clock())

    def _row(self) -> dict[str, Any] | None:
        try:
            return self._looks.get(self.panel.id)
        except ValueError:
            return None  # a topic's name need not look like an id

    def _take_row(self, row: dict[str, Any]) -> None:
        panel = self.panel
        if row["attempt"] < panel.attempt:
            self._restart()
            self._forget_displays()
        if row["state"] == State.SUCCEEDED and panel.state != State.SUCCEEDED:
            panel.result = result_shown(row["result"])
        panel.queue, panel.state, panel.attempt = row["queue"], row["state"], row["attempt"]
        panel.worker = row["worker_id"] if row["state"] != State.QUEUED else None
        panel.submitted_at, panel.not_before = row["submitted_at"], row["not_before"]
        panel.started_at, panel.finished_at = row["started_at"], row["finished_at"]
        panel.error = row["error"] if row["state"] == State.FAILED else None
        panel.traceback = row.get("traceback") if row["state"] == State.FAILED else None
        if panel.name is None:
            panel.name = self._name()

    def _name(self) -> str:
        try:
            envelope = wire.Envelope.from_bytes(self.plane.envelope(self.id) or b"")
        except LakeshoreError:
            return ""  # a plain payload has no name
        name = envelope.cfg.get("name") or envelope.fn.get("qualname") or ""
        return str(name).rpartition("<locals>.")[2]

    def _restart(self) -> None:
        panel = self.panel
        panel.frames, panel.rate, panel.progress, panel.figure = 0, 0.0, None, None
        panel.metrics, panel.tail = {}, []
        self._rich, self._told_progress = None, False
        self._pace.clear()

    def _forget_displays(self) -> None:
        self._displayed = self.panel.displays_before = 0
        self.panel.displays = []
        self._displays.clear()

    def _take_values(self, deadline: float) -> bool:
        fresh: deque[Any] = deque(maxlen=RECORD_ROWS)
        came = False
        for event in self._values.read(deadline):
            came = True
            if isinstance(event, str):
                self.panel.frames += 1
                fresh.append(Shown(event))
            elif event.kind == "value":
                self.panel.frames += 1
                fresh.append(event.value)
                self._measure(event.value)
            elif event.kind == "attempt":
                fresh.clear()
                self._restart()
                number = (event.meta or {}).get("attempt")
                self.panel.attempt = number if type(number) is int else self.panel.attempt
        shown = [value if isinstance(value, Shown) else show(value) for value in fresh]
        self.panel.tail = [*self.panel.tail, *shown][-RECORD_ROWS:]
        self.panel.gap = self._values.gap
        return came

    def _measure(self, value: Any) -> None:
        if type(value) is not dict:
            if type(value) not in _PLAIN_TYPES and is_rich(value):
                self._rich = value
            return
        bar = () if self._told_progress else self._infer_progress(value)
        metrics = self.panel.metrics
        for key, item in value.items():
            if (
                key not in bar
                and type(key) is str
                and (type(item) is float or type(item) is int or is_number(item))
            ):
                metric = metrics.get(key)
                if metric is None:
                    if len(metrics) >= MAX_FIELDS:
                        continue
                    metric = metrics[key] = Metric(key)
                metric.add(item)

    def _infer_progress(self, value: dict[Any, Any]) -> tuple[str, ...]:
        """Take progress from a frame that tells it; return the keys that only the bar needs."""
        share, step, total = value.get("progress"), value.get("step"), value.get("total")
        if is_number(share) and 0 <= share <= 1:
            self.panel.progress = Progress(as_float(share), 1.0)
            return ("progress",)
        if is_number(step) and is_number(total) and total > 0:
            self.panel.progress = Progress(as_float(step), as_float(total))
            return ("total",)
        return ()

    def _take_log(self, deadline: float) -> bool:
        came = False
        for event in self._log.read(deadline):
            came = True
            if isinstance(event, str):
                self._terminal.feed(f"{event}\n")
            elif event.kind == "attempt":
                # Not with the values: this log may be read on before their journal tells of the attempt.
                self._forget_displays()
                self._terminal.divide(clip(f"attempt {one_line((event.meta or {}).get('attempt'))}", 40))
            elif isinstance(event.value, dict):
                self._take_output(event.value)
        if came:
            self.panel.log = self._terminal.lines(RECORD_LINES)
        return came

    def _take_output(self, entry: dict[Any, Any]) -> None:
        text, display = entry.get("text"), entry.get("display")
        if isinstance(text, str):
            self._terminal.feed(text)
        elif isinstance(display, dict):
            if is_rich_bundle(display):
                self._displays.append(display)
                self._displayed += 1
            else:
                self._terminal.feed(f"{bundle_text(display)}\n")

    def _take_progress(self, deadline: float) -> bool:
        came = False
        for event in self._progress.read(deadline):
            if isinstance(event, str):
                continue
            came = True
            if event.kind == "attempt":
                self.panel.progress, self._told_progress = None, False
            elif isinstance(event.value, dict):
                done, total, note = (event.value.get(k) for k in ("done", "total", "note"))
                if is_number(done):
                    self._told_progress = True
                    self.panel.progress = Progress(
                        as_float(done),
                        as_float(total) if is_number(total) else None,
                        note if isinstance(note, str) else None,
                    )
        return came

    def _take_figure(self) -> bool:
        if self._rich is None and not self._displays:
            return False
        if not self.ended and time.monotonic() - self._rich_at <= FIGURE_SECONDS:
            return False
        self._rich_at = time.monotonic()
        shown = None if self._rich is None else figure(self._rich)
        self._rich = None
        if shown is not None:
            self.panel.figure = shown
        fresh = [each for display in self._displays if (each := bundle_figure(display)) is not None]
        self._displays.clear()
        self.panel.displays = _newest([*self.panel.displays, *fresh])
        self.panel.displays_before = self._displayed - len(self.panel.displays)
        return shown is not None or bool(fresh)

    def _take_rate(self) -> None:
        panel, now = self.panel, time.monotonic()
        self._pace.append((now, panel.frames))
        while len(self._pace) > 1 and now - self._pace[0][0] > RATE_SECONDS:
            self._pace.popleft()
        if panel.finished_at and panel.started_at:
            spent = panel.finished_at - panel.started_at
            panel.rate = panel.frames / spent if panel.frames > 1 and spent > 0 else 0.0
        else:
            spent, came = now - self._pace[0][0], panel.frames - self._pace[0][1]
            panel.rate = came / spent if spent >= 0.5 else 0.0

    def _notes(self) -> list[str]:
        notes = ["its row is gone from the plane (pruned)"] if self._gone else []
        if self.panel.state == State.QUEUED and self.panel.queue is not None and not self._worker_seen():
            notes.append(no_worker_note(self.panel.queue, self.plane))
        return notes

    def _worker_seen(self) -> bool:
        now = time.monotonic()
        if now - self._workers_at >= LOOK_FOR_WORKERS_SECONDS or not self._workers_at:
            self._workers_at = now
            self._present = worker_present(self._looks, self.panel.queue or "", self._clock())
        return self._present


def _newest(displays: list[Figure]) -> list[Figure]:
    """Return the last displays that a panel has room for."""
    kept = displays[-DISPLAYS_SHOWN:]
    while len(kept) > 1 and sum(len(each.html) for each in kept) > DISPLAY_BYTES:
        del kept[0]
    return kept


def worker_present(plane: Looks, queue: str, now: float) -> bool:
    """Tell whether a worker asked for `queue` lately, or is busy with one of its jobs."""
    return any(w["running"] or now - w["seen_at"] < PRESENT_SECONDS for w in plane.workers(queue))


def no_worker_note(queue: str, plane: Plane) -> str:
    """Return the sentence that tells how to start a worker for `queue` of `plane`."""
    return (
        f"no worker has asked for queue '{queue}' lately; "
        f"start one with `%lakeshore worker start {shlex.quote(queue)}{flag(plane)}`"
    )
