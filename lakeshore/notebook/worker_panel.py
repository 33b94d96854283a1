"""The panel of a worker in this kernel: one line that says what it does now, kept up until it ends.

One panel a worker: shown again, both displays go on together. Nothing but HTML and text, at most once a
second, since a worker has no buttons.
"""

from __future__ import annotations

import html
import threading
import time
import uuid
import weakref
from typing import Any, Protocol

from lakeshore.errors import DispatchError
from lakeshore.notebook.render_words import clock
from lakeshore.notebook.stream_ui import TICKER, publish, surface
from lakeshore.notebook.tables import span
from lakeshore.planes.contract import Plane
from lakeshore.planes.names import name_of

UPDATE_SECONDS = 1.0
LAG_SECONDS = 1.0
"""A kernel that stands still for longer, with a job in one of its threads, is told of `--process`."""
_LAG_TICK = 0.25
_BOX = (
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);"
    "color:var(--jp-ui-font-color1,inherit);padding:2px 0"
)
_HINT = "color:var(--jp-warn-color0,#b45309)"


class Worker(Protocol):
    """What the panel asks of a worker: a `KernelWorker`, or a `WorkerThread` of `q.worker()`."""

    @property
    def queue(self) -> str: ...  # noqa: D102 - as in `WorkerThread`
    @property
    def running(self) -> bool: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def executed(self) -> int | None: ...  # noqa: D102
    @property
    def current(self) -> str | None: ...  # noqa: D102
    @property
    def error(self) -> Any: ...  # noqa: D102


class WorkerPanel:
    """A worker as it is shown in a notebook.

    Parameters
    ----------
    worker : KernelWorker or WorkerThread
        Whom it shows; held weakly, since a panel keeps no worker alive.
    plane : Plane or None
        Where the names of its jobs are; None shows ids alone.
    kind : str
        ``"thread"``, ``"N threads"`` or ``"process"``.
    """

    def __init__(self, worker: Worker, plane: Plane | None, kind: str) -> None:
        self._worker, self._plane, self._kind = weakref.ref(worker), plane, kind
        self._queue = worker.queue
        self.display_id = uuid.uuid4().hex
        self.hint = ""
        self._job: tuple[str, str, float] | None = None
        self._sent = ""
        self._next = 0.0
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def over(self) -> bool:
        """Whether the UI thread has nothing more to do for it."""
        return self._over.is_set()

    def show(self) -> None:
        """Appear, or appear once more; live while the worker runs and there is a front end to update."""
        self._sent = self.text()
        publish(self._bundle(), self.display_id)
        worker = self._worker()
        if worker is None or not worker.running or not surface().live:
            return
        self._over.clear()
        TICKER.add(self)
        if self._kind != "process" and (self._watch is None or not self._watch.is_alive()):
            self._watch = threading.Thread(target=self._watch_lag, name="lakeshore-lag", daemon=True)
            self._watch.start()

    def tick(self, now: float) -> int:
        """Show what has changed; called by the UI thread. Returns how many messages went out."""
        worker = self._worker()
        gone = worker is None or not worker.running
        if now < self._next and not gone:
            return 0
        self._next = now + UPDATE_SECONDS
        text = self.text()
        if gone:
            self._over.set()
        if text == self._sent:
            return 0
        self._sent = text
        publish(self._bundle(), self.display_id, update=True)
        return 1

    def close(self) -> None:
        """Leave the display as it is; called when the kernel or the extension ends."""
        self._over.set()

    def lagged(self, seconds: float, id: str) -> None:
        """Note that the kernel stood still for so long while a job ran in it."""
        self.hint = (
            f"the kernel stood still for {span(seconds)} while {id} ran: its body holds the GIL. "
            f"%lakeshore worker stop {self._queue}, then worker start {self._queue} --process, "
            "leaves the notebook free"
        )

    def text(self) -> str:
        """The line, and the hint below it."""
        return "\n".join(part for part in (self._line(), self._said()) if part)

    def _said(self) -> str:
        worker = self._worker()
        return self.hint if worker is not None and worker.running else ""

    def _line(self) -> str:
        worker = self._worker()
        if worker is None:
            return f"worker for {self._queue!r} ({self._kind}): stopped"
        error = worker.error
        if error is not None and not worker.running:
            said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            return f"worker for {self._queue!r} ({self._kind}): ended: {said}"
        note = getattr(worker, "note", lambda: None)()
        done = "" if worker.executed is None else f", {worker.executed} executed"
        now = self._now(worker.current) if note is None else ""
        return f"worker for {self._queue!r} ({self._kind}): {note or worker.state}{done}{now}"

    def _now(self, id: str | None) -> str:
        if id is None:
            self._job = None
            return ""
        if self._job is None or self._job[0] != id:
            self._job = id, self._name(id), time.monotonic()
        _, name, since = self._job
        for_ = time.monotonic() - since
        return f", now {id}{name}" + (f" for {span(for_)}" if for_ >= 1 else "")

    def _name(self, id: str) -> str:
        try:
            name = None if self._plane is None else name_of(self._plane, id)
        except DispatchError:  # the plane is away: the id will do
            name = None
        return f" {name}" if name else ""

    def _bundle(self) -> dict[str, Any]:
        worker = self._worker()
        mark = "●" if worker is not None and worker.running else "○"
        seen = f", as of {clock(time.time())}" if mark == "●" and self._job is not None else ""
        line = f"{mark} {html.escape(self._line())}{seen}"
        hint = f'<div style="{_HINT}">{html.escape(said)}</div>' if (said := self._said()) else ""
        box = f'<div class="lakeshore-worker" role="status" style="{_BOX}">{line}{hint}</div>'
        return {"text/html": box, "text/plain": self.text()}

    def _watch_lag(self) -> None:
        """Sleep, and see how much too long: nothing in Python runs while a body holds the GIL."""
        while (worker := self._worker()) is not None and worker.running:
            executed, before = worker.executed, worker.current
            del worker
            began = time.monotonic()
            if self._over.wait(_LAG_TICK):
                return
            late = time.monotonic() - began - _LAG_TICK
            if late > LAG_SECONDS and (worker := self._worker()) is not None:
                one = "a job" if worker.executed != executed else None  # it came and went within the sleep
                if (id := before or worker.current or one) is not None:
                    self.lagged(late, id)
                    self._next = 0.0
                del worker


_panels: weakref.WeakKeyDictionary[Any, WorkerPanel] = weakref.WeakKeyDictionary()


def show_worker(worker: Worker, *, plane: Plane | None = None, kind: str = "thread") -> WorkerPanel:
    """Show a worker: a line that is kept up until it ends. A second call shows the same panel again.

    Parameters
    ----------
    worker : KernelWorker or WorkerThread
        The worker.
    plane : Plane, optional
        Where the names of its jobs are.
    kind : str
        How it runs, in words.
    """
    panel = _panels.get(worker)
    if panel is None:
        panel = _panels[worker] = WorkerPanel(worker, plane, kind)
    panel.show()
    return panel
