"""The plane as a look asks it: an answer soon, or the error that says it is away.

Work is worth half a minute of patience with a control plane; a list or a Tab is not.
"""

from __future__ import annotations

from typing import Any

from lakeshore.errors import NotSupported, PlaneUnavailable
from lakeshore.planes.contract import Plane

LOOK_SECONDS = 3.0
TAB_SECONDS = 1.0


def impatient(plane: Plane, seconds: float = LOOK_SECONDS) -> Plane:
    """Return the same plane, one that gives up after `seconds` where a control plane does not answer.

    It shares the connections of `plane`; closing it closes both. A plane on this machine comes back as it is.
    """
    patient: Any = plane
    if not hasattr(plane, "with_timeout") or patient.timeout <= seconds:
        return plane
    return patient.with_timeout(seconds)  # type: ignore[no-any-return]


def answers(plane: Plane) -> str | None:
    """Say whether a control plane answers: ``"yes"``, or what is wrong; None for a plane on this machine."""
    if not hasattr(plane, "with_timeout"):
        return None
    try:
        impatient(plane).queues()
    except NotSupported:  # it answers, and lists no queues
        return "yes"
    except PlaneUnavailable as error:
        return f"no: {error}"
    return "yes"
