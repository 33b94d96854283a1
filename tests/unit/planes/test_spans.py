"""Delays and leases on a local plane: as long as a calendar tells, and refused before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from lakeshore import Dispatch
from lakeshore.planes.contract import LONGEST_SPAN, ClaimSpec, Submission

ASK: dict[str, Callable[[Dispatch, Any], Any]] = {
    "submit": lambda plane, span: plane.submit("q", b"e", id="b", delay=span),
    "submit_many": lambda plane, span: plane.submit_many(
        "q", [Submission(envelope=b"e", id="b", delay=span)]
    ),
    "claim": lambda plane, span: plane.claim("q", "w", lease=span),
    "heartbeat": lambda plane, span: plane.heartbeat("a", "w", fence=1, lease=span),
    "nack": lambda plane, span: plane.nack("a", "w", fence=1, error="no", delay=span),
    "next": lambda plane, span: plane.ack("a", "w", result=b"r", fence=1, next=ClaimSpec("q", lease=span)),
}


@pytest.mark.parametrize("verb", ASK)
def test_a_delay_or_lease_beyond_the_calendar_is_refused(verb: str) -> None:
    with Dispatch(":memory:") as plane:
        plane.submit("q", b"e", id="a")
        plane.claim("q", "w")
        before = [(row["id"], row["state"], row["fence"]) for row in plane.invocations()]
        for span in (1e300, LONGEST_SPAN + 1, math.inf, math.nan, -1, True, "1"):
            with pytest.raises(ValueError, match=r"^(delay|lease)\b.*wants"):
                ASK[verb](plane, span)
        assert [(row["id"], row["state"], row["fence"]) for row in plane.invocations()] == before
        ASK[verb](plane, LONGEST_SPAN)
