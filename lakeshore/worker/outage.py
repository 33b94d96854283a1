"""Outages: what a worker has to tell waits until its plane is back, its lease lapsed or not.

A lapsed lease that nobody took may still be kept, appended to and ended. So only the plane's own word, that
another worker has the job, throws work away; or the worker's end, and then the log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lakeshore.errors import ClaimLost, PlaneUnavailable

LONGEST: Final = 7 * 86400.0
"""Seconds after which a plane is not waited for any longer."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_SAY_EVERY: Final = 30.0

T = TypeVar("T")
_log = logging.getLogger("lakeshore.worker")


def is_for_good(exc: PlaneUnavailable) -> bool:
    """Whether the plane will not be back: its store says that it was moved, and where to."""
    return " was moved to " in str(exc) and "Go on there" in str(exc)


def ridden_out(call: Callable[[], T], what: str, gives_up: Callable[[], str | None]) -> T:
    """Make a call, again and again while the plane is away.

    Parameters
    ----------
    what : str
        Names the call in the log.
    gives_up : callable
        Asked before each further try; returns why there is to be none, or None.

    Raises
    ------
    ClaimLost
        When it was given up, or the plane says that the claim is lost.
    """
    until = time.monotonic() + LONGEST
    pause, said_at = _FIRST_PAUSE, -_SAY_EVERY
    while True:
        try:
            return call()
        except PlaneUnavailable as exc:
            now = time.monotonic()
            why = gives_up() or (f"it has been for {LONGEST / 86400:g} days" if now > until else None)
            if why is not None:
                raise ClaimLost(
                    f"{what} was given up: the plane is away, and {why} ({exc}). Once the lease has lapsed "
                    "another worker runs the job."
                ) from exc
            if now >= said_at + _SAY_EVERY:
                said_at = now
                _log.warning("%s waits: %s", what, exc)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
