"""The routes as an OpenAPI document; a test holds it against the routes there are.

Bodies are msgpack; the schemas say what they hold, with ``format: binary`` for what JSON has no type for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from lakeshore.planes import protocol
from lakeshore.planes.contract import LONGEST_SPAN
from lakeshore.planes.protocol import BODY_LIMIT, FRAMES, MSGPACK, ROWS, Route
from lakeshore.planes.protocol_files import FILE, FILE_PATH, LOOKUP, OBJECT_BYTES, PRESIGN, REGISTER
from lakeshore.planes.protocol_values import SMALL_LIMIT
from lakeshore.server.code_repos import LINE_BYTES
from lakeshore.server.page import ASSETS
from lakeshore.server.storages import JSON_BYTES, KEY_BYTES
from lakeshore.version import __version__

Schema = dict[str, Any]
_JSON: Final = "application/json"
_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
_TEXT: Final[Schema] = {"type": "string"}
_ANY: Final[Schema] = {}
_NAME: Final[Schema] = {
    "type": "string",
    "description": "1 to 255 bytes of UTF-8 without control characters.",
    "format": "name",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]{1,255}$",
}
_LINE: Final[Schema] = {
    "type": "string",
    "description": f"1 to {LINE_BYTES:,} bytes of UTF-8, all of them printable.",
    "format": "line",
    "minLength": 1,
    "maxLength": LINE_BYTES,
    "pattern": r"^[^\u0000-\u001f\u007f-\u00a0]+$",
}
_KEY: Final[Schema] = {
    "type": "string",
    "description": f"A relative path that does not climb: {KEY_BYTES:,} bytes of UTF-8, 255 a part, at most.",
    "format": "key",
    "minLength": 1,
    "maxLength": KEY_BYTES,
    "pattern": r"^(?![A-Za-z]:)[^/\\\u0000]{1,255}(?:/[^/\\\u0000]{0,255}){0,254}$",
}
_MAYBE_ID: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{0,128}$"}
_MAYBE_NAME: Final[Schema] = {
    "type": "string",
    "description": "At most 255 bytes of UTF-8 without control characters.",
    "format": "name-or-nothing",
    "maxLength": 255,
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$",
}
_ID: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
_FLAG: Final[Schema] = {"type": "boolean"}
_WHOLE: Final[Schema] = {"type": "integer"}
_SEQ: Final[Schema] = {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**62}
_SIZE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_SPAN: Final[Schema] = {**_SECONDS, "maximum": LONGEST_SPAN}
_STATE: Final[Schema] = {"enum": ["queued", "running", "succeeded", "failed", "cancelled"]}
_MAP: Final[Schema] = {"type": "object"}
_ERROR: Final[Schema] = {
    "type": "object",
    "properties": {"type": _TEXT, "message": _TEXT, "traceback": {"type": ["string", "null"]}},
}
_REFUSED: Final = {
    "400": "A field cannot be; the message names it.",
    "401": "No token, or none that is good.",
    "403": "A token of another role, or a page of another site.",
    "404": "Nothing here, or nothing that this token may see.",
    "405": "Another method.",
    "408": "The body came too slowly.",
    "409": "The claim is lost, or the id is taken.",
    "412": "The file is no longer the one of If-Match.",
    "413": "The body is over the limit.",
    "416": "The file has no such bytes.",
    "429": "Too many open streams or unfinished uploads; see Retry-After.",
    "500": "A fault of the server's; its log says more.",
    "503": "The store or the storage is away; see Retry-After.",
    "507": "The storage is full.",
}
_PAYLOADS: Final = (protocol.SUBMIT, protocol.SUBMIT_MANY, protocol.ACK, protocol.CHUNK)


def _maybe(schema: Schema) -> Schema:
    """Return a schema that takes null, too, as an absent field is taken."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*kinds, "null"]}
    return schema


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    properties = {**required, **{name: _maybe(each) for name, each in (optional or {}).items()}}
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


_SPEC: Final = {
    "kind": {"enum": ["fifo", "priority", "filo", "boltzmann"]},
    "temperature": _SECONDS,
    "lease": _SPAN,
}
_CONFIG: Final = _object({}, {"queue": _ANY, "priority": {"type": "number"}, "key": _NAME})
_MORE: Final = {"run_config": _CONFIG, "parent_invocation_id": _ID, "delay": _SPAN}
_SUBMISSION: Final = _object({"invocation_id": _ID, "queue": _NAME, "args_blob": _BYTES}, _MORE)
_ITEM: Final = _object({"invocation_id": _ID, "args_blob": _BYTES}, _MORE)
_CLAIM: Final = {
    "namespace": _NAME,
    "worker_id": _NAME,
    "fence": {"type": "integer", "minimum": 0, "maximum": 2**62},
}
_COMMANDS: Final = _list(
    _object({"kind": _TEXT, "body": _object({"invocation_id": _ID, "args_blob": _BYTES, "attempt": _WHOLE})})
)
_ROW: Final = _object({"id": _ID, "ns": _NAME, "queue": _NAME, "state": _STATE})
_OK: Final = _object({"ok": _FLAG})
_COUNT: Final = _object({"count": _WHOLE})

_NEXT: Final = _object({"queue": _NAME}, _SPEC)
_ENDING: Final = {**_CLAIM, "next": _NEXT}
_SUCCEEDED: Final = _object(
    {"invocation_id": _ID, "state": {"const": "succeeded"}},
    {**_ENDING, "result_blob": _BYTES, "frame": _BYTES},
)
_FAILED: Final = _object(
    {"invocation_id": _ID, "state": {"const": "failed"}}, {**_ENDING, "error": _ERROR, "delay": _SPAN}
)
# route, what it does, query, body, answer
_ROUTES: Final[list[tuple[Route, str, Mapping[str, Schema], Schema | None, Schema]]] = [
    (protocol.SUBMIT, "Queue one job.", {}, _SUBMISSION, _object({"invocation_id": _ID})),
    (
        protocol.SUBMIT_MANY,
        "Queue many jobs in one transaction.",
        {},
        _object({"queue": _NAME, "items": _list(_ITEM)}),
        _object({"invocation_ids": _list(_ID)}),
    ),
    (
        protocol.AWAIT,
        "Wait for a job to end.",
        {},
        _object({"invocation_id": _ID}, {"timeout_s": _SECONDS, "accept_result_ref": _ANY}),
        _object({"state": _maybe(_TEXT)}, {"result_blob": _BYTES, "error": _ERROR}),
    ),
    (protocol.GET, "Return a job's row.", {}, None, _ROW),
    (protocol.ENVELOPE, "Return what was submitted.", {}, None, _object({"envelope": _BYTES})),
    (
        protocol.INVOCATIONS,
        "List jobs, newest first.",
        {
            "queue": _NAME,
            "state": _STATE,
            "limit": {"type": "integer", "minimum": 0},
            "before": _ID,
        },
        None,
        _object({"invocations": _list(_ROW)}),
    ),
    (protocol.QUEUES, "Count jobs by queue and state.", {}, None, _object({"queues": _MAP})),
    (
        protocol.COUNT,
        "Count a queue's jobs in one state.",
        {"state": _STATE, "format": {"enum": ["msgpack", "json"]}},
        None,
        _COUNT,
    ),
    (
        protocol.WORKERS,
        "List the workers that asked for jobs.",
        {"queue": _NAME},
        None,
        _object({"workers": _list(_MAP)}),
    ),
    (protocol.CANCEL, "End a queued or running job as cancelled.", {}, _MAP, _OK),
    (protocol.REQUEUE, "Queue a failed or cancelled job again.", {}, _MAP, _OK),
    (
        protocol.PRUNE,
        "Delete what ended long ago.",
        {},
        _object(
            {"older_than": _SECONDS},
            {
                "states": _list({"enum": ["succeeded", "failed", "cancelled"]}),
                "limit": _SIZE,
            },
        ),
        _COUNT,
    ),
    (
        protocol.TRIM,
        "Drop all but the last frames of a journal.",
        {},
        _object({}, {"keep_last": _SIZE}),
        _COUNT,
    ),
    (
        protocol.POLL,
        "Claim jobs, waiting for one.",
        {},
        _object(
            {"worker_id": _NAME, "queue": _NAME},
            {
                **_SPEC,
                "timeout_s": _SECONDS,
                "namespace": _NAME,
                "capacity": {"type": "integer", "minimum": 1, "maximum": 1000},
            },
        ),
        _object({"commands": _COMMANDS}),
    ),
    (
        protocol.ACK,
        "End a job.",
        {},
        {"anyOf": [_SUCCEEDED, _FAILED]},
        _object({"ok": _FLAG, "commands": _COMMANDS}),
    ),
    (
        protocol.LOOK,
        "Look at many journals and rows at once.",
        {},
        _object(
            {},
            {
                "journals": {
                    "type": "array",
                    "maxItems": 1000,
                    "items": {
                        "type": "array",
                        "prefixItems": [_NAME, {**_SEQ, "minimum": -1}, _FLAG],
                        "minItems": 3,
                        "maxItems": 3,
                    },
                },
                "rows": {
                    "type": "array",
                    "maxItems": 1000,
                    "items": {
                        "type": "array",
                        "prefixItems": [_ID, {"type": ["integer", "null"]}],
                        "minItems": 2,
                        "maxItems": 2,
                    },
                },
                "timeout_s": _SECONDS,
            },
        ),
        _object({"journals": _MAP, "rows": _MAP}),
    ),
    (
        protocol.CHUNK,
        "Append frames to a journal.",
        {},
        _object({"invocation_id": _NAME, "bytes": _BYTES}, {**_CLAIM, "seq": _SEQ, "final": _FLAG}),
        _object({"seq": _WHOLE, "duplicate": _FLAG}),
    ),
    (
        protocol.HEARTBEAT,
        "Extend a lease.",
        {},
        _object({"invocation_id": _ID}, {**_CLAIM, "lease": _SPAN}),
        _OK,
    ),
    (protocol.RELEASE, "Hand a job back unharmed.", {}, _object({"invocation_id": _ID}, _CLAIM), _OK),
]
_STREAM_QUERY: Final[dict[str, Schema]] = {
    "since": {"type": "integer", "minimum": -1, "exclusiveMaximum": 2**62},
    "wait": {"enum": ["0"]},
}
_VIEW: Final[dict[str, Schema]] = {
    **dict.fromkeys(("ns", "queue", "find"), _MAYBE_NAME),
    "jobs": _TEXT,
    **dict.fromkeys(("before", "job"), _MAYBE_ID),
    "state": {"enum": [*_STATE["enum"], ""]},
}
_FILE_HEADERS: Final = {"GET": ("Range", "If-Match"), "PUT": ("Content-Range", "Repr-Digest")}
_FILES: Final[list[tuple[Route, str, Mapping[str, Schema], Schema | None]]] = [
    (LOOKUP, "Find stored code.", {"remote": _LINE, "commit": _LINE}, None),
    (
        REGISTER,
        "Keep a row of stored code.",
        {},
        _object(
            {"remote": _LINE, "commit": _LINE, "archiveKey": _KEY},
            {
                "branch": _LINE,
                "storageName": _LINE,
                "sizeBytes": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63},
                "backend": _LINE,
                "submodules": {"type": ["array", "object"]},
                "dirty": _FLAG,
            },
        ),
    ),
    (
        PRESIGN,
        "Sign a URL for a file.",
        {},
        _object(
            {"key": _KEY, "operation": {"enum": ["get", "put"]}},
            {
                "expiresIn": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
                "sizeBytes": {"type": "integer", "minimum": 0, "maximum": OBJECT_BYTES},
            },
        ),
    ),
]


@cache
def document(*, auth: bool) -> dict[str, Any]:
    """Return the document; `auth` says whether requests want a token."""
    paths: dict[str, Any] = {}
    for route, told, query, body, answer in _ROUTES:
        told_in = {MSGPACK: answer, _JSON: answer} if "format" in query else {MSGPACK: answer}
        _add(paths, route, told, query, body, MSGPACK, told_in)
    for route, told, query, body in _FILES:
        _add(paths, route, told, query, body, _JSON, {_JSON: _MAP})
    _add(paths, protocol.STREAM, "Follow a journal.", _STREAM_QUERY, None, "", {FRAMES: _BYTES, ROWS: _BYTES})
    for path, told in (
        ("/healthz", "Alive."),
        ("/readyz", "The store answers."),
        ("/openapi.json", "This document."),
    ):
        _add(paths, Route("GET", path), told, {}, None, "", {_JSON: _MAP}, public=True)
    page = {"text/html": _TEXT}
    _add(paths, Route("GET", "/"), "The web page.", {}, None, "", page, public=True)
    for name, kind in ASSETS.items():
        _add(paths, Route("GET", f"/page/{name}"), "A file of it.", {}, None, "", {kind: _TEXT}, public=True)
    _add(paths, Route("GET", "/page/view"), "The part of the page that changes.", _VIEW, None, "", page)
    _add_file(paths)
    _add(paths, Route("GET", "/metrics"), "Metrics for Prometheus.", {}, None, "", {"text/plain": _TEXT})
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "lakeshore control plane",
            "version": __version__,
            "description": "Durable jobs over HTTP. Bodies are msgpack; errors JSON or msgpack by Accept.",
        },
        "paths": paths,
    }
    if auth:
        made["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        made["security"] = [{"token": []}]
    return made


def _add_file(paths: dict[str, Any]) -> None:
    """Describe what a signed URL leads to; it is its own proof, and wants no token."""
    for method, told in (("GET", "Read a stored file."), ("PUT", "Store a file, or a part of one.")):
        body = _BYTES if method == "PUT" else None
        kind = {FILE: _BYTES} if method == "GET" else {_JSON: _MAP}
        _add(paths, Route(method, FILE_PATH), told, {}, body, FILE, kind, public=True)
        operation = paths[FILE_PATH][method.lower()]
        operation["parameters"][0]["schema"] = _TEXT
        operation["parameters"] += [
            {"name": name, "in": "header", "schema": _TEXT} for name in _FILE_HEADERS[method]
        ]
        refusals = operation["responses"]
        for status in ("403", "404", "408", "412", "413", "416", "429", "507"):
            refusals[status] = {**refusals["400"], "description": _REFUSED[status]}
        if method == "GET":
            refusals["206"] = {"description": "The bytes of Range.", "content": {FILE: {"schema": _BYTES}}}
            for status in ("412", "416"):
                refusals[status] = {"description": _REFUSED[status]}
        else:
            refusals["202"] = {
                "description": "Parts are missing; Range says what there is.",
                "content": {_JSON: {"schema": _MAP}},
            }
        refusals["403"]["description"] = "A URL that this server did not sign, or whose time is over."


def _too_large(route: Route) -> str:
    if route.method == "PUT":
        return "The file, or the part, is over the limit that its URL allows."
    if route in _PAYLOADS:
        return f"The body is over the server's limit; {BODY_LIMIT:,} bytes where no other was set."
    most = JSON_BYTES if route in (PRESIGN, REGISTER) else SMALL_LIMIT
    return f"The body is over {most:,} bytes, the most of a call that carries no payload."


def _add(
    paths: dict[str, Any],
    route: Route,
    told: str,
    query: Mapping[str, Schema],
    body: Schema | None,
    media: str,
    answers: Mapping[str, Schema],
    *,
    public: bool = False,
) -> None:
    ids = {"id"} if "/invocations/" in route.template and route is not protocol.STREAM else frozenset()
    error = {"schema": _object({"error": _object({"code": _TEXT, "message": _TEXT})})}
    refused = {"400", "403", "405", "500", "503"} if public else _REFUSED.keys() - {"412", "416", "507"}
    operation: dict[str, Any] = {
        "summary": told,
        "operationId": f"{route.method.lower()}{re.sub('[^a-z]+', '_', route.template)}".strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _ID if name in ids else _NAME}
            for name in re.findall(r"\{(\w+)\}", route.template)
        ]
        + [
            {"name": name, "in": "query", "schema": schema, "required": route is LOOKUP}
            for name, schema in query.items()
        ],
        "responses": {
            "200": {
                "description": told,
                "content": {kind: {"schema": each} for kind, each in answers.items()},
            },
            **{
                status: {
                    "description": _too_large(route) if status == "413" else _REFUSED[status],
                    "content": {_JSON: error, MSGPACK: error},
                }
                for status in sorted(refused)
            },
        },
    }
    if body is not None:
        wanted = body is not _MAP and body.get("required") != []
        operation["requestBody"] = {"required": wanted, "content": {media: {"schema": body}}}
    if public:
        operation["security"] = []
    paths.setdefault(route.template, {})[route.method.lower()] = operation
