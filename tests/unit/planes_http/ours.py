"""The real control plane behind a line that a test can spoil: every request goes on to it, as it came."""

from __future__ import annotations

import contextlib
import http.client
from typing import Any
from urllib.parse import urlsplit

from unit.planes_http.loopback import Loopback, Request

from lakeshore import Dispatch
from lakeshore.planes.protocol import FRAMES, HEADER, VERSION
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

OURS = {HEADER: VERSION}
KEEPALIVE_SECONDS = 0.2
_FILE_HEADERS = ("content-range", "repr-digest", "range", "if-match", "etag")
_PASSED = ("authorization", "accept", "content-type", "user-agent", *_FILE_HEADERS)


class Ours(Loopback):
    """A control plane over `plane`; `rows=False` answers streams with frames, as to a client in the field.

    `cuts` are bytes after which one stream after another breaks off.
    """

    def __init__(
        self, plane: Dispatch | None = None, *, host: str = "127.0.0.1", options: Options | None = None
    ) -> None:
        self.plane = Dispatch(":memory:") if plane is None else plane
        self.rows = True
        self.cuts: list[int] = []
        self._open = contextlib.ExitStack()
        self.app = create_app(self.plane, options or Options(auth=False, keepalive=KEEPALIVE_SECONDS))
        self.behind = self._open.enter_context(background(self.app))
        super().__init__(host=host)

    def __exit__(self, *exc: object) -> None:
        self._open.close()
        super().__exit__(*exc)
        self.plane.close()

    def serve(self, request: Request) -> None:
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        if not self.rows and request.target.partition("?")[0].endswith("/stream"):
            headers["accept"] = FRAMES
        line = http.client.HTTPConnection(urlsplit(self.behind).netloc, timeout=60)
        try:
            body = request.raw if request.method in ("POST", "PUT") else None
            line.request(request.method, request.target, body, headers)
            answer = line.getresponse()
            kept = {
                name.lower(): value
                for name, value in answer.getheaders()
                if name.lower().startswith("lakeshore-")
                or name.lower() in ("content-type", "retry-after", *_FILE_HEADERS)
            }
            if answer.getheader("transfer-encoding") != "chunked":
                request.reply(answer.status, answer.read(), kept)
                return
            self._pass_on(request, answer, kept)
        finally:
            line.close()

    def _pass_on(self, request: Request, answer: http.client.HTTPResponse, headers: dict[str, Any]) -> None:
        request.start(headers.pop("content-type"), headers)
        left = self.cuts.pop(0) if self.cuts else 2**62
        try:
            while part := answer.read1(65536):
                request.chunk(part[:left])
                left -= len(part)
                if left <= 0:
                    request.cut()
                    return
        except (http.client.IncompleteRead, ConnectionResetError):
            request.cut()
            return
        request.finish()
