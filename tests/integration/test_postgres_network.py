"""The line between a plane and its database is cut, stalls, or takes what is sent and hands nothing on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import uuid

import postgres_server
import proxied
import pytest
from postgres_load import Load

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes import postgres_connection  # noqa: E402 - after the skip
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

LONG = os.environ.get("LONG_TESTS") == "1"


@pytest.fixture(scope="module")
def server():
    with postgres_server.own(host="127.0.0.1") as made:
        yield made


@pytest.fixture
def line(server):
    made = proxied.Line((server.host, postgres_server.free_port(server.host)), (server.host, server.port))
    yield made
    made.close()


def dsn(server, line):
    name = server.fresh().split("/")[3].split("?")[0]
    return f"postgresql://postgres@{line.host}:{line.port}/{name}"


def goes_on(load, within=30.0):
    before, end = len(load.acked), time.monotonic() + within
    while len(load.acked) < before + 50:
        assert time.monotonic() < end, f"not at work again within {within:g} s"
        assert not load.failures, load.failures
        time.sleep(0.02)  # between two looks


def test_a_line_that_is_reset_again_and_again_loses_nothing(server, line):
    load = Load(dsn(server, line))
    end = time.monotonic() + (60 if LONG else 2)
    while time.monotonic() < end:
        line.tell("reset")
        time.sleep(0.3)
    goes_on(load)
    load.check()


@pytest.mark.parametrize("seconds", [0.5, 10.0] if LONG else [0.5])
def test_a_line_that_stalls_and_goes_on_loses_nothing(server, line, seconds):
    load = Load(dsn(server, line))
    for _ in range(3):
        goes_on(load)
        line.stop()
        time.sleep(seconds)
        line.go_on()
    goes_on(load)
    load.check()


@pytest.mark.parametrize("how", ["stop", "deaf"])
def test_a_line_that_hands_nothing_on_is_given_up(server, line, monkeypatch, how):
    """No packet is unacknowledged, so only waiting tells; then another line is tried."""
    silence = postgres_connection.SILENCE if LONG else 1.0
    monkeypatch.setattr(postgres_connection, "SILENCE", silence)
    load = Load(dsn(server, line))
    goes_on(load)
    line.stop() if how == "stop" else line.tell("deaf")
    time.sleep(silence + (2 if LONG else 1))
    if how == "stop":
        line.go_on()
    else:
        line.tell("hear")
        line.tell("reset")
    began = time.monotonic()
    goes_on(load)
    assert time.monotonic() - began < 30
    load.check()


def test_what_a_lost_client_held_is_let_go(server, line, monkeypatch):
    """The server still waits for the client of the line that was given up, with the row locked."""
    monkeypatch.setattr(postgres_connection, "SILENCE", 1.0)
    with PostgresDispatch(dsn(server, line)) as dp:
        dp.submit("q", b"", id="j")
        held = dp.claim("q", "w")
        reached = threading.Event()
        begin = postgres_connection.Connection.changed

        def then_cut(tx, name, params):
            changed = begin(tx, name, params)
            if name == "ack" and not reached.is_set():
                reached.set()
                line.tell("deaf")
            return changed

        monkeypatch.setattr(postgres_connection.Connection, "changed", then_cut)
        timer = threading.Timer(3.0, lambda: line.tell("hear"))
        timer.start()
        began = time.monotonic()
        dp.ack("j", "w", fence=held.fence, result=b"r")
        assert time.monotonic() - began < 20
        timer.join()
        assert dp.result("j", timeout=5) == b"r"


@contextlib.contextmanager
def apart():
    """A network of its own, joined to this one by a cable that can be pulled; needs the right to make one."""
    name = f"ls{uuid.uuid4().hex[:6]}"

    def ip(*words):
        subprocess.run(["ip", *words], check=True, stderr=subprocess.PIPE)

    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to make a network: {error}")
    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("addr", "add", "198.18.77.1/30", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "addr", "add", "198.18.77.2/30", "dev", f"{name}b")
        ip("-n", name, "link", "set", f"{name}b", "up")
        yield (
            name,
            "198.18.77.1",
            "198.18.77.2",
            lambda up: ip("-n", name, "link", "set", f"{name}b", "up" if up else "down"),
        )
    finally:
        ip("netns", "del", name)


@pytest.mark.skipif(not LONG, reason="takes a minute: LONG_TESTS=1")
def test_a_cable_that_is_pulled_is_noticed(server):
    """Nothing is acknowledged any more: noticed within 20 s; at work again within 30 s of its being back."""
    with apart() as (name, here, there, cable), contextlib.ExitStack() as stack:
        near = proxied.Line((here, postgres_server.free_port(here)), (server.host, server.port))
        stack.callback(near.close)
        far = proxied.Line((there, 5432), (near.host, near.port), "ip", "netns", "exec", name)
        stack.callback(far.close)
        load = Load(dsn(server, far))
        goes_on(load)
        cable(False)
        time.sleep(25)
        cable(True)
        began = time.monotonic()
        goes_on(load)
        print(f"at work again {time.monotonic() - began:.1f} s after the cable was back")
        load.check()
        with PostgresDispatch(dsn(server, far)) as dp:
            dp.submit("q", b"", id="j")
            cable(False)
            began = time.monotonic()
            timer = threading.Timer(17.0, lambda: cable(True))
            timer.start()
            assert dp.get("j")["state"] == "queued"
            print(f"a call took {time.monotonic() - began:.1f} s, the cable being out for 17 s")
            assert time.monotonic() - began < 17 + 20
            timer.join()
