"""A control plane in this process, and a bare client of its routes that tells what came back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

from lakeshore import Dispatch
from lakeshore.planes.protocol import MSGPACK
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background


class Served:
    """A running control plane, its store, and tokens for it."""

    def __init__(self, url: str, plane: Dispatch, app: Any) -> None:
        self.url, self.plane, self.app = url, plane, app
        self.tokens = Tokens(plane)
        self.http = httpx.Client(base_url=url, timeout=20, trust_env=False)

    def token(self, role: str, ns: str = "default", **options: Any) -> str:
        return self.tokens.create(ns=EVERYWHERE if role == "admin" else ns, role=role, **options)[0]

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **headers: str
    ) -> httpx.Response:
        """Ask once; ``answer.told`` is the body, decoded."""
        sent = {"accept": MSGPACK, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) or body is None else msgpack.packb(body)
        answer = self.http.request(method, path, content=content, headers=sent)
        if method == "HEAD":
            return answer
        if answer.headers.get("content-type") == MSGPACK:
            answer.told = msgpack.unpackb(answer.content)  # type: ignore[attr-defined]
        elif answer.headers.get("content-type") == "application/json":
            answer.told = answer.json()  # type: ignore[attr-defined]
        return answer

    def line(self) -> socket.socket:
        """Return a bare connection."""
        line = socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])))
        line.settimeout(10)
        return line

    def raw(self, method: str, path: str, body: bytes = b"", accept: str = MSGPACK) -> bytes:
        """Return a request as it goes over a line."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.ask("POST", path, {} if body is None else body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def submit(self, id: str = "a", ns: str = "default", **options: Any) -> httpx.Response:
        body = {"invocation_id": id, "queue": "gpu", "args_blob": b"e", "run_config": {"queue": "gpu"}}
        return self.post(f"/v1/namespaces/{ns}/producer/submit", body, **options)

    def poll(self, worker: str = "w", *, token: str | None = None, **body: Any) -> list[dict[str, Any]]:
        told = {"worker_id": worker, "timeout_s": 0, "queue": "gpu", **body}
        return [
            each["body"]
            for each in self.post("/v1/daemon/poll", told, token=token).told["commands"]  # type: ignore[attr-defined]
        ]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start control planes: ``serve(auth=True, body_limit=...)``."""
    with contextlib.ExitStack() as open_ones:

        def start(*, memory: bool = False, **options: Any) -> Served:
            options.setdefault("auth", False)
            plane = Dispatch(":memory:" if memory else tmp_path / "d.sqlite")
            open_ones.callback(plane.close)
            app = create_app(plane, Options(**options))
            made = Served(open_ones.enter_context(background(app)), plane, app)
            open_ones.callback(made.http.close)
            return made

        yield start


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One control plane for all the tests of a file that leave nothing behind; it asks for no token."""
    with Dispatch(":memory:") as plane:
        app = create_app(plane, Options(auth=False))
        with background(app) as url:
            made = Served(url, plane, app)
            yield made
            made.http.close()


@pytest.fixture(scope="module")
def shared_guarded() -> Iterator[Served]:
    """As `shared`, but it asks for tokens."""
    with Dispatch(":memory:") as plane:
        app = create_app(plane, Options(auth=True))
        with background(app) as url:
            made = Served(url, plane, app)
            yield made
            made.http.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A control plane that asks for no token."""
    return serve()


@pytest.fixture
def guarded(serve: Callable[..., Served]) -> Served:
    """A control plane that asks for tokens."""
    return serve(auth=True)
