"""Where panels appear and the one thread that changes them.

`Ticker` is the daemon thread that owns every widget: no other thread writes a trait after a view is shown.
It runs in an empty context, so that what it publishes carries the request that is current then; an update
with the parent of a cell that has ended is dropped by nbclient and papermill. `Surface` is one place where a
panel appears: a widget, HTML or text that is updated by its display id, or a terminal that is written once.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from IPython.core.getipython import get_ipython

from lakeshore.notebook.render_style import BLANK, STYLE, hiding, stand_in_html

TICK_SECONDS = 0.1
MESSAGES_PER_SECOND = 200
"""All panels together; the server drops everything above 1,000."""
BYTES_PER_SECOND = 80_000
"""One panel; a larger one is updated less often."""
HTML_SECONDS = 1.0
"""Between updates of a display that is replaced as a whole."""
STAND_IN_SHARE, STAND_IN_SECONDS, STAND_IN_BYTES = 0.1, 30.0, 20_000
"""A stand-in lags by this share of the panel's age, at most so long, and has so many bytes a second."""
STAND_INS_SECONDS = 0.25
"""Between the stand-ins of all panels: each brings a stylesheet, for which the page looks at all it shows."""
ENDED_VIEWS = 32
"""Views of ended jobs that stay open for a page that was reloaded in mid-run."""

log = logging.getLogger(__name__)


class Feed(Protocol):
    """What a surface shows of a `JobFeed` or `GroupFeed`."""

    @property
    def id(self) -> str:
        """The job, or the first of them."""
        ...

    @property
    def gestures(self) -> Sequence[str]:
        """The buttons that make sense for it."""
        ...

    def html(self) -> str:
        """The live panel's changing part."""
        ...

    def figure(self) -> str:
        """The live panel's figure, or an empty text."""
        ...

    def opening(self) -> str:
        """One line of HTML."""
        ...

    def record(self) -> str:
        """The static HTML record."""
        ...

    def text(self) -> str:
        """The record as plain text."""
        ...


class Surface(Protocol):
    """One place where a panel appears."""

    live: bool

    def open(self, feed: Feed, on_gesture: Callable[[str], None]) -> None:
        """Appear for the first time; called by the thread that shows the panel."""
        ...

    def update(self, feed: Feed) -> int:
        """Show the present state; called by the UI thread. Returns how many messages went out."""
        ...

    def label(self, gesture: str, text: str) -> None:
        """Change a button's text, ``""`` for its own."""
        ...

    def settle(self, feed: Feed) -> None:
        """Replace the display by the static record."""
        ...


class Ticks(Protocol):
    """What the UI thread drives."""

    def tick(self, now: float) -> int:
        """Do what is due at `now` (monotonic) and return how many messages went out."""
        ...

    def close(self) -> None:
        """Settle for good, without asking the plane."""
        ...

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        ...


class Ticker:
    """The UI thread: starts with the first panel, ends with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._panels: list[Ticks] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._registered = False

    def add(self, panel: Ticks) -> None:
        """Take over a panel that has just been shown."""
        with self._lock:
            if not self._registered:
                atexit.register(self.shutdown)
                self._registered = True
            self._panels.append(panel)
            if self._thread is None or not self._thread.is_alive():
                self._stopping = False
                self._thread = threading.Thread(
                    target=contextvars.Context().run, args=(self._run,), name="lakeshore-panels", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def wake(self) -> None:
        """Tick now."""
        self._wake.set()

    def shutdown(self, timeout: float = 2.0) -> None:
        """Freeze every panel and end the thread, waiting at most `timeout` seconds for it."""
        with self._lock:
            thread, self._stopping = self._thread, True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._wake.clear()
            with self._lock:
                panels, stopping = list(self._panels), self._stopping
            sent = ticked = 0
            for panel in panels:
                if stopping or self._stopping:
                    panel.close()
                elif sent < TICK_SECONDS * MESSAGES_PER_SECOND:
                    sent, ticked = sent + panel.tick(time.monotonic()), ticked + 1
            with self._lock:
                # Those that had no turn are the first of the next round.
                turned = [*self._panels[ticked:], *self._panels[:ticked]]
                self._panels = [panel for panel in turned if not panel.over]
                if not self._panels:
                    self._thread = None
                    return
            rest = max(TICK_SECONDS, sent / MESSAGES_PER_SECOND) - (time.monotonic() - began)
            self._wake.wait(max(0.01, rest))


TICKER = Ticker()


def surface(*, text: bool = False) -> Surface:
    """Return the best place there is here: a widget, else HTML, else text.

    Parameters
    ----------
    text : bool
        Plain text even where a widget could be shown.
    """
    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return PrintedSurface()
    if text:
        return TextSurface()
    try:
        import lakeshore_widgets
    except ImportError:
        return HtmlSurface()
    return WidgetSurface(lakeshore_widgets.StreamView)


def publish(bundle: dict[str, Any], display_id: str | None = None, *, update: bool = False) -> None:
    """Send a display, or replace the one with this display id; without IPython its text is written."""
    shell = get_ipython()
    if shell is None:
        sys.stdout.write(f"{bundle['text/plain']}\n")
        return
    transient = {} if display_id is None else {"display_id": display_id}
    shell.display_pub.publish(data=bundle, metadata={}, transient=transient, update=update)


def request_id() -> str | None:
    """Return the id of the request that this thread's messages carry as parent, or None outside a kernel."""
    shell = get_ipython()
    header = getattr(getattr(shell, "display_pub", None), "parent_header", None)
    return header.get("msg_id") if isinstance(header, dict) else None


class _Replaced:
    """A display that is replaced as a whole by its display id."""

    live = True

    def __init__(self) -> None:
        self.display_id = uuid.uuid4().hex
        self._next = 0.0
        self._last: dict[str, Any] = {}

    def open(self, feed: Feed, on_gesture: Callable[[str], None]) -> None:
        self._next = time.monotonic() + HTML_SECONDS
        publish(self._bundle(feed), self.display_id)

    def update(self, feed: Feed) -> int:
        if time.monotonic() < self._next:
            return 0
        bundle = self._bundle(feed)
        if bundle == self._last:
            return 0
        weight = sum(len(part) for part in bundle.values())
        self._next = time.monotonic() + max(HTML_SECONDS, weight / BYTES_PER_SECOND)
        self._last = bundle
        publish(bundle, self.display_id, update=True)
        return 1

    def label(self, gesture: str, text: str) -> None:
        """No buttons here."""

    def settle(self, feed: Feed) -> None:
        publish(self._bundle(feed), self.display_id, update=True)

    def _bundle(self, feed: Feed) -> dict[str, Any]:
        return {"text/html": feed.record(), "text/plain": feed.text()}


class HtmlSurface(_Replaced):
    """HTML that is replaced once a second: a kernel without ipywidgets."""


class TextSurface(_Replaced):
    """Plain text that is replaced once a second: asked for with ``--text``."""

    def _bundle(self, feed: Feed) -> dict[str, Any]:
        return {"text/plain": feed.text()}


class PrintedSurface:
    """Written once, never changed: a terminal, a script, a shell without a kernel."""

    live = False

    def open(self, feed: Feed, on_gesture: Callable[[str], None]) -> None:
        """Write the present state, and how to follow from here."""
        hint = f"this is how it stands now; `%lakeshore stream {feed.id} --wait` follows it here"
        publish({"text/html": feed.record(), "text/plain": f"{feed.text()}\n{hint}"})

    def update(self, feed: Feed) -> int:
        """Nothing can be changed here."""
        return 0

    def label(self, gesture: str, text: str) -> None:
        """No buttons here."""

    def settle(self, feed: Feed) -> None:
        """Write the record."""
        publish({"text/html": feed.record(), "text/plain": feed.text()})


class WidgetSurface:
    """A `StreamView`, replaced by the static record at the end.

    A front end shows a saved view whose kernel is gone as "model not found" and looks at nothing else in
    that output. So a second output, the stand-in, holds the record of a moment ago: the front end saves it
    with the notebook, and its stylesheet hides it where the view is alive, and the message where it is not.

    The view itself stays open and shows the end too: after a page reload the front end has lost the display
    ids, so the view is what the reader sees there.
    """

    live = True
    _stand_ins_at = 0.0

    def __init__(self, make_view: Callable[..., Any]) -> None:
        self._make_view = make_view
        self.display_id, self._stand_in_id = uuid.uuid4().hex, uuid.uuid4().hex
        self._view: Any = None
        self._html_at = self._figure_at = self._stand_in_at = self._opened_at = 0.0

    def open(self, feed: Feed, on_gesture: Callable[[str], None]) -> None:
        """Send the view, with one line of HTML and the text for places that cannot show it."""
        view = self._view = self._make_view(
            feed.html(), css=STYLE + hiding(self._stand_in_id[:8]), gestures=feed.gestures
        )
        view.on_gesture(on_gesture)
        figure = feed.figure()
        if figure:
            view.figure = figure
        reference = {"model_id": view.model_id, "version_major": 2, "version_minor": 0}
        publish(
            {
                "application/vnd.jupyter.widget-view+json": reference,
                "text/html": feed.opening(),
                "text/plain": feed.text(),
            },
            self.display_id,
        )
        publish({"image/png": BLANK}, self._stand_in_id)
        self._opened_at = time.monotonic()
        self._stand_in_at = self._opened_at + HTML_SECONDS

    def update(self, feed: Feed) -> int:
        """Set what differs, each part no oftener than its size allows."""
        now, sent = time.monotonic(), 0
        if now >= self._html_at:
            html = feed.html()
            if html != self._view.html:
                self._view.html = html
                self._html_at, sent = now + len(html) / BYTES_PER_SECOND, sent + 1
        if now >= self._figure_at:
            figure = feed.figure()
            if figure != self._view.figure:
                self._view.figure = figure
                self._figure_at, sent = now + len(figure) / BYTES_PER_SECOND, sent + 1
        if now >= max(self._stand_in_at, WidgetSurface._stand_ins_at):
            sent += self._stand(feed, now)
        return sent

    def _stand(self, feed: Feed, now: float) -> int:
        html = stand_in_html(feed.record(), self._stand_in_id[:8])
        bundle = {"text/html": html, "text/plain": feed.text()}
        rest = min(STAND_IN_SECONDS, max(HTML_SECONDS, STAND_IN_SHARE * (now - self._opened_at)))
        self._stand_in_at = now + max(rest, len(html) / STAND_IN_BYTES)
        WidgetSurface._stand_ins_at = now + STAND_INS_SECONDS
        publish(bundle, self._stand_in_id, update=True)
        return 1

    def label(self, gesture: str, text: str) -> None:
        """Change a button's text."""
        self._view.label(gesture, text)

    def settle(self, feed: Feed) -> None:
        """Replace the display, and leave the end in the view."""
        record = feed.record()
        publish({"text/html": record, "text/plain": feed.text()}, self.display_id, update=True)
        publish({"image/png": BLANK}, self._stand_in_id, update=True)
        self._view.html, self._view.figure = record, ""
        self._view.retire()
        if self not in _ENDED:
            _ENDED.append(self)
        if len(_ENDED) > ENDED_VIEWS:
            _ENDED.popleft().close()

    def close(self) -> None:
        """Let go of the view; its display has been the record for long."""
        self._view.close()


_ENDED: deque[WidgetSurface] = deque()


def close_views() -> None:
    """Close the views that stayed open for a page that was reloaded; their displays are records."""
    while _ENDED:
        _ENDED.popleft().close()
