"""Answers: msgpack for what succeeded, JSON or msgpack by Accept for what did not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from lakeshore.errors import LakeshoreError
from lakeshore.planes import protocol
from lakeshore.planes.protocol import HEADER, MSGPACK, VERSION

JSON: Final = "application/json"
PROTOCOL: Final = {HEADER: VERSION}


class Refusal(Exception):
    """A request that is not carried out, with the code that says why and what to do about it."""

    def __init__(self, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after


def packed(body: Mapping[str, Any], status: int = 200) -> Response:
    """Return an answer in msgpack."""
    return Response(protocol.pack(body), status, PROTOCOL, MSGPACK)


def in_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    data = text.encode("utf-8", "backslashreplace")
    return Response(data, status, {**PROTOCOL, **(headers or {})}, JSON)


def refused(request: Request, error: Exception) -> Response:
    """Return the answer that tells of an error, as the client likes to read it."""
    headers = {}
    if isinstance(error, Refusal):
        status = protocol.STATUSES.get(error.code, 400)
        body: dict[str, Any] = {"error": {"code": error.code, "message": error.message}}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, (ValueError, LakeshoreError)):
        status, body = protocol.error_answer(error)
        if status == 503:
            headers["Retry-After"] = "1"
    else:
        raise error
    if "msgpack" in request.headers.get("accept", ""):
        clean = {name: _clean(text) for name, text in body["error"].items()}
        answer = packed({"error": clean}, status)
        answer.headers.update(headers)
        return answer
    return in_json(body, status, headers)


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
