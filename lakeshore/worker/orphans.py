"""The jobs of a worker process that is known to be dead: their leases end now, not when they would lapse.

Only who reaped that very process may say so; a worker that is merely silent keeps its lease.
"""

from __future__ import annotations

import logging

from lakeshore.errors import ClaimLost, DispatchError
from lakeshore.planes.contract import Plane
from lakeshore.queues.job import id_prefix
from lakeshore.states import State

_MOST = 1000
_log = logging.getLogger("lakeshore.worker")


def hand_on(plane: Plane, queue: str, pid: int) -> list[str]:
    """End the leases that process `pid` of this machine left behind, and return the ids of the jobs.

    Each counts as a lost worker, as if the lease had lapsed by itself: three of them, and the job is not
    run again.
    """
    prefix, ended = id_prefix(pid), []
    try:
        for row in plane.invocations(queue, state=State.RUNNING, limit=_MOST):
            if str(row["worker_id"]).startswith(prefix):
                try:
                    plane.heartbeat(row["id"], row["worker_id"], lease=0.0, fence=row["fence"])
                except ClaimLost:
                    continue  # another worker has it already
                ended.append(row["id"])
    except DispatchError as exc:  # away, or not for this token: the worker itself is not held up
        _log.warning("the leases of worker process %d lapse by themselves: %s", pid, exc)
    return ended
