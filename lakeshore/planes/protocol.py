"""The control plane's protocol: routes, bodies, errors as statuses; client and server both import it.

Routes that are not `ours` keep exactly the paths and bodies of clients and servers in the field: a field
that is absent takes its default, one that is unknown is ignored. No function here decodes a user's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgpack

from lakeshore import wire
from lakeshore.errors import (
    ClaimLost,
    DispatchError,
    InvocationFailed,
    LakeshoreError,
    NotSupported,
    PlaneUnavailable,
    UnknownInvocation,
    UnpackError,
)
from lakeshore.planes.contract import Claimed, ClaimSpec, Submission, check_span
from lakeshore.planes.protocol_values import LONGEST, MOST_VALUES, SMALL_LIMIT, Counted
from lakeshore.states import State

HEADER: Final = "Lakeshore-Protocol"
VERSION: Final = "1"
FINISHED: Final = "Lakeshore-Finished"
"""Answer header of a stream whose journal was finished when the answer began: its end is the end."""
MSGPACK: Final = "application/x-msgpack"
FRAMES: Final = "application/x-msgpack-stream"
ROWS: Final = "application/x-lakeshore-rows"
HOLD_SECONDS: Final = 30.0
"""The longest a poll is held."""
KEEPALIVE_SECONDS: Final = 15.0
"""A stream of rows sends a nil when nothing else was sent for so long."""
BODY_LIMIT: Final = 64 * 1024 * 1024
"""What a control plane takes in one body unless told otherwise."""
_SHOWN_VALUES: Final = 100_000
NONCE_BYTES: Final = 16
"""A call that carries a nonce lands once, however often it is repeated with `again`."""
DOTS: Final = frozenset({".", ".."})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes
    ----------
    method, template : str
        ``"POST"`` and a path with ``{names}``; each name is one percent-encoded segment.
    ours : bool
        Only servers that send `HEADER` have it.
    """

    method: str
    template: str
    ours: bool = False

    def path(self, **names: str) -> str:
        """Return the path for these names.

        Raises
        ------
        ValueError
            When a name is ``.`` or ``..``: no encoding keeps those from climbing.
        """
        for name, value in names.items():
            if value in DOTS:
                raise ValueError(f"{name} {value!r}: cannot be part of a URL. Use another name.")
        return self.template.format(**{name: quote(value, safe="") for name, value in names.items()})


_NS = "/v1/namespaces/{ns}"
SUBMIT: Final = Route("POST", f"{_NS}/producer/submit")
SUBMIT_MANY: Final = Route("POST", f"{_NS}/producer/submit-many", ours=True)
AWAIT: Final = Route("POST", f"{_NS}/producer/await")
STREAM: Final = Route("GET", f"{_NS}/producer/invocations/{{id}}/result/stream")
GET: Final = Route("GET", f"{_NS}/invocations/{{id}}", ours=True)
ENVELOPE: Final = Route("GET", f"{_NS}/invocations/{{id}}/envelope", ours=True)
INVOCATIONS: Final = Route("GET", f"{_NS}/invocations", ours=True)
QUEUES: Final = Route("GET", f"{_NS}/queues", ours=True)
COUNT: Final = Route("GET", f"{_NS}/queues/{{queue}}/count", ours=True)
WORKERS: Final = Route("GET", f"{_NS}/workers", ours=True)
CANCEL: Final = Route("POST", f"{_NS}/invocations/{{id}}/cancel", ours=True)
REQUEUE: Final = Route("POST", f"{_NS}/invocations/{{id}}/requeue", ours=True)
PRUNE: Final = Route("POST", f"{_NS}/prune", ours=True)
TRIM: Final = Route("POST", f"{_NS}/journals/{{id}}/trim", ours=True)
LOOK: Final = Route("POST", f"{_NS}/journals/read", ours=True)
POLL: Final = Route("POST", "/v1/daemon/poll")
ACK: Final = Route("POST", "/v1/daemon/ack")
CHUNK: Final = Route("POST", "/v1/daemon/result-chunk")
HEARTBEAT: Final = Route("POST", "/v1/daemon/heartbeat", ours=True)
RELEASE: Final = Route("POST", "/v1/daemon/release", ours=True)
GUARDED: Final = (ACK, CHUNK, HEARTBEAT, RELEASE)
"""Routes that want the caller's claim; 409 and 404 mean that it is lost."""


# -- bytes --------------------------------------------------------------------


def pack(body: Mapping[str, Any]) -> bytes:
    """Return a body as msgpack."""
    data: bytes = msgpack.packb(body, use_bin_type=True)
    return data


def unpack(data: bytes) -> dict[str, Any]:
    """Read a body.

    Raises
    ------
    ValueError
        When the bytes are no msgpack map, or hold more than `MOST_VALUES`.
    """
    counted = Counted(MOST_VALUES)
    try:
        body = counted.unpack(data)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as exc:
        if counted.over:
            raise ValueError(f"more than {MOST_VALUES:,} values, or {LONGEST:,} in one") from None
        raise ValueError(f"no msgpack ({type(exc).__name__})") from exc
    if not isinstance(body, dict):
        raise ValueError(f"wants a map, got {type(body).__name__}")
    return body


def field(body: Mapping[str, Any], name: str, kind: type[T] | tuple[type[T], ...], default: Any = ...) -> T:
    """Return a field of a body; nil and absent take the default, where there is one.

    Raises
    ------
    ValueError
        When it is missing without a default, or of another type; the message names it.
    """
    value = body.get(name)
    if value is None and default is not ...:
        return default  # type: ignore[no-any-return]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        wanted = " or ".join(each.__name__ for each in kinds)
        raise ValueError(f"{name}: wants {wanted}, got {type(value).__name__}")
    return value


# -- producers ----------------------------------------------------------------


def submit_body(queue: str, item: Submission) -> dict[str, Any]:
    """Return the body that submits `item`."""
    function, code = _shown(item.envelope)
    body: dict[str, Any] = {
        "invocation_id": item.id,
        "queue": queue,
        "function": function,
        "args_blob": item.envelope,
        "run_config": {"queue": queue, "priority": item.priority, "key": item.key},
        "code_context": code,
    }
    if item.parent is not None:
        body["parent_invocation_id"] = item.parent
    if item.delay:
        body["delay"] = item.delay
    return body


def read_said(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a submit body says beside its envelope, to be handed to the worker as it is.

    None where a worker is told the same without: what `submit_body` says follows from the envelope.
    """
    said = {name: body[name] for name in ("function", "run_config", "code_context") if name in body}
    envelope = body.get("args_blob")
    config = said.get("run_config")
    if not isinstance(envelope, bytes) or not isinstance(config, dict):
        return said or None
    function, code = _shown(envelope)
    same = said.get("function") == function and said.get("code_context") == code
    return None if same and config.keys() <= {"queue", "priority", "key"} else said


def read_submission(body: Mapping[str, Any]) -> tuple[str, Submission]:
    """Read the queue and the job of a submit body; raises `ValueError` naming the field."""
    config: dict[str, Any] = field(body, "run_config", dict, {})
    queue = field(body, "queue", str, None) or field(config, "queue", str)
    return queue, Submission(
        envelope=field(body, "args_blob", bytes),
        id=field(body, "invocation_id", str),
        key=field(config, "key", str, None),
        priority=float(field(config, "priority", (int, float), 0.0)),
        parent=field(body, "parent_invocation_id", str, None),
        delay=check_span(field(body, "delay", (int, float), 0.0), "delay"),
    )


def _shown(envelope: bytes) -> tuple[str, dict[str, Any]]:
    """Return what a control plane may show of a job: its function's name and its code-mount stamp."""
    try:
        if len(envelope) > SMALL_LIMIT:
            Counted(_SHOWN_VALUES).unpack(envelope)  # arguments are bytes in it, so it holds few values
        read = wire.Envelope.from_bytes(envelope)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException, UnpackError):
        return "payload", {}  # a plain payload, for a program that claims by hand
    code = read.cfg.get("code")
    return str(read.cfg.get("name") or read.fn.get("qualname") or ""), code if isinstance(code, dict) else {}


def outcome_body(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the answer of an await for this row; None for an unknown id."""
    if row is None:
        return {"state": None}
    state = row["state"]
    body: dict[str, Any] = {"state": "pending" if state == State.QUEUED else str(state)}
    if state == State.SUCCEEDED:
        body["result_blob"] = row["result"] or b""
    elif state == State.FAILED:
        failed = InvocationFailed.from_row(dict(row))
        body["error"] = {"type": failed.type, "message": failed.message, "traceback": failed.traceback}
    return body


_STATES: Final = {
    **{str(state): state for state in State},
    "pending": State.QUEUED,
    "killed": State.CANCELLED,
}


def read_state(body: Mapping[str, Any]) -> State | None:
    """Return the state of an await's answer, None for an unknown id; raises `ValueError`."""
    state = field(body, "state", str, None)
    if state is None:
        return None
    try:
        return _STATES[state]
    except KeyError:
        raise ValueError(f"state: wants one of {', '.join(_STATES)}, got {state[:40]!r}") from None


def read_error(body: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Return type, message and traceback of a body's `error`, whatever its shape."""
    error = body.get("error")
    if isinstance(error, Mapping):
        traceback = error.get("traceback")
        kind, message = str(error.get("type") or "Error"), str(error.get("message") or "")
        return kind, message, None if traceback is None else str(traceback)
    return "Error", "" if error is None else str(error), None


# -- workers ------------------------------------------------------------------


def spec_body(spec: ClaimSpec) -> dict[str, Any]:
    """Return what a claim asks for."""
    return {
        "queue": spec.queue,
        "kind": spec.kind,
        "temperature": float(spec.temperature),
        "lease": float(spec.lease),
    }


def read_spec(body: Mapping[str, Any], lease: float) -> ClaimSpec:
    """Read what a claim asks for; `lease` for one that names none. Raises `ValueError`."""
    return ClaimSpec(
        field(body, "queue", str),
        field(body, "kind", str, "fifo"),
        float(field(body, "temperature", (int, float), 1.0)),
        check_span(field(body, "lease", (int, float), lease), "lease"),
    )


def command(claimed: Claimed, said: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the command that hands a job to a worker; `said` as `read_said` returned it."""
    function, code = _shown(claimed.envelope)
    body = {
        "invocation_id": claimed.id,
        "args_blob": claimed.envelope,
        "attempt": claimed.attempt,
        "function": function,
        "run_config": {"queue": claimed.queue},
        "code_context": code,
        "fence": claimed.fence,
        "lease_expires_at": claimed.lease_expires_at,
        **(said or {}),
    }
    return {"kind": "run", "body": body}


def error_body(error: str | Mapping[str, Any], *, retry: bool, ours: bool = True) -> dict[str, Any]:
    """Return an ending's `error`, taken apart as `Plane.nack` documents it.

    A text that names no type travels with an empty one, which servers in the field would not take.
    """
    if isinstance(error, Mapping):
        kind, message, traceback = read_error({"error": error})
    else:
        told = InvocationFailed.from_row({"error": error, "id": None})
        kind, message, traceback = told.type, told.message, None
        if ours and message == error:
            kind = ""
    return {
        "type": _clean(kind),
        "message": _clean(message),
        "traceback": None if traceback is None else _clean(traceback),
        "retry": retry,
    }


def _clean(text: str) -> str:
    """Return `text` with lone surrogates as escapes, since UTF-8 has none."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_nack(body: Mapping[str, Any]) -> tuple[str | dict[str, Any], bool]:
    """Return `error` and `retry` of an ending as failed, as `Plane.nack` takes them."""
    error: dict[str, Any] = field(body, "error", dict, {})
    told: str | dict[str, Any] = error if error.get("type") else str(error.get("message") or "Error")
    return told, field(error, "retry", bool, True)


def row_item(seq: int, data: bytes) -> bytes:
    """Return one item of a stream of rows."""
    item: bytes = msgpack.packb([seq, data], use_bin_type=True)
    return item


KEEPALIVE: Final = msgpack.packb(None)


def frame_item(seq: int, data: bytes) -> bytes | None:
    """Return one row of a plain stream: a frame with the row's seq; None for an attempt's boundary."""
    try:
        again = wire.reseq(data, seq)
        opens = again[1] == wire.FrameKind.BEGIN
        if opens and "total" not in (wire.Frame.from_bytes(data).meta or {}):
            return None
    except UnpackError:
        return wire.Frame(wire.FrameKind.VALUE, seq, data).to_bytes()
    return again


# -- errors -------------------------------------------------------------------

STATUSES: Final[dict[str, int]] = {
    "bad_request": 400,
    "wrong_host": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "wrong_method": 405,
    UnknownInvocation.code: 404,
    NotSupported.code: 404,
    ClaimLost.code: 409,
    DispatchError.code: 409,
    "timeout": 408,
    "too_large": 413,
    "too_many": 429,
    LakeshoreError.code: 500,
    PlaneUnavailable.code: 503,
    "plane_moved": 503,
    "storage_full": 507,
}
"""Error code -> status."""
TRY_AGAIN: Final = frozenset({408, 425, 429, 502, 503, 504, *range(520, 528), 529, 530})
"""Statuses of a server or gateway that may answer when asked again."""
_RAISED: Final = {error.code: error for error in (ClaimLost, UnknownInvocation, NotSupported, DispatchError)}


def error_answer(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body that tell of an error a plane raised."""
    if isinstance(error, ValueError) and not isinstance(error, LakeshoreError):
        code = "bad_request"
    else:
        code = getattr(error, "code", LakeshoreError.code)
    return STATUSES.get(code, 500), {"error": {"code": code, "message": str(error)}}


def error_class(status: int, code: str) -> type[DispatchError]:
    """Return the class of the error that a status and code tell of."""
    if code in _RAISED:
        return _RAISED[code]
    if status == 409:
        return DispatchError
    return PlaneUnavailable if status >= 500 or status in TRY_AGAIN else DispatchError
