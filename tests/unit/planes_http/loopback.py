"""A real HTTP server on loopback whose answers a test scripts: what gateways, proxies and cut lines do."""

from __future__ import annotations

import http.server
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgpack

from lakeshore.planes.protocol import FRAMES, MSGPACK

TOKEN = "tok-SECRET-123"
Step = Callable[["Request"], None]


class Request:
    """One request, and the ways to answer it."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.handler = handler
        self.method, self.target = handler.command, handler.path
        self.path, _, query = handler.path.partition("?")
        self.query = {name: values[-1] for name, values in parse_qs(query).items()}
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.raw = handler.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            self.body: Any = msgpack.unpackb(self.raw, strict_map_key=False) if self.raw else {}
        except ValueError:
            self.body = None

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        handler = self.handler
        handler.send_response(status)
        kind = MSGPACK if status < 400 else "text/plain"
        for name, value in {"content-type": kind, **(headers or {})}.items():
            if value:
                handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def send(self, answer: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self.reply(200, msgpack.packb(answer), headers)

    def start(self, media: str = FRAMES, headers: Mapping[str, str] | None = None) -> None:
        """Begin a chunked body."""
        self.handler.send_response(200)
        for name, value in {"content-type": media, "transfer-encoding": "chunked", **(headers or {})}.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()

    def chunk(self, data: bytes) -> None:
        if data:
            self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.handler.wfile.flush()

    def finish(self) -> None:
        self.handler.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break the connection here."""
        self.handler.close_connection = True
        self.handler.wfile.flush()
        self.handler.connection.shutdown(socket.SHUT_RDWR)


def status(code: int, body: bytes = b"", **headers: str) -> Step:
    """Answer with this status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: request.reply(code, body, named)


def stream(*parts: bytes, cut: bool = False, media: str = FRAMES) -> Step:
    """Answer with a chunked body, ended cleanly or cut."""

    def step(request: Request) -> None:
        request.start(media)
        for part in parts:
            request.chunk(part)
        request.cut() if cut else request.finish()

    return step


def drop(request: Request) -> None:
    """Close without an answer; the request is lost too."""
    request.cut()


class Loopback:
    """The server. `script[name]` holds the steps for paths that end in ``/name``, used up first.

    A step `None` gives the plain answer. `serve` gives it: a test's subclass says what it is.
    """

    def __init__(
        self, script: Mapping[str, list[Step | None]] | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        self.script = {name: list(steps) for name, steps in (script or {}).items()}
        self.seen: list[Request] = []
        self.drops = 0  # how many answers to each request are lost
        self.lost: list[tuple[str, str]] = []
        self.stopping = threading.Event()
        self.connections = 0
        self._dropped: dict[tuple[str, str, str], int] = defaultdict(int)
        self._lock = threading.Lock()
        plane = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                plane.connections += 1

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                request = Request(self)
                plane.seen.append(request)
                try:
                    plane.handle(request)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client went away

            do_POST = do_PUT = do_GET

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # a client that goes away is part of the play

        self.server = Server((host, 0), Handler)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def handle(self, request: Request) -> None:
        with self._lock:
            steps = self.script.get(request.path.rpartition("/")[2])
            step = steps.pop(0) if steps else None
            what = request.body
            if isinstance(what, dict):  # a repeated wait asks for what is left of it
                what = {name: value for name, value in what.items() if name not in ("timeout_s", "again")}
            if what is None:
                what = request.raw, request.headers.get("content-range")
            key = (request.method, request.target, repr(what))
            self._dropped[key] += 1
            drop = self._dropped[key] <= self.drops
        if step is not None:
            step(request)
        elif drop:
            self.lost.append((request.method, request.path))
            request.handler.wfile = _Nowhere()  # type: ignore[assignment]
            self.serve(request)
            request.cut()
        else:
            self.serve(request)

    def serve(self, request: Request) -> None:
        request.reply(404, b"no such route")

    def posts(self, name: str) -> list[Any]:
        """Return the bodies posted to paths that end in ``/name``."""
        return [each.body for each in self.seen if each.path.endswith("/" + name)]

    def gets(self, part: str) -> list[Request]:
        return [each for each in self.seen if each.method == "GET" and part in each.path]

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class _Nowhere:
    """Where a response goes that the client never gets."""

    closed = False

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
