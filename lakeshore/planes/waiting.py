"""The blocking loops of a plane, written once: wait for a job, for an ending, for frames.

Each looks, hangs up a bell, looks again, then sleeps until a ring, a known due time or a slow safety
look: subscribed before the look that counts, so that no event is lost, and an idle waiter costs next to
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from lakeshore.errors import WaitTimeout
from lakeshore.planes.doorbell import Bell

SAFETY = 1.0
"""The longest time between two looks when nothing rings, seconds: covers a lost ring."""

T = TypeVar("T")


def deadline_of(timeout: float | None) -> float:
    """Return the monotonic time at which a wait ends; infinity for None."""
    return float("inf") if timeout is None else time.monotonic() + timeout


def until(
    look: Callable[[], T | None],
    hang: Callable[[], Bell],
    deadline: float,
    *,
    poll: float | None = None,
    due: Callable[[], float] | None = None,
) -> T | None:
    """Look until there is something, or return None at the deadline.

    Parameters
    ----------
    look : callable
        Returns what is waited for, or None.
    hang : callable
        Hangs up a bell for the topic; called when the first look found nothing.
    deadline : float
        Monotonic seconds.
    poll : float, optional
        Upper bound between two looks, seconds.
    due : callable, optional
        Seconds until something is known to become due (a delayed row, a lapsing lease).
    """
    pause, bell = min(poll or SAFETY, SAFETY), None
    try:
        while True:
            if bell is not None:
                bell.clear()
            found = look()
            if found is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if bell is None:
                bell = hang()
            else:
                bell.wait(min(left, pause, max(0.0, due()) if due else pause))
    finally:
        if bell is not None:
            bell.close()


def follow(
    batch: Callable[[int], tuple[list[tuple[int, bytes]], bool]],
    hang: Callable[[], Bell],
    *,
    since: int,
    timeout: float | None,
    poll: float | None,
    what: str,
) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a journal until it is finished.

    Parameters
    ----------
    batch : callable
        Given a cursor, returns the next frames and whether the journal is finished after them.
    hang : callable
        Hangs up the bell of the journal; called when a first look found nothing to hand out.
    since, timeout, poll
        As for `Plane.journal_read`.
    what : str
        The journal's id, for the message.

    Raises
    ------
    WaitTimeout
        After `timeout` seconds without a frame.
    """
    cursor, deadline = since, deadline_of(timeout)
    pause, bell = min(poll or SAFETY, SAFETY), None
    try:
        while True:
            if bell is not None:
                bell.clear()
            frames, finished = batch(cursor)
            for seq, body in frames:
                cursor = seq
                yield seq, body
            if finished:
                return
            if frames:
                deadline = deadline_of(timeout)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(
                    f"journal_read: no frame of {what!r} within {timeout:g} s. Nothing is lost: what comes "
                    f"later is read with since={cursor}."
                )
            if bell is None:
                bell = hang()
            else:
                bell.wait(min(left, pause))
    finally:
        if bell is not None:
            bell.close()
