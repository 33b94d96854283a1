"""One body through its steps: gates and resolve, context, call, pack.

A failure becomes an outcome; nothing is raised from here but a lost claim.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakeshore import wire
from lakeshore.context import RunContext, current, job_context
from lakeshore.errors import (
    ClaimLost,
    DispatchError,
    KeyContractError,
    LakeshoreError,
    PackError,
    PickleRefused,
    RuntimeMismatch,
    StaleSource,
    TransportError,
    UnpackError,
)
from lakeshore.functions import transport
from lakeshore.functions.body import BodyWrapper, run_body
from lakeshore.keys import strings
from lakeshore.planes.contract import Claimed
from lakeshore.worker import display, forks
from lakeshore.worker.guard import Guard
from lakeshore.worker.options import Rules
from lakeshore.worker.outcomes import Done, Failed, Outcome, Stopped, failed, user_traceback

if TYPE_CHECKING:
    from lakeshore.codebase.mount import Mount

KNOWN: Final = 1000
"""References that a worker remembers."""
_LOOKED_AT: Final = 20
"""Items of a refused result that are looked at for a drawing."""


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
        "_published",
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
        self._published: set[str] = set()
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
        remote = self._rules.remote
        if remote is None:
            return self._in_place(None)
        try:
            with remote.mounted(self._envelope.cfg) as mount:
                return self._in_place(mount)
        except TransportError as exc:
            if exc.code == "archive_refused":
                return failed(exc, refused=True)
            raise

    def _in_place(self, mount: Mount | None) -> Done | Failed:
        """Go on with the job's own code first on the path."""
        rules, envelope = self._rules, self._envelope
        try:
            fn = _resolved(envelope.fn, rules, mount)
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
                on_missing=None if rules.remote is None else rules.remote.fetch,
                cancelled=self._guard.stopping,
            )
        except KeyContractError as exc:
            return failed(exc, refused=True)
        with context as run:
            value = run_body(fn, args, kwargs, emit=self.emit, check=self.check, forked=forks.end)
            self._publish(run)
        try:
            return Done(wire.pack(value, limit=rules.max_payload), self.frames)
        except PackError as exc:
            raise self._refused_value(exc, value) from None

    def _publish(self, run: RunContext, keys: Iterable[str] | None = None) -> None:
        """Send the files that the body wrote to where other machines read them: all, or those of `keys`."""
        remote = self._rules.remote
        if remote is None or self._away():
            return
        written = [full for full in run.written() if full not in self._published]
        if keys is not None:
            given = set(keys)
            written = [full for full in written if given & {full, posixpath.relpath(full, run.prefix or ".")}]
        claimed = self._claimed
        remote.publish(claimed.id, claimed.fence, run.root, written, self._guard.stopping)
        self._published.update(written)

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
        if self._rules.remote is not None:
            self._publish(current(), strings(value))  # who reads the stream may read the file at once
        try:
            frames = wire.value_frames(value, self.frames, limit=self._rules.max_payload)
        except PackError as exc:
            raise self._refused_value(exc, value) from None
        try:
            self._sinks.values(frames)
        except ClaimLost as exc:
            self.refused_frame = exc
            raise
        self.frames += len(frames)

    def _refused_value(self, exc: PackError, value: Any) -> PackError:
        """Note that no try can give this value, and leave a look at it in the log: it may be a day's work."""
        way_out = _way_out(value) if "no codec for" in str(exc) else ""
        refused = self.refused = PackError(f"{exc}{way_out}")
        if not self._away():
            try:
                self._sinks.display(display.last_look(value))
            except Exception as odd:  # noqa: BLE001 - the value's own code ran; the refusal is what is told
                print(f"[lakeshore: its display raised {type(odd).__name__}]", file=sys.stderr)  # noqa: T201
        return refused

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


def _way_out(value: Any) -> str:
    """Return what to do with an object that is no data: a drawing, or one that was fitted or built."""
    parts = [value, *value[:_LOOKED_AT]] if isinstance(value, (list, tuple)) else [value]
    if isinstance(value, dict):
        parts += list(value.values())[:_LOOKED_AT]
    if any(type(part).__module__.startswith("matplotlib.") for part in parts):
        return (
            ". A figure is shown in the job's log as it is: return nothing of it. To keep it as a file: "
            "fig.savefig(run.write('fig.png')), then return 'fig.png'"
        )
    if type(value).__module__ in ("builtins", "collections"):
        return ""
    return ". To keep the object itself, pickle it into run.write('it.pkl') and return 'it.pkl'"


def _resolved(fn: Mapping[str, Any], rules: Rules, mount: Mount | None) -> Callable[..., Any]:
    """Return the body that an envelope names, through the gates.

    On a trusted plane a reference passes them once: what it led to is known while its module holds that
    very function under that very name.
    """
    module, name, src_hash = fn.get("module"), fn.get("qualname"), fn.get("src_hash")
    plain = rules.trusted and not rules.registry and mount is None and fn.get("kind") == "ref"
    if not (plain and isinstance(module, str) and isinstance(name, str) and isinstance(src_hash, str)):
        return _through_the_gates(fn, rules, mount)
    key = (module, name, src_hash)
    known = rules.known.get(key)
    if known is not None:
        here, body = known
        found = here.__dict__.get(name)
        if sys.modules.get(module) is here and body is (
            found.fn if isinstance(found, BodyWrapper) else found
        ):
            return body
    body = _through_the_gates(fn, rules)
    if module in sys.modules:
        if len(rules.known) >= KNOWN:
            rules.known.clear()
        rules.known[key] = sys.modules[module], body
    return body


def _through_the_gates(fn: Mapping[str, Any], rules: Rules, mount: Mount | None = None) -> Callable[..., Any]:
    body, _ = transport.resolve(
        fn,
        registry=rules.registry,
        allow_pickled=rules.allow_pickled,
        runtime_policy=rules.runtime_policy,
        trusted=rules.trusted,
        allow_modules=rules.allow_modules,
        mount=mount,
    )
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
