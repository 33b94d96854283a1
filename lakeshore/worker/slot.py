"""One slot of a worker: claims a job, runs it, ends it, and in the same commit claims the next."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from lakeshore import wire
from lakeshore.errors import ClaimLost, DispatchError, LakeshoreError, PlaneUnavailable
from lakeshore.planes.contract import Claimed
from lakeshore.states import State
from lakeshore.worker import forks
from lakeshore.worker.endings import Ending, Options, earlier, ending, read
from lakeshore.worker.keeper import Running
from lakeshore.worker.options import Event
from lakeshore.worker.outage import is_for_good, ridden_out
from lakeshore.worker.outcomes import Failed, Outcome, Stopped, failed

if TYPE_CHECKING:
    from lakeshore.wire import Envelope
    from lakeshore.worker.loop import Worker

SLICE: Final = 0.5
"""Seconds an idle worker waits in the plane before it asks `stop` again, where its maker says nothing."""

_log = logging.getLogger("lakeshore.worker")


class Unusable(LakeshoreError):
    """No body can run here: the fault is this worker's, and its job goes back unharmed."""


class Runner(Protocol):
    """Where the bodies of one slot run."""

    def run(self, slot: Slot, claimed: Claimed, envelope: Envelope, options: Options) -> Outcome:
        """Run one body to its outcome.

        Raises
        ------
        ClaimLost
            When a frame was refused.
        Unusable
            When no body can run here.
        """
        ...

    def warm_up(self) -> None:
        """Get ready for a body, while there is nothing else to do.

        Raises
        ------
        Unusable
            When no body can run here.
        """
        ...

    def close(self) -> None:
        """Let go of what is kept warm."""
        ...


class Slot:
    """One job at a time of a worker.

    Attributes
    ----------
    running : Running or None
        The claim whose body runs.
    """

    __slots__ = ("_home", "_runner", "executed", "running", "worker", "worker_id")

    def __init__(self, worker: Worker, worker_id: str) -> None:
        self.worker, self.worker_id = worker, worker_id
        self._runner: Runner | None = None
        self._home = forks.here()
        self.executed = 0
        self.running: Running | None = None

    def work(self) -> None:
        """Take jobs until the worker drains; once: at most one."""
        worker = self.worker
        self._runner = worker.runner(self)
        self._home = forks.here()
        try:
            claimed: Claimed | None = None
            while True:
                if claimed is None:
                    if worker.stopping():
                        return
                    forks.stay(self._home)  # `stop` and `on_event` are foreign code as well
                    claimed = self._claim()
                if claimed is not None:
                    if self._too_late(claimed):
                        return
                    self.executed += 1
                    claimed = self._job(claimed)  # raises where no body can run here: the job is back by then
                if worker.chosen.once:
                    return
        finally:
            self._runner.close()
            hand_back = getattr(worker.plane, "hand_back", None)
            if hand_back is not None:
                hand_back(worker.spec.queue, self.worker_id)

    def _claim(self) -> Claimed | None:
        worker, spec = self.worker, self.worker.spec
        wait = 0.0 if worker.chosen.once else worker.slice
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
            assert self._runner is not None
            self._runner.warm_up()
            worker.tidy()
            early = worker.chosen.poll - (time.monotonic() - asked)
            if early > 0:  # a plane that does not wait
                time.sleep(min(early, SLICE))
        return claimed

    def _too_late(self, claimed: Claimed) -> bool:
        """Hand a claim back at once when the worker was told to drain while it was made.

        `stop` is not asked: one that counts what is queued would hand back the last job.
        """
        if not self.worker.told:
            return False
        try:
            Ending("release").apply(self.worker.plane, claimed, self.worker_id, None)
        except DispatchError as exc:
            _log.warning("release of %s failed, its lease will lapse: %s", claimed.id, exc)
        return True

    def _away(self, exc: PlaneUnavailable) -> None:
        worker = self.worker
        if worker.chosen.once or is_for_good(exc):
            raise exc
        worker.tell(Event("plane_away", queue=worker.queue.name, detail=str(exc)))
        pause = 0.5
        while not worker.stopping():
            until = time.monotonic() + pause
            while time.monotonic() < until and not worker.stopping():
                time.sleep(min(SLICE, max(0.0, until - time.monotonic())))
            try:
                worker.plane.get("probe")  # the one look that every control plane answers
            except PlaneUnavailable as again:
                if is_for_good(again):
                    raise
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
            following = self._deliver(end, claimed)
        except ClaimLost as exc:
            told = "the result" if end.verb == "ack" else "how it failed"
            _log.warning("job %s (attempt %d): %s is dropped: %s", claimed.id, claimed.attempt, told, exc)
            end = Ending("drop")
        except DispatchError as exc:
            end, following = self._refused(end, claimed, exc)
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
                if chosen.on_event is not None:
                    name = str(envelope.cfg.get("name") or envelope.fn.get("qualname") or "")[:200]
                losses, refusal = self._earlier(claimed, log=chosen.log and options.log)
                if refusal is not None:
                    outcome = refusal
                else:
                    if chosen.on_event is not None:
                        worker.tell(Event("started", claimed.id, claimed.queue, claimed.attempt, name))
                    assert self._runner is not None
                    outcome = self._runner.run(self, claimed, envelope, options)
        except ClaimLost:
            outcome = Stopped("lost")
        except Unusable:
            Ending("release").apply(worker.plane, claimed, self.worker_id, None)
            raise
        except Exception as exc:  # noqa: BLE001 - a fault of ours: the job ends with it, and the worker goes on
            _log.exception("running %s failed in the worker", claimed.id)
            outcome = failed(exc)
        end = ending(outcome, claimed, options, retries=chosen.retries, backoff=chosen.backoff, losses=losses)
        return end, name

    def _refused(self, end: Ending, claimed: Claimed, exc: DispatchError) -> tuple[Ending, Claimed | None]:
        """Fail a job for good whose result the plane does not take: run again, it would come to the same."""
        if end.verb == "ack":
            frames = 0 if end.frame is None else wire.Frame.from_bytes(end.frame).seq
            told = DispatchError(f"the body returned, but its result was refused: {exc}")
            outcome = failed(told, refused=True, frames=frames)
            end = ending(outcome, claimed, Options(), retries=0, backoff=0.0)
            try:
                following = self._deliver(end, claimed)
            except DispatchError as again:
                exc = again
            else:
                _log.warning("job %s (attempt %d) failed: %s", claimed.id, claimed.attempt, told)
                return end, following
        _log.warning(
            "job %s (attempt %d): its ending was refused, so it runs again once its lease has lapsed: %s",
            claimed.id,
            claimed.attempt,
            exc,
        )
        return Ending("drop"), None

    def _was_cancelled(self, end: Ending, claimed: Claimed) -> bool:
        if end.verb != "drop":
            return False
        try:
            row = self.worker.plane.get(claimed.id)
        except DispatchError:
            return False
        return row is not None and row["state"] == State.CANCELLED

    def _earlier(self, claimed: Claimed, *, log: bool) -> tuple[int, Failed | None]:
        """Count the losses of earlier attempts and begin the log with how the last one ended."""
        plane = self.worker.plane
        before = ridden_out(lambda: earlier(plane, claimed), f"the start of {claimed.id}", self._gives_up)
        if before.told and log and before.refusal is None:
            told = wire.value_frames({"stream": "stderr", "text": f"[lakeshore: {before.told}]\n"})
            ridden_out(
                lambda: plane.journal_extend(
                    f"{claimed.id}.log", told, worker_id=self.worker_id, fence=claimed.fence
                ),
                f"the start of {claimed.id}",
                self._gives_up,
            )
        return before.losses, before.refusal

    def _gives_up(self) -> str | None:
        left = self.worker.keeper.time_left()
        return None if left is None or left > 0 else "this worker is to stop"

    def _deliver(self, end: Ending, claimed: Claimed) -> Claimed | None:
        """Make the ending; while the plane is away, again and again."""
        worker = self.worker
        job, self.running = self.running, None
        if end.verb == "drop" or (job is not None and job.gone):
            return None
        try:
            spec = None if worker.chosen.once or worker.stopping() else worker.spec
        except BaseException as exc:  # a `stop` that raises ends the loop, not the job
            forks.stay(self._home, exc)
            end.apply(worker.plane, claimed, self.worker_id, None)
            raise
        forks.stay(self._home)
        return ridden_out(
            lambda: end.apply(worker.plane, claimed, self.worker_id, spec),
            f"the ending of {claimed.id}",
            self._gives_up,
        )

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
