"""What a wait says of a job that is queued while no worker asks for its queue."""

from __future__ import annotations

import os
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Final

from lakeshore import settings
from lakeshore.errors import DispatchError, WaitTimeout
from lakeshore.planes.contract import Plane
from lakeshore.states import State

NOTICE: Final = 5.0
"""Seconds after which a wait without an end looks whether there is a worker."""
_POLLS: Final = 1.0
"""Who waits for less than this asks again and again, and is told no more than that nothing came."""
_LOOK_SECONDS: Final = 2.0
_OURS: Final = str(Path(__file__).parents[1]) + os.sep


def unserved(plane: Plane, id: str) -> str | None:
    """Say that a job is queued and no worker asks for its queue, and how to start one; else None."""
    from lakeshore.planes.health import PRESENT_SECONDS  # nobody else who waits needs it

    if hasattr(plane, "with_timeout"):
        plane = plane.with_timeout(_LOOK_SECONDS)
    try:
        row = plane.get(id)
        if row is None or row["state"] != State.QUEUED:
            return None
        queue, now = row["queue"], time.time()
        if (row.get("not_before") or 0.0) > now:
            return f"is queued, due in {row['not_before'] - now:.0f} s"
        if any(now - worker["seen_at"] <= PRESENT_SECONDS for worker in plane.workers(queue)):
            return None
        running = plane.invocations(queue, state=State.RUNNING)
        if any((each.get("lease_expires_at") or 0.0) > now for each in running):
            return None
    except DispatchError:  # away, or older than these verbs: the wait says what it knows itself
        return None
    return f"is queued, and no worker has asked for {queue!r} lately. Start one: {_start(plane, queue)}"


def _start(plane: Plane, queue: str) -> str:
    """Return how to start a worker for a queue of this plane."""
    command = f"lakeshore worker start --queue {shlex.quote(queue)}"
    if not hasattr(plane, "path"):  # no SQLite plane
        return command
    file, database = plane.path, settings.read().database
    if str(file) == str(database):
        return command
    if file is None or Path(file).name != database.name:
        return "q.worker()"  # a plane that no worker of another process opens
    return f"{command} --plane {shlex.quote(str(Path(file).parent))}"


def timed_out(plane: Plane, id: str, timeout: float, error: WaitTimeout) -> WaitTimeout:
    """Return what a wait for a result ends with: `error`, or one that says that nobody will take the job."""
    said = unserved(plane, id) if timeout >= _POLLS else None
    if said is None:
        return error
    return WaitTimeout(f"result: invocation {id!r} has not ended within {timeout:g} s: it {said}")


def warn(id: str, said: str | None) -> None:
    """Warn of what `unserved` said, with the user's line that waits."""
    if said is None:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"waiting for {id}: it {said}", UserWarning, stacklevel=level)


def packed_result(plane: Plane, id: str, timeout: float | None) -> bytes:
    """Wait for a job's packed result as `Plane.result` does, and say when no worker will take the job."""
    try:
        return plane.result(id, timeout=NOTICE if timeout is None else timeout)
    except WaitTimeout as error:
        if timeout is not None:
            raise timed_out(plane, id, timeout, error) from None
    warn(id, unserved(plane, id))
    return plane.result(id, timeout=None)
