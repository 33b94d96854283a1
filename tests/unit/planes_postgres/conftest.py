"""Planes on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import postgres_server
import pytest


@pytest.fixture
def dsn() -> str:
    """A database that other tests use too: keep to a namespace of your own."""
    return postgres_server.shared_dsn()


@pytest.fixture
def fresh() -> str:
    """A database of the test's own, empty."""
    return postgres_server.shared().fresh()


@pytest.fixture
def server() -> Iterator[postgres_server.Server]:
    """A server of the test's own, to be stopped and killed; it syncs as a real one does."""
    at = postgres_server.binaries()
    postgres_server.shared()  # skips where there can be none
    assert at is not None
    made = postgres_server.Server(at)
    yield made
    made.remove()
