"""Two control planes over one PostgreSQL store: what one commits wakes who waits at the other."""

from __future__ import annotations

import contextlib
import threading
import time

import postgres_server
import pytest

from lakeshore import HttpDispatch
from lakeshore.conformance import check
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

postgres = pytest.importorskip("lakeshore.planes.postgres", reason="no psycopg: the extra postgres brings it")


@pytest.fixture
def two():
    """Two servers, each with a store of its own on one database, and a client of each."""
    dsn = postgres_server.shared().fresh()
    with contextlib.ExitStack() as opened:
        clients = []
        for n in range(2):
            plane = postgres.PostgresDispatch(dsn)
            opened.callback(plane.close)
            if n == 0:
                token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0]
            url = opened.enter_context(background(create_app(plane, Options(auth=True))))
            clients.append(HttpDispatch(url, token=token))
            opened.callback(clients[-1].close)
        yield clients


def test_one_wakes_the_other(two):
    here, there = two
    timer = threading.Timer(0.3, lambda: here.submit("gpu", b"e", id="a"))
    timer.start()
    began = time.monotonic()
    claimed = there.claim("gpu", "w", wait=10)
    assert claimed.id == "a"
    assert time.monotonic() - began < 0.9
    timer = threading.Timer(0.3, lambda: there.ack("a", "w", result=b"r", fence=1))
    timer.start()
    began = time.monotonic()
    assert here.result("a") == b"r"
    assert time.monotonic() - began < 0.9
    rows = threading.Timer(0.3, lambda: here.journal_append("t", None, b"x", final=True))
    rows.start()
    assert list(there.journal_read("t", timeout=10)) == [(0, b"x")]
    timer.join()
    rows.join()


def test_a_server_that_starts_hears_the_holders_first():
    with contextlib.closing(postgres.PostgresDispatch(postgres_server.shared().fresh())) as store:
        store.submit("gpu", b"e", id="a")
        store.claim("gpu", "holder", lease=0.05)
        time.sleep(0.1)
        with background(create_app(store, Options(auth=False))) as url:
            with contextlib.closing(HttpDispatch(url)) as plane:
                assert plane.claim("gpu", "robber") is None
                plane.ack("a", "holder", fence=1)


def test_a_few_rules_hold(two):
    here, _ = two
    outcomes = check(
        lambda: _Open(here),
        only=["attempts_never_mix", "a_key_is_submitted_once", "frames_come_back_in_order"],
    )
    assert all(outcome.ok for outcome in outcomes), outcomes


class _Open:
    """A client that a rule does not close."""

    def __init__(self, plane: HttpDispatch) -> None:
        self._plane = plane

    def __getattr__(self, name: str):
        return getattr(self._plane, name)

    def close(self) -> None:
        pass
