"""Loopback control planes, and clients of them that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import TOKEN
from unit.planes_http.ours import Ours

from lakeshore import HttpDispatch


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for name in (*proxies, "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def connect() -> Iterator[Callable[..., HttpDispatch]]:
    """Make clients: ``connect(server, timeout=...)``."""
    made: list[HttpDispatch] = []

    def make(server: Any, **options: Any) -> HttpDispatch:
        options.setdefault("timeout", 5.0)
        options.setdefault("token", TOKEN)
        url = server if isinstance(server, str) else server.url
        plane = HttpDispatch(url, **options)
        made.append(plane)
        return plane

    yield make
    for plane in made:
        plane.close()


@pytest.fixture
def field() -> Iterator[Field]:
    """A control plane as one stands in the field."""
    with Field() as server:
        assert isinstance(server, Field)
        yield server


@pytest.fixture
def ours() -> Iterator[Ours]:
    """Our routes over a `Dispatch(":memory:")`."""
    with Ours() as server:
        assert isinstance(server, Ours)
        yield server
