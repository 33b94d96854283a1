"""Live panels: show a job, a stream, a fan-out or a queue, and the handle on what is shown.

The journal is the truth and a panel a view of it: it reads with its own cursor, so that nobody's iterator
is consumed, and whatever happens to it the job goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from lakeshore.errors import Detached, PlaneUnavailable, WaitTimeout
from lakeshore.notebook import stream_ui
from lakeshore.notebook.render_overview import queue_html, queue_text
from lakeshore.notebook.stream_asking import asker_for
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed, queue_state
from lakeshore.notebook.stream_ui import TICKER, Surface, publish, request_id, surface
from lakeshore.planes.contract import Plane
from lakeshore.states import TERMINAL

REDRAW_SECONDS = 1.0
"""A panel is drawn at least so often, since its clock moves."""
LOOK_SECONDS = 0.1
CATCH_UP_SECONDS, CATCH_UP_ENDED_SECONDS, CATCH_UP_ALONE_SECONDS = 0.3, 2.0, 60.0
"""How long showing a job may read its backlog at once; the UI thread, where there is one, reads the rest."""
POLL_SHARE = 4.0
"""A panel rests this many times what its last poll took: a slow plane is asked less often."""
CONFIRM_SECONDS = 5.0
REPEAT_SECONDS = 30.0
SETTLING = 6
"""Messages that a panel's end takes."""
PRINT_SECONDS = 0.5
PRINTED_LINES = 200

Interrupt = Literal["detach", "cancel"]


class PanelFeed(stream_ui.Feed, Protocol):
    """What a panel asks of a `JobFeed` or `GroupFeed`, beside what its surface does."""

    ended: bool
    plane: Plane

    @property
    def state(self) -> str:
        """As last seen."""
        ...

    def require(self) -> None:
        """Raise `UnknownInvocation` when there is nothing to follow."""
        ...

    def poll(self) -> bool:
        """Take what is new; whether anything changed."""
        ...

    def note(self, text: str) -> None:
        """Show a note."""
        ...

    def cancel(self) -> None:
        """Cancel what has not ended."""
        ...

    def end(self, how: str) -> None:
        """Note how the following ended."""
        ...

    def line(self) -> str:
        """One line of text."""
        ...


class Panel:
    """A job (or a fan-out) as it is shown once in a notebook; the handle that `show_job` returns.

    Attributes
    ----------
    id : str
        The job, or the first job of a fan-out.
    state : str
        Its state as last seen: queued, running, succeeded, failed or cancelled.
    """

    def __init__(self, feed: PanelFeed, surface: Surface) -> None:
        self._feed, self._surface = feed, surface
        self._orders: deque[str] = deque()
        self._asks: deque[str] = deque()
        self._settled = threading.Event()
        self._asker = asker_for(feed.plane)
        self._asking = False
        self._reading = threading.Lock()
        self._fault: Exception | None = None
        self._next_poll = self._drawn_at = 0.0
        self._dirty = True
        self._asked_at: float | None = None
        self._repeat_until = 0.0
        self._sent_in: str | None = None

    def __repr__(self) -> str:
        return f"<Panel {self.id} {self.state}>"

    @property
    def id(self) -> str:
        """The job, or the first job of a fan-out."""
        return self._feed.id

    @property
    def state(self) -> str:
        """The job's state as last seen."""
        if self._on_its_own and not self._feed.ended:
            self._feed.poll()
        return self._feed.state

    @property
    def over(self) -> bool:
        """Whether the UI thread has nothing more to do for it."""
        return self._settled.is_set() and time.monotonic() >= self._repeat_until

    def freeze(self) -> None:
        """Replace the panel by a static record of what it shows now; the job goes on."""
        self._order("freeze")

    def detach(self) -> None:
        """Stop following, and say how to follow again; the job goes on."""
        self._order("detach")

    def wait(self, timeout: float | None = None, on_interrupt: Interrupt = "detach") -> str:
        """Wait until the job has ended and its record is shown; return its state.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits for ever.
        on_interrupt : {"detach", "cancel"}
            What Ctrl-C does to the job: nothing, or cancel it.

        Raises
        ------
        Detached
            On Ctrl-C, at once.
        WaitTimeout
            When the job has not ended in time. It goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if self._surface.live:
                self._wait_for_record(deadline)
            self._poll_until_ended(deadline)
        except KeyboardInterrupt:
            if on_interrupt == "cancel":
                self._feed.cancel()
                raise Detached(f"cancelled: {self.id}; %lakeshore requeue {self.id} runs it again") from None
            raise Detached.of(self.id) from None
        return self._feed.state

    def show(self) -> Panel:
        """Appear, once. What has ended appears as its record at once.

        Raises
        ------
        UnknownInvocation
            When there is nothing to follow.
        """
        began = time.monotonic()
        while True:
            self._feed.poll()
            if self._feed.ended or not self._backlog() or time.monotonic() - began > self._patience():
                break
        self._feed.require()
        if self._feed.ended:
            self._feed.end("ended")
            publish({"text/html": self._feed.record(), "text/plain": self._feed.text()})
            self._settled.set()
            return self
        self._surface.open(self._feed, self._order)
        if self._surface.live:
            self._drawn_at = time.monotonic()
            TICKER.add(self)
        return self

    def tick(self, now: float) -> int:
        """Do what is due; called by the UI thread alone. Returns how many messages went out."""
        try:
            if self._settled.is_set():
                return self._repeat()
            self._obey(now)
            if not self._settled.is_set() and (self._asks or now >= self._next_poll):
                self._ask()
            return SETTLING if self._settled.is_set() else self._draw(now)
        except Exception as error:  # noqa: BLE001 - one broken panel must not end the thread of all
            stream_ui.log.exception("the panel of %s stopped", self.id)
            if not self._settled.is_set():
                self._feed.note(f"the panel stopped: {type(error).__name__}: {error}")
                self._settle("frozen")
            return 1

    def _ask(self) -> None:
        if self._asker is None:
            self._attend()
        elif not self._asking:
            self._asking = True
            self._asker.ask(self._attend_elsewhere)

    def _attend_elsewhere(self) -> None:
        with self._reading:
            try:
                self._attend()
            except Exception as error:  # noqa: BLE001 - the UI thread raises it: one broken panel ends alone
                self._fault = error
            self._asking = False

    def _draw(self, now: float) -> int:
        if not self._reading.acquire(blocking=False):
            return 0  # what would be drawn is being changed
        try:
            if self._fault is not None:
                raise self._fault
            if self._feed.ended:
                self._settle("ended")
                return SETTLING
            if not (self._dirty or now - self._drawn_at >= REDRAW_SECONDS):
                return 0
            sent = self._surface.update(self._feed)
            if sent or not self._dirty:
                self._dirty, self._drawn_at = False, now
            return sent
        finally:
            self._reading.release()

    def close(self) -> None:
        """Freeze, without asking the plane; called by the UI thread when the kernel ends."""
        if not self._settled.is_set():
            self._settle("frozen")
        self._repeat_until = 0.0

    def _patience(self) -> float:
        """How long showing may read a backlog before it shows: without a UI thread, nobody reads the rest."""
        if not self._surface.live:
            return CATCH_UP_ALONE_SECONDS
        return CATCH_UP_ENDED_SECONDS if self._feed.state in TERMINAL else CATCH_UP_SECONDS

    def _backlog(self) -> bool:
        return getattr(self._feed, "backlog", False)

    def _order(self, gesture: str) -> None:
        """Take an order from any thread; the UI thread carries it out."""
        if self._settled.is_set():
            return
        self._orders.append(gesture)
        if self._surface.live:
            TICKER.wake()
        elif gesture in ("freeze", "detach"):
            self._settled.set()

    def _obey(self, now: float) -> None:
        if self._asked_at is not None and now - self._asked_at > CONFIRM_SECONDS:
            self._asked_at = None
            self._surface.label("requeue", "")
        while self._orders and not self._settled.is_set():
            gesture = self._orders.popleft()
            if gesture == "cancel":
                self._asks.append(gesture)
            elif gesture == "requeue":
                self._run_again(now)
            else:
                self._settle("frozen" if gesture == "freeze" else "detached")
            self._dirty = True

    def _run_again(self, now: float) -> None:
        """Cancel and queue again, at the second click: the first may be a slip that ends hours of work."""
        if self._asked_at is None:
            self._asked_at = now
            self._surface.label("requeue", "Cancel and run again?")
            return
        self._asked_at = None
        self._surface.label("requeue", "")
        self._asks.append("requeue")

    def _attend(self) -> None:
        """Tell the plane what was ordered, then look at the job."""
        now = time.monotonic()
        try:
            while self._asks:
                if self._asks[0] == "cancel":
                    self._feed.cancel()
                elif isinstance(self._feed, JobFeed):
                    self._feed.requeue()
                self._asks.popleft()
            changed = self._feed.poll()
        except PlaneUnavailable as error:
            self._feed.note(f"the plane cannot be used now, trying on: {error}")
            self._next_poll, self._dirty = now + REDRAW_SECONDS, True
            return
        self._dirty = self._dirty or changed
        queued = 0 if self._asker is None else self._asker.queued
        self._next_poll = now + POLL_SHARE * (1 + queued) * (time.monotonic() - now)

    def _settle(self, how: str) -> None:
        try:
            self._feed.end(how)
            self._sent_in = request_id()
            self._surface.settle(self._feed)
            self._repeat_until = time.monotonic() + REPEAT_SECONDS
        finally:
            self._settled.set()

    def _repeat(self) -> int:
        """Send the record a second time, in the next request.

        A runner without a front end hears only what comes while a cell runs; one that fell between two cells
        would be lost to the saved notebook.
        """
        if time.monotonic() >= self._repeat_until or request_id() == self._sent_in:
            return 0
        self._repeat_until = 0.0
        self._surface.settle(self._feed)
        return 1

    def _wait_for_record(self, deadline: float | None) -> None:
        while not self._settled.wait(LOOK_SECONDS):
            self._check(deadline)

    def _check(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(
                f"wait: {self.id} is still {self._feed.state}. It goes on: wait again, "
                f"or end it with %lakeshore cancel {self.id}"
            )

    @property
    def _on_its_own(self) -> bool:
        """Whether no UI thread polls for it: it was frozen, or there never was one."""
        return self._settled.is_set() or not self._surface.live

    def _poll_until_ended(self, deadline: float | None) -> None:
        """Follow from this thread; in a terminal with a line when something changed, then the record."""
        printed, last, at = 0, "", 0.0
        pause = threading.Event()
        while not self._feed.ended:
            changed = self._feed.poll()
            if self._feed.ended:
                break
            now, line = time.monotonic(), self._feed.line()
            due = now - at >= PRINT_SECONDS * (1 + printed // 20) and printed < PRINTED_LINES
            if changed and due and line != last and not self._settled.is_set():
                sys.stdout.write(f"{line}\n")
                printed, last, at = printed + 1, line, now
            self._check(deadline)
            pause.wait(LOOK_SECONDS)
        if not self._settled.is_set():
            self._feed.end("ended")
            self._settled.set()
            self._surface.settle(self._feed)


def show_job(
    plane: Plane, inv_id: str, *, name: str | None = None, since: int = -1, text: bool = False
) -> Panel:
    """Show a job: live until it ends, then as a static record.

    Parameters
    ----------
    plane : Plane
        Where the job lives.
    inv_id : str
        The invocation, or a topic.
    name : str, optional
        What people call it; default is the name that was submitted with it.
    since : int
        Show only values after this cursor; -1 is all of the current attempt.
    text : bool
        Plain text, no widget.

    Raises
    ------
    UnknownInvocation
        When there is no such job, and nothing was ever posted under this name.
    """
    return Panel(JobFeed(plane, inv_id, name=name, since=since), surface(text=text)).show()


def show_group(plane: Plane, ids: Sequence[str], *, name: str | None = None, text: bool = False) -> Panel:
    """Show a fan-out: counts by state and a line a job, live until all have ended.

    Raises
    ------
    UnknownInvocation
        When one of the ids has no job.
    """
    return Panel(GroupFeed(plane, ids, name=name), surface(text=text)).show()


def show_stream(stream: Any) -> Panel:
    """Show a `Stream`'s job with a cursor of the panel's own; the stream itself is not read."""
    return show_job(stream.plane, stream.id)


def show_queue(queue: Any) -> None:
    """Show a queue as it stands: counts by state, the newest jobs, the workers that asked for it."""
    now = time.time()
    state = queue_state(queue.plane, queue.name, now)
    publish({"text/html": queue_html(state, now), "text/plain": queue_text(state, now)})


def shutdown() -> None:
    """Freeze every live panel, end the UI thread and close the views of ended jobs; at most 2 seconds."""
    TICKER.shutdown()
    stream_ui.close_views()
