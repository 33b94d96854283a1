"""What a submit puts on the plane: an envelope for a call, packed bytes for a plain payload."""

from __future__ import annotations

import inspect
import reprlib
from typing import Any, Protocol

from lakeshore import settings, wire
from lakeshore.context import ambient
from lakeshore.errors import PackError
from lakeshore.planes.contract import Plane, Submission, check_id

MISSING: Any = object()
"""Stands for an argument that was not given, where None is a value."""


class Invocable(Protocol):
    """What can be submitted as a call; `lakeshore.Thunk` is one."""

    def __envelope__(
        self, *, id: str, plane: Plane, key: str | None, parent: str | None, shared: dict[Any, Any] | None
    ) -> wire.Envelope:
        """Return the envelope that invokes this call as invocation `id`.

        Calls of one batch get the same `shared`, in which they keep what they have in common.
        """
        ...


def new_id() -> str:
    """Make an invocation id: a ULID, sortable by time of submission."""
    from ulid import ULID  # 40 ms, which a worker need not spend

    return str(ULID())


def submission(
    payload: Any,
    *more: object,
    plane: Plane,
    envelope: bytes | None = None,
    id: str | None = None,
    key: str | None = None,
    priority: float = 0.0,
    parent: str | None = None,
    delay: float = 0.0,
    shared: dict[Any, Any] | None = None,
) -> Submission:
    """Build what `Plane.submit` stores, within the payload limit; `shared` is one dict for a batch.

    Raises
    ------
    PackError
        When the payload has no form on the wire, or is over the limit.
    TypeError
        When both or neither of `payload` and `envelope` are given, or more than one payload.
    """
    if more:
        name = getattr(payload, "__name__", "")
        given = ", ".join([name if name.isidentifier() else "f", *map(reprlib.repr, more)])
        raise TypeError(
            f"submit: takes one job, got {1 + len(more)} arguments. A call is one: q.submit(thunk({given}))"
        )
    if (payload is MISSING) == (envelope is None):
        raise TypeError("submit: wants either a payload or envelope=, not both and not neither")
    id = new_id() if id is None else check_id(id)
    if parent is None:
        parent = ambient()[1]
    if envelope is None:
        if hasattr(type(payload), "__envelope__"):  # an Invocable; isinstance would cost 9 us
            made = payload.__envelope__(id=id, plane=plane, key=key, parent=parent, shared=shared)
            envelope = made.to_bytes()
        else:
            envelope = _packed(payload)
    limit = settings.max_payload()
    if len(envelope) > limit:
        raise PackError(
            f"submit: the job is {len(envelope):,} bytes and the limit is {limit:,} (LAKESHORE_MAX_PAYLOAD). "
            "Write large data to a file (run.write) and pass its key."
        )
    return Submission(envelope=envelope, id=id, key=key, priority=priority, parent=parent, delay=delay)


def _packed(payload: Any) -> bytes:
    try:
        return wire.pack(payload)
    except PackError:
        if not (inspect.isgenerator(payload) or inspect.iscoroutine(payload) or inspect.isasyncgen(payload)):
            raise
    name, kind = payload.__name__, type(payload).__name__
    raise PackError(
        f"submit: {name}(...) was called here and gave a {kind}, which runs in this process only. Submit the "
        f"call instead: q.submit(thunk({name}, ...))"
    )


def decode(result: bytes) -> Any:
    """Read a result; a plane's empty result is None."""
    return wire.unpack(result) if result else None
