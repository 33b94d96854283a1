"""`WorkerThread`: the worker loop in a daemon thread of this process, for a kernel that is client and worker.

It touches no signal handler, and ends with the interpreter without holding it up.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from lakeshore.worker.loop import Worker
from lakeshore.worker.options import WorkerOptions

if TYPE_CHECKING:
    from lakeshore.queues.sync import SyncQueue

EXIT_WAIT: Final = 1.0
"""Seconds the interpreter's exit waits for a body that was told to stop; then its job is handed back."""

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
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<WorkerThread {self.queue!r} {state}, {self.executed} executed>"

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
        """Whether the thread lives."""
        return self._thread.is_alive()

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
            Seconds to wait; default the grace and what stopping a body takes.

        Returns
        -------
        bool
            Whether the worker has ended. One whose body cannot be stopped (it sits in C code) ends
            with that body; its job is back in the queue by then.
        """
        self._worker.drain(at_once=not drain)
        if self._thread.ident is None or self._thread is threading.current_thread():
            return not self.running
        patience = (self._worker.chosen.grace if drain else 0.0) + 7.0
        self._thread.join(patience if timeout is None else timeout)
        return not self.running

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=kind is None)

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as exc:  # noqa: BLE001 - told by `.error`; a thread has nobody to raise to
            self.error = exc
            _log.error("the worker of %r ended: %s: %s", self.queue, type(exc).__name__, exc)
        finally:
            _living.discard(self)

    def _leave(self) -> None:
        if not self.stop(drain=False, timeout=EXIT_WAIT):
            self._worker.hand_back()


_living: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    workers = list(_living)
    for worker in workers:
        worker._worker.drain(at_once=True)
    for worker in workers:
        worker._leave()
