"""What a worker reads of a job before its body runs, and how its claim ends.

Here and in what it imports is nothing of bodies: a worker whose bodies run in a child needs no more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from lakeshore import wire
from lakeshore.errors import UnpackError
from lakeshore.planes.contract import POISON_LOSSES, Claimed, ClaimSpec, Plane
from lakeshore.worker.outcomes import Done, Failed, Outcome, Stopped, failed

RETRIES_CAP: Final = 100
BACKOFF_CAP: Final = 86400.0
DELAY_CAP: Final = 300.0
_TOLD: Final = 500
"""Characters of an earlier attempt's error that the next one's log begins with."""


# -- read


@dataclass(frozen=True, slots=True)
class Options:
    """What a job's `cfg` asks of its worker; None leaves the worker's own choice."""

    retries: int | None = None
    backoff: float | None = None
    timeout: float | None = None
    log: bool = True


_NO_OPTIONS: Final = Options()
_ASKED: Final = frozenset(("retries", "backoff", "timeout", "log"))


def read(data: bytes) -> tuple[wire.Envelope, Options] | Failed:
    """Decode what was submitted, or say why it is no job for a worker."""
    try:
        envelope = wire.Envelope.from_bytes(data)
    except UnpackError as exc:
        return Failed("UnpackError", _why_no_envelope(data, exc), refused=True)
    try:
        return envelope, _options(envelope.cfg)
    except ValueError as exc:
        return failed(exc, refused=True)


def _why_no_envelope(data: bytes, exc: UnpackError) -> str:
    try:
        payload = wire.unpack(data)
    except UnpackError:
        return f"the submitted bytes are neither an envelope nor a payload ({exc}); submit with `q.submit`"
    if isinstance(payload, dict) and "fn" in payload:
        return str(exc)
    return (
        "a plain payload has no function for a worker to run; take it with `q.claim()`, "
        "or submit `thunk(f, payload)`"
    )


def _options(cfg: Mapping[str, Any]) -> Options:
    if _ASKED.isdisjoint(cfg):
        return _NO_OPTIONS
    retries = _number(cfg, "retries")
    backoff = _number(cfg, "backoff")
    timeout = _number(cfg, "timeout")
    if timeout == 0:
        raise ValueError("cfg timeout 0: wants seconds above 0, or None for no limit")
    return Options(
        retries=None if retries is None else min(RETRIES_CAP, int(retries)),
        backoff=None if backoff is None else min(BACKOFF_CAP, backoff),
        timeout=timeout,
        log=cfg.get("log") is not False,
    )


def _number(cfg: Mapping[str, Any], name: str) -> float | None:
    value = cfg.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(
            f"cfg {name} {value!r:.80}: wants a number of 0 or more; submit the job again with one"
        )
    return float(min(value, 1e15))


class Earlier(NamedTuple):
    """What became of a job's attempts before this one.

    Attributes
    ----------
    losses : int
        Attempts that ended with their worker.
    refusal : Failed or None
        Why the job is not run again; None while it may run.
    told : str
        How they ended, in a line; empty at the first attempt.
    """

    losses: int = 0
    refusal: Failed | None = None
    told: str = ""


_NONE_EARLIER: Final = Earlier()


def earlier(plane: Plane, claimed: Claimed) -> Earlier:
    """Ask the row how the attempts before ended; a job with which three workers died is not run again."""
    if claimed.attempt == 1:
        return _NONE_EARLIER
    row = plane.get(claimed.id) or {}
    losses = int(row.get("losses") or 0)
    told = _told(claimed.attempt - 1, losses, row.get("error"))
    if losses < POISON_LOSSES:
        return Earlier(losses, None, told)
    refusal = Failed(
        "PoisonPill",
        f"{losses} workers died while they ran this job (killed, crashed or out of memory), so it is not run "
        "again; mend its cause, then requeue it",
        refused=True,
    )
    return Earlier(losses, refusal, told)


def _told(attempts: int, losses: int, error: str | None) -> str:
    if error is None:
        return f"attempt {attempts} was lost with its worker" if losses else ""
    line = (error.splitlines() or [""])[0][:_TOLD]
    if not losses:
        return f"attempt {attempts} failed: {line}"
    # the row does not say which of them it was
    return f"of {attempts} attempts {losses} ended with the worker; the last of the others failed: {line}"


# -- ending


class Ending(NamedTuple):
    """The one verb that ends a claim, as a value.

    Attributes
    ----------
    verb : {"ack", "nack", "release", "drop"}
        "drop" does nothing: another worker has the job.
    """

    verb: Literal["ack", "nack", "release", "drop"]
    result: bytes | None = None
    frame: bytes | None = None
    error: dict[str, Any] | None = None
    retry: bool = False
    delay: float = 0.0

    def apply(self, plane: Plane, claimed: Claimed, worker_id: str, next: ClaimSpec | None) -> Claimed | None:
        """Make the ending on the plane; returns the job that `next` claimed with it.

        Raises
        ------
        ClaimLost
            When the claim is no longer current.
        """
        if self.verb == "ack":
            return plane.ack(
                claimed.id, worker_id, result=self.result, fence=claimed.fence, frame=self.frame, next=next
            )
        if self.verb == "nack":
            assert self.error is not None
            return plane.nack(
                claimed.id,
                worker_id,
                error=self.error,
                retry=self.retry,
                delay=self.delay,
                fence=claimed.fence,
                frame=self.frame,
                next=next,
            )
        if self.verb == "release":
            plane.release(claimed.id, worker_id, fence=claimed.fence)
        return None


def ending(
    outcome: Outcome, claimed: Claimed, options: Options, *, retries: int, backoff: float, losses: int = 0
) -> Ending:
    """Decide how a claim ends: done, tried again after a delay, failed for good, handed back, dropped.

    Parameters
    ----------
    retries, backoff
        The worker's own; the job's `cfg` wins.
    losses : int
        Attempts that ended with their worker; they are no failures and use up no retry.
    """
    if isinstance(outcome, Done):
        return Ending("ack", outcome.result, wire.end_frame(outcome.frames) if outcome.frames else None)
    if isinstance(outcome, Stopped):
        if outcome.reason == "release":
            return Ending("release")
        if outcome.reason in ("lost", "cancelled"):
            return Ending("drop")
        limit = options.timeout or 0.0
        outcome = Failed(
            "TimeoutError",
            f"the body ran longer than its timeout of {limit:g} s and was stopped",
            outcome.traceback,
            frames=outcome.frames,
        )
    error: dict[str, Any] = {
        "type": outcome.type,
        "message": outcome.message,
        "traceback": outcome.traceback,
    }
    failures = max(1, claimed.attempt - losses)
    allowed = retries if options.retries is None else options.retries
    if not outcome.refused and failures <= allowed:
        base = backoff if options.backoff is None else options.backoff
        return Ending("nack", error=error, retry=True, delay=retry_delay(failures + 1, base))
    frame = None if outcome.refused and not outcome.frames else wire.error_frame(outcome.frames, **error)
    return Ending("nack", error=error, frame=frame)


def retry_delay(attempt: int, base: float) -> float:
    """Seconds before `attempt` is due: 0 for the second, then full jitter under a doubling bound.

    Source: "Exponential Backoff And Jitter" (full jitter), AWS Architecture Blog.
    """
    if attempt <= 2 or base <= 0:
        return 0.0
    return random.uniform(0.0, min(DELAY_CAP, base * 2.0 ** min(attempt - 3, 60)))  # noqa: S311 - jitter
