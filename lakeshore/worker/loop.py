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
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from lakeshore import settings
from lakeshore.errors import ClaimLost, DispatchError, PlaneUnavailable
from lakeshore.planes.contract import Claimed, ClaimSpec, Plane
from lakeshore.queues.job import new_worker_id
from lakeshore.states import State
from lakeshore.worker import output
from lakeshore.worker.execute import Ending, Options, Rules, ending, poisoned, read
from lakeshore.worker.inline import InlineRunner, owns_the_process, tee_to
from lakeshore.worker.journals import Flusher
from lakeshore.worker.keeper import Keeper, Running
from lakeshore.worker.options import Event, WorkerOptions
from lakeshore.worker.outcomes import Failed, Outcome, Stopped

if TYPE_CHECKING:
    from lakeshore.queues.sync import SyncQueue
    from lakeshore.wire import Envelope

SLICE: Final = 0.5
"""Seconds an idle worker waits in the plane before it asks `stop` again."""
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
    KeyboardInterrupt
        After a drain that Ctrl-C began (a second Ctrl-C hands the job back at once).
    """
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
        log=log,
        grace=grace,
        on_event=on_event,
    )
    return Worker(q, chosen).run_until_stopped()


class Runner(Protocol):
    """Where the bodies of one slot run."""

    def run(self, slot: Slot, claimed: Claimed, envelope: Envelope, options: Options) -> Outcome:
        """Run one body to its outcome; raises `ClaimLost` when a frame was refused."""
        ...

    def close(self) -> None:
        """Let go of what is kept warm."""
        ...


class Worker:
    """One worker: `concurrency` slots, one keeper, one flusher.

    Attributes
    ----------
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
    ) -> None:
        self.queue, self.chosen = q, chosen
        self.plane: Plane = q.plane
        self.tee = tee
        self.rules = Rules(
            root=chosen.root,
            registry=chosen.registry,
            allow_pickled=self.plane.trusted if chosen.allow_pickled is None else chosen.allow_pickled,
            runtime_policy=chosen.runtime_policy,
            trusted=self.plane.trusted,
            allow_modules=chosen.allow_modules,
            max_payload=settings.read().max_payload,
        )
        self.spec = ClaimSpec(q.name, q.kind, q.temperature, chosen.lease)
        self.flusher = Flusher()
        self.keeper = Keeper(self.plane, chosen.lease, self._time_left, stuck)
        self.id = new_worker_id()
        self.slots = [Slot(self, self.id if n == 0 else f"{self.id}.{n}") for n in range(chosen.concurrency)]
        self._drain_from: float | None = None
        self.at_once = False
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
            stack.enter_context(output.Capture())
            stack.callback(self.flusher.close)
            stack.callback(self.keeper.close)
            self.flusher.start()
            self.keeper.start()
            others = [
                threading.Thread(target=slot.work, name=f"lakeshore-{slot.worker_id}", daemon=True)
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
        return self.executed

    def run_until_stopped(self) -> int:
        """As `run`; in the main thread Ctrl-C drains, and a second one hands the job back at once."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self.run()
        if self.tee is None and owns_the_process():
            self.tee = tee_to(sys.stderr)
        interrupted = False

        def on_interrupt(signum: int, frame: object) -> None:
            nonlocal interrupted
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

    def runner(self) -> Runner:
        """Make what runs the bodies of one slot."""
        if self.chosen.isolation == "process":
            from lakeshore.worker.process import ChildRunner

            return ChildRunner(self)
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


class Slot:
    """One job at a time of a worker.

    Attributes
    ----------
    running : Running or None
        The claim whose body runs.
    """

    __slots__ = ("_runner", "executed", "running", "worker", "worker_id")

    def __init__(self, worker: Worker, worker_id: str) -> None:
        self.worker, self.worker_id = worker, worker_id
        self._runner: Runner | None = None
        self.executed = 0
        self.running: Running | None = None

    def work(self) -> None:
        """Take jobs until the worker drains; once: at most one."""
        worker = self.worker
        self._runner = worker.runner()
        try:
            claimed: Claimed | None = None
            while True:
                if claimed is None:
                    if worker.stopping():
                        return
                    claimed = self._claim()
                if claimed is not None:
                    self.executed += 1
                    claimed = self._job(claimed)  # raises where no body can run here: the job is back by then
                if worker.chosen.once:
                    return
        finally:
            self._runner.close()

    def _claim(self) -> Claimed | None:
        worker, spec = self.worker, self.worker.spec
        wait = 0.0 if worker.chosen.once else SLICE
        asked = time.monotonic()
        try:
            claimed = worker.plane.claim(
                spec.queue,
                self.worker_id,
                kind=spec.kind,
                temperature=spec.temperature,
                lease=spec.lease,
                wait=wait,
            )
        except PlaneUnavailable as exc:
            self._away(exc)
            return None
        if claimed is None and wait:
            worker.tidy()
            early = worker.chosen.poll - (time.monotonic() - asked)
            if early > 0:  # a plane that does not wait
                time.sleep(min(early, SLICE))
        return claimed

    def _away(self, exc: PlaneUnavailable) -> None:
        worker = self.worker
        if worker.chosen.once:
            raise exc
        worker.tell(Event("plane_away", queue=worker.queue.name, detail=str(exc)))
        pause = 0.5
        while not worker.stopping():
            until = time.monotonic() + pause
            while time.monotonic() < until and not worker.stopping():
                time.sleep(min(SLICE, max(0.0, until - time.monotonic())))
            try:
                worker.plane.count(worker.queue.name)
            except PlaneUnavailable as again:
                _log.debug("the plane is still away: %s", again)
                pause = min(30.0, pause * 2)
            else:
                worker.tell(Event("plane_back", queue=worker.queue.name))
                return

    # -- one job

    def _job(self, claimed: Claimed) -> Claimed | None:
        """Run one claim to its ending; returns the job claimed with that ending."""
        worker = self.worker
        began = time.monotonic()
        end, name = self._outcome(claimed)
        following: Claimed | None = None
        try:
            following = self._deliver(end, claimed, began)
        except ClaimLost as exc:
            _log.debug("dropped the result of %s: %s", claimed.id, exc)
            end = Ending("drop")
        if worker.chosen.on_event is not None:
            seconds = time.monotonic() - began
            worker.tell(_ended(end, claimed, name, seconds, cancelled=self._was_cancelled(end, claimed)))
        return following

    def _outcome(self, claimed: Claimed) -> tuple[Ending, str]:
        worker, chosen = self.worker, self.worker.chosen
        options, losses, name = Options(), 0, ""
        try:
            job = read(claimed.envelope)
            outcome: Outcome
            if isinstance(job, Failed):
                outcome = job
            else:
                envelope, options = job
                name = str(envelope.cfg.get("name") or envelope.fn.get("qualname") or "")
                losses, refusal = self._poisoned(claimed)
                if refusal is not None:
                    outcome = refusal
                else:
                    if chosen.on_event is not None:
                        worker.tell(Event("started", claimed.id, claimed.queue, claimed.attempt, name))
                    assert self._runner is not None
                    outcome = self._runner.run(self, claimed, envelope, options)
        except ClaimLost:
            outcome = Stopped("lost")
        except BaseException:  # no body can run here, which is no fault of the job
            Ending("release").apply(worker.plane, claimed, self.worker_id, None)
            raise
        end = ending(outcome, claimed, options, retries=chosen.retries, backoff=chosen.backoff, losses=losses)
        return end, name

    def _was_cancelled(self, end: Ending, claimed: Claimed) -> bool:
        if end.verb != "drop":
            return False
        try:
            row = self.worker.plane.get(claimed.id)
        except DispatchError:
            return False
        return row is not None and row["state"] == State.CANCELLED

    def _poisoned(self, claimed: Claimed) -> tuple[int, Failed | None]:
        try:
            return poisoned(self.worker.plane, claimed)
        except PlaneUnavailable as exc:
            raise ClaimLost(f"the plane went away before {claimed.id!r} began ({exc})") from exc

    def _deliver(self, end: Ending, claimed: Claimed, began: float) -> Claimed | None:
        """Make the ending; while the plane is away, again and again until the lease has passed."""
        worker = self.worker
        job, self.running = self.running, None
        if end.verb == "drop" or (job is not None and job.gone):
            return None
        try:
            spec = None if worker.chosen.once or worker.stopping() else worker.spec
        except BaseException:  # a `stop` that raises ends the loop, not the job
            end.apply(worker.plane, claimed, self.worker_id, None)
            raise
        pause = 0.05
        while True:
            try:
                return end.apply(worker.plane, claimed, self.worker_id, spec)
            except PlaneUnavailable as exc:
                until = job.lease_until if job is not None else began + worker.chosen.lease
                if time.monotonic() + pause > until:
                    raise ClaimLost(
                        f"the plane was away until the lease of {claimed.id!r} passed. Drop this result."
                    ) from exc
                _log.warning("the ending of %s waits: %s", claimed.id, exc)
                time.sleep(pause)
                pause = min(2.0, pause * 2)

    def watch(self, job: Running) -> None:
        """Note the running claim and have the keeper keep it alive."""
        self.running = job
        self.worker.keeper.watch(job)


def _ended(end: Ending, claimed: Claimed, name: str, seconds: float, *, cancelled: bool) -> Event:
    told = {"ack": "succeeded", "release": "released", "drop": "lost"}.get(end.verb)
    if told is None:
        told = "retry" if end.retry else "failed"
    if cancelled:
        told = "cancelled"
    error = end.error or {}
    detail = f"{error.get('type')}: {error.get('message')}".splitlines()[0] if error else ""
    return Event("ended", claimed.id, claimed.queue, claimed.attempt, name, told, detail[:300], seconds)
