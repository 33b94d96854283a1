"""Running the application on uvicorn: the socket, the limits below HTTP, and a stop that loses nobody.

On a signal polls are answered and streams broken off at once, so that clients ask the next server; requests
under way are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakeshore.errors import PlaneUnavailable
from lakeshore.server.app import App
from lakeshore.server.framing import ambiguity

try:
    import resource
except ImportError:  # no such limits here
    resource = None  # type: ignore[assignment]

_KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection is kept: longer than proxies keep theirs (60)."""
_BACKLOG: Final = 2048
_ACCEPTED: Final = 32
"""The most connections taken in one go: room is made between two goes, before the files run out."""
_FILES: Final = 65536
_RESERVED: Final = 200
"""Files that are left for the store, its bells and the storage."""
_DRAIN_SECONDS: Final = 20
_REST_SECONDS: Final = 30.0
"""How long the rest of a body that was refused is read, so that its sender gets to the answer."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises
    ------
    PlaneUnavailable
        When the address is in use, or none of this machine's.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as exc:
        hint = "Check --host and --port."
        if exc.errno == errno.EADDRINUSE:
            hint = "Another server has it: stop that one, or give another --port (0 takes a free one)."
        elif exc.errno == errno.EACCES:
            hint = "Ports below 1024 want root; give another --port."
        raise PlaneUnavailable(
            f"serve: cannot listen on {host} port {port} ({exc.strerror or exc}). {hint}"
        ) from exc
    return sock


def url_of(sock: socket.socket, host: str, *, secure: bool) -> str:
    """Return the URL at which a listening socket is reached."""
    port = sock.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}"


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, and limits that it lacks: on headers, and on clients that take nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = _app_of(self.config).serving.options
        self._header_bytes, self._header_seconds = options.header_bytes, options.header_seconds
        self._stall_seconds = options.stall_seconds
        files = _files()
        self._most = min(options.connections, max(files - _RESERVED, files // 2))
        self._idle_since = self.loop.time()
        self._unsorted, self._header_size, self._between = 0, 0, True
        self._unclear: str | None = None
        self._late: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._expect(self._header_seconds)
        if len(self.connections) > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that was idle longest; else one whose client takes nothing; else this one."""
        others = [each for each in self.connections if isinstance(each, Protocol) and each is not self]
        idle = [each for each in others if each.is_idle]
        stuck = [(each._is_known, each._stalled.when(), each) for each in others if each._stalled is not None]
        if idle:
            min(idle, key=lambda each: each._idle_since)._abort()
        elif stuck:
            min(stuck, key=lambda each: each[:2])[2]._abort()
        else:
            self._abort()

    @property
    def _is_known(self) -> bool:
        """Whether whoever is answered here showed a token."""
        return self.cycle is not None and "lakeshore.token" in self.cycle.scope

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked here: all was answered, whatever of a refused body is still to come."""
        closing = self.transport is None or self.transport.is_closing()
        return not closing and (self.cycle is None or self.cycle.response_complete)

    def on_response_complete(self) -> None:
        """Note since when nothing is asked; what is left of a refused body is read, so that it is told."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self.is_idle and not self._between and self._late is None:
            self._expect(_REST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timers."""
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; headers and trailers that are too many are refused before they are whole."""
        if self._late is None and self._between:
            self._unsorted = 0
            self._expect(self._header_seconds)
        self._unsorted += len(data)
        super().data_received(data)
        if self._unsorted > self._header_bytes and not self.transport.is_closing():
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or the headers of one that are too many, and close."""
        self._cancel()
        if max(self._unsorted, self._header_size) > self._header_bytes:
            msg = f"headers over the limit of {self._header_bytes} bytes"
        msg = self._unclear or msg
        if self.pipeline or not (self.is_idle or not self.cycle.response_started):
            self._abort()  # an answer is under way
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Count the headers of this request."""
        self._header_size = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what trails a body is counted and dropped.

        Raises
        ------
        ValueError
            When they are too many: the parser stops there, and `send_400_response` says it.
        """
        self._header_size += len(name) + len(value) + len(b": \r\n")
        if self._header_size > self._header_bytes:
            raise ValueError(f"headers over the limit of {self._header_bytes} bytes")
        if self._between:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the clock, and start the request; a target that names a host goes before the Host header.

        Raises
        ------
        ValueError
            When a proxy may have read it differently: the parser stops there, and the connection is closed.
        """
        self._unsorted, self._between = 0, False
        self._on_time()
        version, upgrades = self.parser.get_http_version(), self.parser.should_upgrade()
        self._unclear = ambiguity(version, self.url, self.headers, upgrades=upgrades)
        if self._unclear is not None:
            raise ValueError(self._unclear)
        scheme, absolute, rest = self.url.partition(b"://")
        if absolute and not scheme.startswith(b"/"):
            host = re.split(rb"[/?#]", rest, maxsplit=1)[0]
            self.headers[:] = [each for each in self.headers if each[0] != b"host"] + [(b"host", host)]
            self.url = rest[len(host) :] if rest[len(host) :].startswith(b"/") else b"/" + rest[len(host) :]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unsorted = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next bytes begin another request."""
        self._unsorted, self._between = 0, True
        self._on_time()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._stall_seconds, self._abort)

    def resume_writing(self) -> None:
        """It took some."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect(self, seconds: float) -> None:
        self._late = self.loop.call_later(seconds, self._abort)

    def _on_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _cancel(self) -> None:
        for timer in (self._late, self._stalled):
            if timer is not None:
                timer.cancel()
        self._late = self._stalled = None


def _files() -> int:
    """Return how many files this process may open."""
    if resource is None:
        return 2**31
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _allow_files() -> None:
    """Raise how many files this process may open as far as it may itself."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Quiet(logging.Filter):
    """Drops what uvicorn says of streams that are broken off on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in str(record.msg)


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application to drain before it stops."""

    def __init__(self, config: uvicorn.Config, app: App, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        _allow_files()
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_BACKLOG)  # the loop had it wait for as few as it takes in one go
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop once every wait was answered."""
        self._app.serving.drain()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, give up waiting at the second Ctrl-C."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def server_of(
    app: App,
    *,
    certfile: str | None = None,
    keyfile: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> Server:
    """Return the server that runs `app`; ``server.run(sockets=[listen(...)])`` blocks until it is stopped."""
    logging.getLogger("uvicorn.error").addFilter(_QUIET)
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        backlog=_ACCEPTED,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    return Server(config, app, ready)


_QUIET: Final = _Quiet()


def _app_of(config: uvicorn.Config) -> App:
    app = config.app
    assert isinstance(app, App)
    return app


@contextlib.contextmanager
def background(app: App, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve `app` from a thread of this process within the block; gives the URL."""
    started = threading.Event()
    sock = listen(host, port)
    server = server_of(app, ready=started.set)
    thread = threading.Thread(target=server.run, args=([sock],), name="lakeshore-serve", daemon=True)
    url = url_of(sock, host, secure=False)
    thread.start()
    try:
        if not started.wait(10):
            raise PlaneUnavailable("serve: the server did not start within 10 s.")
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
