"""The heartbeat: one thread a worker that extends leases and stops bodies that are to run no longer.

It lives beside the bodies: lease renewed at a third, cancel and loss seen within half a second,
time limits and the grace of a draining worker kept. A plane that is away is no error of a job.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from lakeshore.errors import ClaimLost, DispatchError
from lakeshore.planes.contract import Claimed, Plane
from lakeshore.states import State
from lakeshore.worker.guard import RESEND, Door, Reason

LOOK: Final = 0.5
"""Seconds between two looks at a running job's row."""
HANDED_BACK_AFTER: Final = 5.0
"""Seconds a draining worker waits for a body that was told to stop; then it gives the job back regardless."""
AT_ONCE: Final = 1.0
"""The same, where the worker was told to hand back at once."""

_log = logging.getLogger("lakeshore.worker")


class Running:
    """A claim whose body runs.

    Attributes
    ----------
    door : Door
        Stops the body.
    lease_until : float
        `time.monotonic` moment until which the lease is known to hold.
    lapsed : bool
        The log has it that the lease lapsed while the plane was away.
    gone : bool
        The claim was given back over the body's head; its ending is to be dropped.
    """

    __slots__ = (
        "beat_at",
        "claimed",
        "deadline",
        "door",
        "gone",
        "lapsed",
        "lease_until",
        "look_at",
        "started",
        "stopped_at",
        "told_at",
        "worker_id",
    )

    def __init__(
        self, claimed: Claimed, worker_id: str, door: Door, lease: float, timeout: float | None
    ) -> None:
        now = time.monotonic()
        self.claimed, self.worker_id, self.door = claimed, worker_id, door
        self.started = now
        self.lease_until = now + lease
        self.beat_at = now + lease / 3
        self.look_at = now + LOOK
        self.deadline = None if timeout is None else now + timeout
        self.stopped_at = 0.0
        self.told_at = 0.0
        self.gone = self.lapsed = False


class Keeper:
    """Watches over the running jobs of one worker.

    Parameters
    ----------
    drain : callable
        Returns the seconds the running bodies still have once the worker drains (minus infinity: hand
        back at once), or None.
    stuck : callable, optional
        Called once a job was given back while its body went on.
    """

    def __init__(
        self,
        plane: Plane,
        lease: float,
        drain: Callable[[], float | None],
        stuck: Callable[[], object] | None = None,
    ) -> None:
        # a call that rides an outage out by itself would keep this thread from all else for as long
        quick = getattr(plane, "with_timeout", None)
        self._plane: Plane = plane if quick is None else quick(max(2.0, lease / 3))
        self._lease, self._drain, self._stuck = lease, drain, stuck
        self._tick = min(LOOK, lease / 6)
        self._jobs: set[Running] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lakeshore-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def watch(self, job: Running) -> None:
        """Keep this claim alive until `forget`."""
        with self._lock:
            self._jobs.add(job)
        if job.deadline is not None:
            self._wake.set()

    def forget(self, job: Running) -> None:
        """The job ends: touch it no more."""
        with self._lock:
            self._jobs.discard(job)

    def nudge(self) -> None:
        """Look now; the worker began to drain."""
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * self._tick)

    def _run(self) -> None:
        pause = self._tick
        while not self._closed:
            self._wake.wait(pause)
            self._wake.clear()
            pause = self._tick
            left = self.time_left()
            with self._lock:
                jobs = list(self._jobs)
            for job in jobs:
                try:
                    pause = min(pause, self._look(job, left))
                except Exception:  # noqa: BLE001 - a fault here must not end all heartbeats
                    _log.exception("keeping %s failed", job.claimed.id)

    def time_left(self) -> float | None:
        """Return the seconds that running bodies have, minus infinity for none; None while all goes on."""
        try:
            return self._drain()
        except Exception:  # noqa: BLE001 - a caller's `stop` that raises does so in the loop, which ends by it
            return None

    def _look(self, job: Running, left: float | None) -> float:
        now = time.monotonic()
        if job.stopped_at:
            self._press(job, now, AT_ONCE if left == -math.inf else HANDED_BACK_AFTER)
        elif left is not None and left <= 0:
            self._stop(job, "release", now)
        elif job.deadline is not None and now >= job.deadline:
            self._stop(job, "timeout", now)
        if now >= job.beat_at:
            self._beat(job, now)
        elif now >= job.look_at:
            job.look_at = now + LOOK
            self._check(job, now)
        soon = self._tick if job.deadline is None or job.stopped_at else job.deadline - now
        if left is not None and left > 0:
            soon = min(soon, left)
        return max(0.001, soon)

    def _beat(self, job: Running, now: float) -> None:
        try:
            self._plane.heartbeat(job.claimed.id, job.worker_id, lease=self._lease, fence=job.claimed.fence)
        except ClaimLost:
            job.beat_at = math.inf
            self._check(job, now, lost=True)
        except DispatchError as exc:
            if now < job.lease_until:
                _log.warning("heartbeat of %s waits: %s", job.claimed.id, exc)
            elif not job.lapsed:
                job.lapsed = True
                _log.warning(
                    "the lease of %s has lapsed, for the plane is away: the body goes on, and keeps its "
                    "claim unless another worker is first when the plane is back",
                    job.claimed.id,
                )
            job.beat_at = now + max(0.05, min(2.0, self._lease / 10))
        else:
            job.lease_until, job.lapsed = now + self._lease, False
            job.beat_at = now + self._lease / 3
            job.look_at = now + LOOK

    def _check(self, job: Running, now: float, *, lost: bool = False) -> None:
        try:
            row = self._plane.get(job.claimed.id)
        except DispatchError as exc:
            _log.debug("looking at %s waits: %s", job.claimed.id, exc)
            if not lost:
                return
            row = None
        if row is not None and row["state"] == State.CANCELLED:
            self._stop(job, "cancelled", now)
        elif lost or row is None or row["state"] != State.RUNNING or row["fence"] != job.claimed.fence:
            self._stop(job, "lost", now)

    def _stop(self, job: Running, reason: Reason, now: float) -> None:
        with self._lock:
            if job not in self._jobs:
                return
        if not job.stopped_at:
            job.stopped_at = job.told_at = now
        job.door.stop(reason)

    def _press(self, job: Running, now: float, patience: float) -> None:
        reason = job.door.reason
        if reason is None:
            return
        if now >= job.told_at + RESEND:
            job.told_at = now
            job.door.stop(reason)
        if not job.door.in_thread or job.gone or now < job.stopped_at + patience:
            return
        if reason == "release":
            self.hand_back(job)

    def hand_back(self, job: Running) -> None:
        """Release a job over the head of its body, whose ending is then dropped."""
        with self._lock:
            if job not in self._jobs or job.gone:
                return
            job.gone = True
        try:
            self._plane.release(job.claimed.id, job.worker_id, fence=job.claimed.fence)
        except DispatchError as exc:
            _log.warning("release of %s failed, its lease will lapse: %s", job.claimed.id, exc)
        if self._stuck is not None:
            self._stuck()
