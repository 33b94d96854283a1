"""The worker loop: claim, run, end, and in the same commit claim the next.

Errors of jobs become state, an absent plane is waited for, and only `stop` (or a closed plane) ends the loop.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from lakeshore import settings
from lakeshore.errors import PlaneUnavailable
from lakeshore.planes.contract import ClaimSpec, Plane
from lakeshore.queues.job import new_worker_id
from lakeshore.worker import forks
from lakeshore.worker.journals import Flusher
from lakeshore.worker.keeper import Keeper
from lakeshore.worker.options import Event, Rules, WorkerOptions
from lakeshore.worker.slot import SLICE, Runner, Slot
from lakeshore.worker.tee import owns_the_process, tee_to

if TYPE_CHECKING:
    from lakeshore.queues.sync import SyncQueue
    from lakeshore.worker.remote import Remote
    from lakeshore.worker.spawn import Spawned

PRUNE_AFTER: Final = 5.0
PRUNE_EVERY: Final = 600.0

_log = logging.getLogger("lakeshore.worker")


def run_worker(
    q: SyncQueue,
    *,
    root: Path | str | None = None,
    registry: Mapping[str, Callable[..., Any]] | None = None,
    once: bool = False,
    poll: float = 0.05,
    retries: int = 1,
    stop: Callable[[], bool] | None = None,
    allow_pickled: bool | None = None,
    runtime_policy: str = "minor",
    lease: float = 30.0,
    backoff: float = 0.0,
    concurrency: int = 1,
    isolation: Literal["inline", "process"] = "inline",
    allow_modules: Iterable[str] = (),
    code_mounts: bool = True,
    log: bool = True,
    grace: float = 30.0,
    on_event: Callable[[Event], object] | None = None,
) -> int:
    """Run jobs of a queue until stopped.

    Importing and unpickling run code: whoever may submit to this queue can run code here.

    Parameters
    ----------
    q : SyncQueue
        The queue, with its plane and its order.
    root : path, optional
        Root of `run.write` and `run.read`; default the working directory at the start.
    registry : dict, optional
        Functions by name, asked before any import or unpickle.
    once : bool
        Make at most one claim, and do not wait for one.
    poll : float
        Seconds an idle worker lets pass at least between two looks.
    retries : int
        Further attempts for a job that fails, where its own `retries` says nothing.
    stop : callable, optional
        Asked between jobs and while one runs; once true, no new job is taken and a running body gets `grace`.
    allow_pickled : bool, optional
        Whether by-value functions run; None means only on a trusted plane.
    runtime_policy : {"minor", "strict", "off"}
        How closely a pickle's interpreter must match this one, and whether stale sources are refused.
    lease : float
        Seconds until another worker may take the job of a dead one.
    backoff : float
        Base of the delay before the third and later attempts, in seconds; 0 retries at once.
    concurrency : int
        Jobs at a time.
    isolation : {"inline", "process"}
        Run bodies in this process, or in a warm child that a crash cannot take the worker with.
    allow_modules : list of str
        Modules whose functions may run by reference, on a plane that is not trusted.
    code_mounts : bool
        Whether jobs of a control plane may bring the code they were submitted with, which then runs here.
    log : bool
        Whether stdout and stderr of bodies go to ``{id}.log``.
    grace : float
        Seconds a running body has once the worker drains; then its job is handed back.
    on_event : callable, optional
        Told of each start and end, as `Event`.

    Returns
    -------
    int
        Claims taken on, whatever came of them.

    Raises
    ------
    ValueError
        For an option out of its range, before anything is claimed.
    TypeError
        For a `q` that is no `SyncQueue`, a `stop` or `on_event` that cannot be called.
    KeyboardInterrupt
        After a drain that Ctrl-C began (a second Ctrl-C hands the job back at once).
    """
    if not hasattr(q, "plane"):
        raise TypeError(f"q: wants a SyncQueue, got {type(q).__name__}: run_worker(SyncQueue('gpu'))")
    chosen = WorkerOptions.checked(
        root=root,
        registry=registry,
        once=once,
        poll=poll,
        retries=retries,
        stop=stop,
        allow_pickled=allow_pickled,
        runtime_policy=runtime_policy,
        lease=lease,
        backoff=backoff,
        concurrency=concurrency,
        isolation=isolation,
        allow_modules=allow_modules,
        code_mounts=code_mounts,
        log=log,
        grace=grace,
        on_event=on_event,
    )
    return Worker(q, chosen).run_until_stopped()


def _remote_of(plane: Plane, chosen: WorkerOptions) -> Remote | None:
    if not hasattr(plane, "put_file"):
        return None
    from lakeshore.worker.remote import Remote  # a worker on a file has none

    return Remote.of(plane, code_mounts=chosen.code_mounts)


class Worker:
    """One worker: `concurrency` slots, one keeper, one flusher.

    Attributes
    ----------
    told : bool
        It was told to drain, by a signal or from another thread.
    at_once : bool
        The running jobs are to be handed back now.
    """

    def __init__(
        self,
        q: SyncQueue,
        chosen: WorkerOptions,
        *,
        tee: Callable[[str], object] | None = None,
        stuck: Callable[[], object] | None = None,
        spawned: Spawned | None = None,
        slice: float = SLICE,
    ) -> None:
        self.queue, self.chosen, self.slice = q, chosen, slice
        self.plane: Plane = q.plane
        self.tee = tee
        self._spawned = spawned
        self.rules = Rules(
            root=chosen.root,
            registry=chosen.registry,
            allow_pickled=self.plane.trusted if chosen.allow_pickled is None else chosen.allow_pickled,
            runtime_policy=chosen.runtime_policy,
            trusted=self.plane.trusted,
            allow_modules=chosen.allow_modules,
            max_payload=settings.max_payload(),
            remote=_remote_of(self.plane, chosen),
        )
        self.spec = ClaimSpec(q.name, q.kind, q.temperature, chosen.lease)
        self.flusher = Flusher()
        self.keeper = Keeper(self.plane, chosen.lease, self._time_left, stuck)
        self.id = new_worker_id()
        self.slots = [Slot(self, self.id if n == 0 else f"{self.id}.{n}") for n in range(chosen.concurrency)]
        self._drain_from: float | None = None
        self.told = self.at_once = False
        self._failure: BaseException | None = None
        self._keep = settings.read().keep
        self._prune_at = time.monotonic() + PRUNE_AFTER

    # -- what others may ask

    @property
    def executed(self) -> int:
        """Claims taken on so far."""
        return sum(slot.executed for slot in self.slots)

    @property
    def current(self) -> list[str]:
        """The ids of the running jobs."""
        return [job.claimed.id for job in [slot.running for slot in self.slots] if job is not None]

    def drain(self, *, at_once: bool = False) -> None:
        """Take no new job; `at_once` also hands back the running ones."""
        self.told = True
        if self._drain_from is None:
            self._drain_from = time.monotonic()
        if at_once:
            self.at_once = True
        self.keeper.nudge()

    def hand_back(self) -> None:
        """Release the jobs whose bodies do not stop; the process is about to end."""
        for slot in self.slots:
            job = slot.running
            if job is not None:
                self.keeper.hand_back(job)

    def stopping(self) -> bool:
        """Tell whether the worker drains, asking `stop`."""
        if self._drain_from is None and self.chosen.stop is not None and self.chosen.stop():
            self._drain_from = time.monotonic()
        return self._drain_from is not None

    def _time_left(self) -> float | None:
        if not self.stopping():
            return None
        assert self._drain_from is not None
        return -math.inf if self.at_once else self._drain_from + self.chosen.grace - time.monotonic()

    # -- the run

    def run(self) -> int:
        """Work in this thread (and `concurrency` - 1 more) until stopped; returns the jobs executed."""
        with ExitStack() as stack:
            stack.callback(self.flusher.close)
            stack.callback(self.keeper.close)
            self.flusher.start()
            self.keeper.start()
            others = [
                threading.Thread(
                    target=self._beside, args=(slot,), name=f"lakeshore-{slot.worker_id}", daemon=True
                )
                for slot in ([] if self.chosen.once else self.slots[1:])
            ]
            for thread in others:
                thread.start()
            try:
                self.slots[0].work()
            finally:
                self.drain()
                for thread in others:
                    thread.join()
        if self._failure is not None:
            raise self._failure
        return self.executed

    def _beside(self, slot: Slot) -> None:
        try:
            slot.work()
        except BaseException as exc:  # noqa: BLE001 - raised again by `run`, once the other slots have drained
            self._failure = exc
            self.drain()

    def run_until_stopped(self) -> int:
        """As `run`; in the main thread Ctrl-C drains, and a second one hands the job back at once."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self.run()
        if self.tee is None and owns_the_process():
            self.tee = tee_to(sys.stderr)
        interrupted = False
        home = forks.here()

        def on_interrupt(signum: int, frame: object) -> None:
            nonlocal interrupted
            if forks.here() != home:  # the handler too is inherited; a body's process ends as any does
                signal.default_int_handler(signum, None)
            again, interrupted = interrupted, True
            self.drain(at_once=again)
            if self.current and not again:
                _log.warning(
                    "draining: %s may go on for %g s; interrupt again to hand it back now",
                    ", ".join(self.current),
                    self.chosen.grace,
                )

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            executed = self.run()
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt
        return executed

    def runner(self, slot: Slot) -> Runner:
        """Make what runs the bodies of one slot; each kind loads what it needs, and not the other's."""
        if self.chosen.isolation == "process":
            from lakeshore.worker.process import ChildRunner

            return ChildRunner(self, self._spawned if slot is self.slots[0] else None)
        from lakeshore.worker.inline import InlineRunner

        return InlineRunner(self)

    def tell(self, event: Event) -> None:
        """Tell `on_event`; what it raises is logged and ends nothing."""
        if self.chosen.on_event is not None:
            try:
                self.chosen.on_event(event)
            except Exception:  # noqa: BLE001 - a listener is no part of the work
                _log.exception("on_event raised")

    def tidy(self) -> None:
        """Prune what ``LAKESHORE_KEEP`` lets go; called while idle."""
        if self._keep is not None and time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_EVERY
            try:
                self.plane.prune(older_than=self._keep, limit=1000)
            except PlaneUnavailable as exc:
                _log.warning("prune waits: %s", exc)
