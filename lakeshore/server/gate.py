"""What every request passes first: Host and Origin, then the route; and afterwards: log and metrics.

Paths are matched as they were sent, still percent-encoded, so that no name can climb or end early.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import socket
import time
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshore.planes.store_tokens import PREFIX
from lakeshore.server.answers import Refusal, refused
from lakeshore.server.serving import Serving

_log = logging.getLogger("lakeshore.server")
access = logging.getLogger("lakeshore.server.access")
_TOKEN: Final = re.compile(f"{PREFIX}[A-Za-z0-9_%-]*")
_HOST: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45}(?:%(?:25)?[A-Za-z0-9_-]{1,32})?)\]|(?P<name>[A-Za-z0-9._-]{1,255}))"
    r"(?::[0-9]{1,5})?"
)
"""What a Host header may be: an IPv6 address in brackets, another address or a name, and perhaps a port."""
_OWN_PAGES: Final = (b"cross-origin-resource-policy", b"same-origin")
"""No page of another site may have what is answered, not even as an image."""
_UNMATCHED: Final = "unmatched"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Gate:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app, self._serving = app, serving
        self._names = {
            "localhost",
            socket.gethostname().lower(),
            *(name.lower() for name in serving.options.hosts),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), _OWN_PAGES]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        raw: bytes = scope.get("raw_path") or b"/"
        scope["path"] = raw.decode("latin-1")
        request = Request(scope, receive)
        try:
            problem = self._problem(request)
            if problem is not None:
                await refused(request, problem)(scope, receive, counted)
            else:
                await self._app(scope, receive, counted)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an answer and the log a line
            _log.error("%s: %s", scope.get("lakeshore.route", _UNMATCHED), type(exc).__name__, exc_info=exc)
            if status == 0:
                told = Refusal("error", "the control plane failed at this; its log says why.")
                await refused(request, told)(scope, receive, counted)
            else:
                scope["lakeshore.cut"] = True
        finally:
            self._note(scope, status, sent, time.perf_counter() - began)

    def _problem(self, request: Request) -> Refusal | None:
        """Return why this request is not served at all: a page elsewhere, or a name that is not ours."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return Refusal(
                "wrong_host",
                "the Host header names another machine. Use this server's address, or start it with "
                "--allow-host NAME.",
            )
        for origin in request.headers.getlist("origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                return Refusal(
                    "forbidden", "the Origin header names another site. Ask from this one's pages."
                )
        for site in request.headers.getlist("sec-fetch-site"):
            if site.strip().lower() not in ("same-origin", "none") and not _is_visit(request):
                return Refusal("forbidden", "a page of another site asks. Ask from this one's pages.")
        return None

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["six"] or found["name"]).lower()
        if name in self._names or name.endswith(".localhost"):
            return True
        address, zone, _ = name.partition("%")
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        # an address: no name of another's can stand behind it
        return bool(found["six"]) == (known.version == 6) and (not zone or known.is_link_local)

    def _note(self, scope: Scope, status: int, sent: int, seconds: float) -> None:
        route = scope.get("lakeshore.route", _UNMATCHED)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._serving.metrics.note(route, method, status, seconds)
        if not access.isEnabledFor(logging.INFO):
            return
        client = scope.get("client")
        told: dict[str, Any] = {
            "at": round(time.time(), 3),
            "client": client[0] if client else None,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "sent_bytes": sent,
        }
        if route == _UNMATCHED:
            told["path"] = _TOKEN.sub("***", scope["path"])[:200]
        for name in ("ns", "token"):
            if f"lakeshore.{name}" in scope:
                told[name] = scope[f"lakeshore.{name}"]
        if scope.get("lakeshore.cut"):
            told["cut"] = True
        access.info("%s", Line(told))


def _is_visit(request: Request) -> bool:
    """Whether a browser's window was led to the page itself, or to a signed URL, as by a link."""
    told, path = request.headers, request.scope["path"]
    return (
        (path == "/" or path.startswith("/v1/files/"))
        and request.method in ("GET", "HEAD")
        and told.get("sec-fetch-mode", "").strip().lower() == "navigate"
        and told.get("sec-fetch-dest", "").strip().lower() == "document"
    )


class Line(dict[str, Any]):
    """An access log's entry: as JSON where a handler wants that, else as one line of text."""

    def __str__(self) -> str:
        return json.dumps(self)  # ASCII: a control character comes out escaped

    @property
    def text(self) -> str:
        """The entry for people."""
        where = self.get("path") or self["route"]
        who = f" {self['token']}" if "token" in self else ""
        ns = f" ns={self['ns']}" if "ns" in self else ""
        line = (
            f"{self['client']}{who} {self['method']} {where}{ns} {self['status']} "
            f"{self['ms']:.1f} ms {self['sent_bytes']} B"
        )
        return json.dumps(line)[1:-1]
