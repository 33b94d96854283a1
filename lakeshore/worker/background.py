"""`WorkerThread`: the worker loop in a daemon thread of this process, for a kernel that is client and worker.

It touches no signal handler, and ends with the interpreter without holding it up.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from lakeshore import ports
from lakeshore.worker.loop import Worker
from lakeshore.worker.options import WorkerOptions
from lakeshore.worker.tee import shell_runs

if TYPE_CHECKING:
    from lakeshore.queues.sync import SyncQueue

STOP_WAIT: Final = 10.0
"""Seconds that `WorkerThread.stop` waits by default."""
STUCK_AFTER: Final = 2.0
"""Seconds after which a body that was told to stop and has not is taken for one that sits in C code."""
EXIT_WAIT: Final = 1.0
"""Seconds the interpreter's exit waits for a body that was told to stop; then its job is handed back."""

_LOOK: Final = 0.1
_log = logging.getLogger("lakeshore.worker")


class WorkerThread:
    """A worker of `q` in a thread of this process.

    Parameters
    ----------
    q : SyncQueue
        The queue.
    **options
        As for `run_worker`, without `once`.

    Examples
    --------
    >>> from lakeshore import Dispatch, SyncQueue, WorkerThread, thunk
    >>> q = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
    >>> with WorkerThread(q) as worker:
    ...     q.call(thunk(pow, 2, 10))
    1024
    """

    def __init__(self, q: SyncQueue, **options: Any) -> None:
        if options.pop("once", False):
            raise ValueError("once: a worker thread runs until stopped; use run_worker(q, once=True)")
        unknown = set(options) - set(WorkerOptions.__slots__)
        if unknown:
            raise ValueError(
                f"worker: no option {min(unknown)!r}; there are {', '.join(sorted(WorkerOptions.__slots__))}"
            )
        self._worker = Worker(q, WorkerOptions.checked(**options))
        self._thread = threading.Thread(target=self._run, name=f"lakeshore-worker-{q.name}", daemon=True)
        self._told = False
        self._holders = 1
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<WorkerThread {self.queue!r} {self.state}, {self.executed} executed>"

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._worker.queue.name

    @property
    def worker_id(self) -> str:
        """The id under which it claims."""
        return self._worker.id

    @property
    def running(self) -> bool:
        """Whether the thread lives; also while it is `stopping`."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop and its last body still runs; it takes no other job."""
        return self._told and self.running

    @property
    def state(self) -> Literal["running", "stopping", "stopped"]:
        """What it does now; "stopped" also before `start`."""
        return "stopping" if self.stopping else "running" if self.running else "stopped"

    @property
    def executed(self) -> int:
        """Claims taken on so far."""
        return self._worker.executed

    @property
    def current(self) -> str | None:
        """The id of the job that runs now, or None; with several, the oldest slot's."""
        return next(iter(self._worker.current), None)

    def start(self) -> Self:
        """Start working; a second call changes nothing."""
        if self._thread.ident is None:
            _living.add(self)
            self._thread.start()
        return self

    def stop(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Take no new job and wait for the running one.

        Parameters
        ----------
        drain : bool
            Give a running body its `grace`; False hands its job back at once.
        timeout : float, optional
            The most seconds to wait; default 10. Sooner back where the body does not stop.

        Returns
        -------
        bool
            Whether the worker has ended. False: it is `stopping`, and ends by itself with its last body.
            One that still runs after its `grace` is stopped and its job handed back; where that takes no
            effect (it sits in C code) the thread lives on with it. Another worker may be started meanwhile.
        """
        self._told = True
        self._worker.drain(at_once=not drain)
        if self._thread.ident is None or self._thread is threading.current_thread():
            return not self.running
        until = time.monotonic() + (STOP_WAIT if timeout is None else timeout)
        while self.running and (left := until - time.monotonic()) > 0 and not self._stuck():
            self._thread.join(min(left, _LOOK))
        return not self.running

    def _stuck(self) -> bool:
        """Whether all that still runs was told to stop, has not, and will not soon."""
        jobs = [job for job in [slot.running for slot in self._worker.slots] if job is not None]
        before = time.monotonic() - STUCK_AFTER
        return bool(jobs) and all(
            job.gone or (job.door.reason in ("cancelled", "lost") and job.stopped_at < before) for job in jobs
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holders -= 1
        if self._holders > 0:  # another cell has it, too
            return
        drain = kind is None
        self.stop(drain, timeout=(self._worker.chosen.grace if drain else 0.0) + 7.0)

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as exc:  # noqa: BLE001 - told by `.error`; a thread has nobody to raise to
            self.error = exc
            _log.error("the worker of %r ended: %s: %s", self.queue, type(exc).__name__, exc)
        finally:
            _living.discard(self)

    def _does_what(self, other: WorkerThread) -> bool:
        mine, theirs = self._worker.queue, other._worker.queue
        same_queue = (mine.name, mine.kind, mine.temperature) == (
            theirs.name,
            theirs.kind,
            theirs.temperature,
        )
        return same_queue and mine.plane is theirs.plane and self._worker.chosen == other._worker.chosen

    def _ipython_display_(self) -> None:
        slots = self._worker.chosen.concurrency
        kind = "thread" if slots == 1 else f"{slots} threads"
        ports.call("show_worker", self, plane=self._worker.plane, kind=kind)

    def _leave(self) -> None:
        if not self.stop(drain=False, timeout=EXIT_WAIT):
            self._worker.hand_back()


def start_worker(q: SyncQueue, **options: Any) -> WorkerThread:
    """Start a worker; what `q.worker()` calls.

    In a notebook the same call gives the worker that runs already: a cell that is run again would start
    one more each time, and lose the one before. A ``with`` block then ends it only where nobody else has it.
    """
    new = WorkerThread(q, **options)
    for worker in list(_living) if shell_runs() else ():
        if worker.running and not worker.stopping and worker._does_what(new):
            worker._holders += 1
            return worker
    return new.start()


_living: weakref.WeakSet[WorkerThread] = weakref.WeakSet()
os.register_at_fork(after_in_child=_living.clear)  # the workers live in the parent


@atexit.register
def _leave_all() -> None:
    workers = list(_living)
    for worker in workers:
        worker._worker.drain(at_once=True)
    for worker in workers:
        worker._leave()
