"""One job through its steps: read, gates and resolve, context, body, pack, one ending.

A failure becomes an ending; nothing is raised from here but a lost claim.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, Protocol

from lakeshore import wire
from lakeshore.context import current, job_context
from lakeshore.errors import (
    ClaimLost,
    DispatchError,
    KeyContractError,
    LakeshoreError,
    PackError,
    PickleRefused,
    RuntimeMismatch,
    StaleSource,
    UnpackError,
)
from lakeshore.functions import transport
from lakeshore.functions.body import BodyWrapper, run_body
from lakeshore.planes.contract import POISON_LOSSES, Claimed, ClaimSpec, Plane
from lakeshore.worker import display, forks
from lakeshore.worker.guard import Guard
from lakeshore.worker.outcomes import Done, Failed, Outcome, Stopped, failed, user_traceback

RETRIES_CAP: Final = 100
BACKOFF_CAP: Final = 86400.0
DELAY_CAP: Final = 300.0
KNOWN: Final = 1000
"""References that a worker remembers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a worker allows, and where its bodies run.

    Attributes
    ----------
    root : Path
        The absolute root of `run.write` and `run.read`.
    registry : mapping
        Functions by name, asked before any import or unpickle.
    allow_pickled, runtime_policy, trusted, allow_modules
        The gates, as `run_worker` takes them (`allow_pickled` settled).
    max_payload : int
        Bytes that a result or a yielded value may have.
    known : dict
        References that were resolved, as `_resolved` keeps them.
    """

    root: Path
    registry: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    allow_pickled: bool = False
    runtime_policy: str = "minor"
    trusted: bool = False
    allow_modules: tuple[str, ...] = ()
    max_payload: int = 256 * 1024 * 1024
    known: dict[tuple[Any, ...], tuple[ModuleType, Callable[..., Any]]] = field(default_factory=dict)


class Sinks(Protocol):
    """Where a running body's output goes."""

    def values(self, frames: list[bytes]) -> None:
        """Take the frames of one yielded value."""
        ...

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Take the newest progress."""
        ...

    def show(self, obj: object) -> None:
        """Take an object that the body displays."""
        ...

    def display(self, bundle: dict[str, Any]) -> None:
        """Take a display that is formatted already."""
        ...


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


def poisoned(plane: Plane, claimed: Claimed) -> tuple[int, Failed | None]:
    """Count the workers that died with this job; at three it is not run again.

    Returns
    -------
    losses, refusal
        `refusal` is None while the job may run.
    """
    if claimed.attempt == 1:
        return 0, None
    row = plane.get(claimed.id)
    losses = int(row["losses"]) if row else 0
    if losses < POISON_LOSSES:
        return losses, None
    return losses, Failed(
        "PoisonPill",
        f"{losses} workers died while they ran this job (killed, crashed or out of memory), so it is not run "
        "again; mend its cause, then requeue it",
        refused=True,
    )


# -- run


def perform(
    envelope: wire.Envelope,
    claimed: Claimed,
    rules: Rules,
    sinks: Sinks,
    guard: Guard,
    *,
    around: Callable[[Callable[[], object]], object] | None = None,
) -> Outcome:
    """Run one body in this thread, in a copy of its context, and tell what came of it.

    Parameters
    ----------
    guard : Guard
        Made for this run, in this thread; stops the body from outside.
    around : callable, optional
        Calls the run it is given; installs what the body is to see (its stdout).

    Raises
    ------
    ClaimLost
        When a frame was refused because another worker has the job.
    """
    run = _Run(envelope, claimed, rules, sinks, guard)
    context = copy_context()
    call = run.body if around is None else lambda: around(run.body)
    value, exc = guard.run(lambda: context.run(call))
    if isinstance(exc, ClaimLost) and run.refused_frame is exc:
        raise exc
    if isinstance(value, Failed):
        return value
    if guard.reason is not None:  # whatever the body made of it: one that was to stop has no result
        return Stopped(guard.reason, None if exc is None else user_traceback(exc), run.frames)
    if exc is not None:
        return failed(exc, refused=run.refused is exc, frames=run.frames)
    assert isinstance(value, Done)
    return value


class _Run:
    """One body on its way through gates, context, call and packing."""

    __slots__ = (
        "_claimed",
        "_envelope",
        "_guard",
        "_home",
        "_rules",
        "_sinks",
        "frames",
        "refused",
        "refused_frame",
    )

    def __init__(
        self, envelope: wire.Envelope, claimed: Claimed, rules: Rules, sinks: Sinks, guard: Guard
    ) -> None:
        self._envelope, self._claimed, self._rules = envelope, claimed, rules
        self._sinks, self._guard = sinks, guard
        self._home = forks.here()
        self.frames = 0
        self.refused: LakeshoreError | None = None
        self.refused_frame: ClaimLost | None = None

    def body(self) -> Done | Failed:
        """Go from the gates to the packed result; a process forked on the way ends here."""
        try:
            outcome = self._steps()
        except BaseException as exc:
            forks.stay(self._home, exc)
            raise
        forks.stay(self._home)
        return outcome

    def _steps(self) -> Done | Failed:
        rules, envelope = self._rules, self._envelope
        try:
            fn = _resolved(envelope.fn, rules)
            args, kwargs = _arguments(envelope)
        except (PickleRefused, RuntimeMismatch, StaleSource, UnpackError) as exc:
            return failed(exc, refused=True)
        try:
            context = job_context(
                prefix=envelope.prefix,
                root=rules.root,
                invocation_id=self._claimed.id,
                attempt=self._claimed.attempt,
                fence=self._claimed.fence,
                on_progress=self._progress,
                on_display=self._show,
                cancelled=self._guard.stopping,
            )
        except KeyContractError as exc:
            return failed(exc, refused=True)
        with context:
            value = run_body(fn, args, kwargs, emit=self.emit, check=self.check, forked=forks.end)
        try:
            return Done(wire.pack(value, limit=rules.max_payload), self.frames)
        except PackError as exc:
            self._refuse(exc, value)
            raise

    def check(self, result: Any, yielded: list[str]) -> None:
        """Hold the body to return-your-keys; one that broke it does so on every try."""
        try:
            current().check_keys(result, frozenset(yielded))
        except KeyContractError as exc:
            self.refused = exc
            raise

    def emit(self, value: Any) -> None:
        """Write one yielded value."""
        if self._away():
            raise DispatchError(
                "yield: in a process that the body forked; only the body itself gives values. "
                "Send them to it (a pipe, a `multiprocessing.Queue`), and yield there"
            )
        try:
            frames = wire.value_frames(value, self.frames, limit=self._rules.max_payload)
        except PackError as exc:
            self._refuse(exc, value)
            raise
        try:
            self._sinks.values(frames)
        except ClaimLost as exc:
            self.refused_frame = exc
            raise
        self.frames += len(frames)

    def _refuse(self, exc: PackError, value: Any) -> None:
        """Note that no try can give this value, and leave a look at it in the log: it may be a day's work."""
        self.refused = exc
        if self._away():
            return
        try:
            self._sinks.display(display.last_look(value))
        except Exception as odd:  # noqa: BLE001 - the value's own code ran; the refusal is what is told
            print(f"[lakeshore: its display raised {type(odd).__name__}]", file=sys.stderr)  # noqa: T201

    def _away(self) -> bool:
        return forks.here() != self._home

    def _progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        if not self._away():
            self._sinks.progress(done, total, note)

    def _show(self, obj: object) -> None:
        if self._away():
            print(display.bundle(obj).get("text/plain", ""), flush=True)  # noqa: T201 - where its prints go
        else:
            self._sinks.show(obj)


def _resolved(fn: Mapping[str, Any], rules: Rules) -> Callable[..., Any]:
    """Return the body that an envelope names, through the gates.

    On a trusted plane a reference passes them once: what it led to is known while its module holds that
    very function under that very name.
    """
    key = (fn.get("module"), fn.get("qualname"), fn.get("src_hash"))
    plain = rules.trusted and not rules.registry and fn.get("kind") == "ref" and set(map(type, key)) == {str}
    if plain and (known := rules.known.get(key)):
        module, body = known
        found = module.__dict__.get(key[1])
        if sys.modules.get(key[0]) is module and body is (
            found.fn if isinstance(found, BodyWrapper) else found
        ):
            return body
    body, _ = transport.resolve(
        fn,
        registry=rules.registry,
        allow_pickled=rules.allow_pickled,
        runtime_policy=rules.runtime_policy,
        trusted=rules.trusted,
        allow_modules=rules.allow_modules,
    )
    module = sys.modules.get(key[0]) if plain else None
    if module is not None:
        if len(rules.known) >= KNOWN:
            rules.known.clear()
        rules.known[key] = module, body
    return body


_NO_ARGS: Final = wire.pack([])
_NO_KWARGS: Final = wire.pack({})


def _arguments(envelope: wire.Envelope) -> tuple[list[Any], dict[str, Any]]:
    if envelope.args == _NO_ARGS and envelope.kwargs == _NO_KWARGS:
        return [], {}
    args, kwargs = wire.unpack(envelope.args), wire.unpack(envelope.kwargs)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UnpackError("the envelope's args are no list, or its kwargs no dict; submit it with `q.submit`")
    return args, kwargs


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
