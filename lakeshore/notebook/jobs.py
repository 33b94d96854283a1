"""Jobs as the user names them: a REF resolved to ids, and waits that Ctrl-C ends at once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lakeshore import wire
from lakeshore.errors import (
    Detached,
    InvocationCancelled,
    InvocationFailed,
    UnknownInvocation,
    UnpackError,
    WaitTimeout,
)
from lakeshore.notebook.tables import ago, span
from lakeshore.planes.contract import Plane, check_id
from lakeshore.queues.encoding import decode
from lakeshore.queues.stream import Stream

LOOK = 0.2
"""Seconds between two looks of a wait: what Ctrl-C has to put up with."""
SCAN = 10_000
"""Rows, newest first, in which a prefix or a key is looked for."""


def resolve(plane: Plane, ref: str, namespace: Mapping[str, Any]) -> list[str]:
    """Return the ids that a REF means.

    Parameters
    ----------
    ref : str
        A variable that holds an id or a shape of ids, an id, a unique prefix of one, or a key.
    namespace : mapping
        The notebook's names.

    Raises
    ------
    UnknownInvocation
        When nothing fits, or a prefix fits several.
    """
    if ref.isidentifier() and ref in namespace:
        found = list(ids_in(namespace[ref]))
        if found and all(plane.get(id) is not None for id in found):
            return found
    if _is_id(ref) and plane.get(ref) is not None:
        return [ref]
    prefixed: list[str] = []
    keyed: list[str] = []
    for row in scan(plane):
        if row["id"].startswith(ref.upper()) or row["id"].startswith(ref):
            prefixed.append(row["id"])
        if row["key"] == ref:
            keyed.append(row["id"])
    found = prefixed or keyed
    if len(found) == 1:
        return found
    if found:
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise UnknownInvocation(f"{ref!r} fits {len(found)} jobs: {shown}. Write more of the id.")
    held = ""
    if ref in namespace:
        ids = list(ids_in(namespace[ref]))
        held = f" (the variable {ref} holds no id)"
        if ids:
            held = f" (the variable {ref} holds {ids[0]}, of no job on {plane!r})"
    raise UnknownInvocation(
        f"{ref!r} is no id, prefix, variable or key of a job here{held}. "
        "See %lakeshore ls; %lakeshore plane says which plane this is, and goes to another"
    )


def one(ref: str, ids: Sequence[str]) -> str:
    """Return the one id that a REF means.

    Raises
    ------
    UnknownInvocation
        When it means several.
    """
    if len(ids) > 1:
        raise UnknownInvocation(f"{ref} holds {len(ids)} ids; this takes one: {ids[0]}, …")
    return ids[0]


def ids_in(value: object) -> Iterator[str]:
    """Yield the ids in a value: text, something with an `id`, or a list, tuple or dict of these."""
    if isinstance(value, str):
        if _is_id(value):
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from ids_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from ids_in(item)
    elif not isinstance(value, type) and isinstance(getattr(value, "id", None), str):
        yield from ids_in(getattr(value, "id", None))


def _is_id(text: str) -> bool:
    try:
        check_id(text)
    except ValueError:
        return False
    return True


def scan(
    plane: Plane, queue: str | None = None, *, state: str | None = None, limit: int = SCAN
) -> Iterator[dict[str, Any]]:
    """Yield rows, newest first, up to `limit`."""
    before: str | None = None
    while limit > 0:
        rows = plane.invocations(queue, state=state, limit=min(500, limit), before=before)
        yield from rows
        if len(rows) < min(500, limit):
            return
        limit -= len(rows)
        before = rows[-1]["id"]


def wait(plane: Plane, ids: Sequence[str], *, timeout: float = math.inf) -> list[Any]:
    """Wait until all jobs have ended and return their results.

    Parameters
    ----------
    timeout : float
        Seconds to wait at most.

    Raises
    ------
    InvocationFailed, InvocationCancelled
        When a job ended so: the first of them, once all have ended.
    WaitTimeout
        After `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    results: list[Any] = []
    failure: Exception | None = None
    for id in ids:
        while True:
            left = deadline - time.monotonic()
            try:
                results.append(decode(plane.result(id, timeout=max(0.0, min(LOOK, left)))))
            except (InvocationFailed, InvocationCancelled) as error:
                failure = failure or error
            except WaitTimeout:
                if left > LOOK:
                    continue
                raise _too_long(plane, ids, timeout) from None
            break
    if failure is not None:
        raise failure
    return results


@contextlib.contextmanager
def interruptible(plane: Plane, ids: Sequence[str], on_interrupt: str = "detach") -> Iterator[None]:
    """Let Ctrl-C end what is inside with a word on the jobs.

    Parameters
    ----------
    ids : sequence of str
        The jobs that are looked at.
    on_interrupt : {"detach", "cancel"}
        What Ctrl-C does to those that have not ended.

    Raises
    ------
    Detached
        On Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:  # a panel's own word on it, too, which names one job of several
        raise _let_go(plane, ids, on_interrupt) from None


def _too_long(plane: Plane, ids: Iterable[str], timeout: float) -> WaitTimeout:
    open_ids = _open(plane, ids)
    which = open_ids[0] if len(open_ids) == 1 else f"{len(open_ids)} jobs"
    rows = [plane.get(id) for id in open_ids[:1]]
    state = "queued" if rows and rows[0] is not None and rows[0]["state"] == "queued" else "running"
    return WaitTimeout(
        f"after {span(timeout)} {which} still {state}; %lakeshore wait {' '.join(open_ids[:1])} goes on"
    )


def _open(plane: Plane, ids: Iterable[str]) -> list[str]:
    rows = [plane.get(id) for id in ids]
    return [row["id"] for row in rows if row is not None and row["state"] in ("queued", "running")]


def _let_go(plane: Plane, ids: Sequence[str], on_interrupt: str) -> Detached:
    open_ids = _open(plane, ids)
    if on_interrupt == "cancel":
        done = [id for id in open_ids if plane.cancel(id)]
        again = f"; %lakeshore requeue {done[0]} runs it again" if len(done) == 1 else ""
        return Detached(f"cancelled: {' '.join(done) or 'nothing, all had ended'}{again}")
    if not open_ids:
        return Detached("detached: all had ended")
    if any((plane.get(id) or {}).get("state") != "queued" for id in open_ids):
        return Detached.of(*open_ids)
    shown = " ".join(open_ids[:8]) + (" …" if len(open_ids) > 8 else "")
    still = (
        "still runs once a worker takes it" if len(open_ids) == 1 else "still run once a worker takes them"
    )
    return Detached(f"detached: {shown} {still}; {Detached.command} {shown}")


def shaped(shape: object, leaves: Iterator[Any]) -> Any:
    """Return a shape of ids with each id replaced by the next of `leaves`."""
    if isinstance(shape, Mapping):
        return {key: shaped(item, leaves) for key, item in shape.items()}
    if isinstance(shape, (list, tuple)):
        return type(shape)(shaped(item, leaves) for item in shape)
    return next(leaves)


def log_lines(plane: Plane, id: str) -> Iterator[str]:
    """Yield what a job has printed so far; a display as its text."""
    stream = Stream(plane, id, timeout=0, journal=f"{id}.log", raises=False)
    try:
        for value in stream:
            if "text" in value:
                yield str(value["text"])
            else:
                shown = value.get("display") or {}
                yield f"{shown.get('text/plain') or '(a display: ' + ', '.join(shown) + ')'}\n"
    except WaitTimeout:
        return


def envelope_of(plane: Plane, id: str) -> wire.Envelope | None:
    """Return what a job calls; None for a plain payload, which a program claims by hand."""
    try:
        return wire.Envelope.from_bytes(plane.envelope(id) or b"")
    except UnpackError:
        return None


def describe(row: Mapping[str, Any]) -> str:
    """Write a job's state and age: ``succeeded, submitted 3 min ago``."""
    return f"{row['state']}, submitted {ago(row['submitted_at'])}"
