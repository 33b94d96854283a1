"""Workers and what befalls them from outside: a locked database, a dead neighbour, a body that holds the GIL.

The long form (``LONG_TESTS=1``) holds the GIL for 60 s under a lease of 10 s: it takes about 70 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import apsw
import pytest

from lakeshore import Dispatch, SyncQueue, thunk

LONG = os.environ.get("LONG_TESTS") == "1"


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def plane(home):
    with Dispatch(home / "dispatch.sqlite") as plane:
        yield plane


@pytest.fixture
def q(plane):
    return SyncQueue("gpu", dispatch=plane)


@pytest.fixture
def daemon(home, tmp_path):
    started = []

    def start(*flags):
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", *flags],
                env={**os.environ, "LAKESHORE_HOME": str(home)},
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition, timeout=20.0):
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
    return value


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_who_replaces_a_dead_worker_hands_on_its_jobs_at_once(daemon, plane, q, isolation):
    def job():
        import time

        from lakeshore import run

        if run.attempt == 1:
            time.sleep(600)
        return run.attempt

    inv = q.submit(thunk(job))
    flags = ("--lease", "600", "--isolation", isolation)
    victim = daemon(*flags)
    wait_until(lambda: plane.get(inv)["state"] == "running")
    victim.kill()
    victim.wait(10)
    daemon(*flags, "--after", str(victim.pid))
    assert q.result(inv, timeout=20) == 2
    assert plane.get(inv)["losses"] == 1


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_database_that_is_locked_past_the_lease_costs_nothing(daemon, home, plane, q, isolation):
    """Nobody can claim then either: the running job is delivered once the lock is gone."""

    def job():
        import time

        time.sleep(0.5)
        yield "a value"
        time.sleep(1)

    inv = q.submit(thunk(job))
    daemon("--lease", "0.9", "--isolation", isolation)
    wait_until(lambda: plane.get(inv)["state"] == "running")
    other = apsw.Connection(str(home / "dispatch.sqlite"))
    other.execute("BEGIN IMMEDIATE")
    time.sleep(2.5)
    other.execute("ROLLBACK")
    other.close()
    assert list(q.stream(inv, timeout=20)) == ["a value"]
    row = plane.get(inv)
    assert (row["state"], row["attempt"], row["losses"]) == ("succeeded", 1, 0)


def test_a_body_that_holds_the_gil_keeps_its_lease(daemon, plane, q):
    """Its child holds the GIL; the worker's keeper is in another process, and another worker waits for it."""
    lease, held = (10, 60) if LONG else (1, 6)

    def job(seconds):
        import ctypes

        ctypes.PyDLL(None).sleep(seconds)
        return "held"

    inv = q.submit(thunk(job, held))
    for _ in range(2):
        daemon("--lease", str(lease))
    assert q.result(inv, timeout=held + 30) == "held"
    row = plane.get(inv)
    assert (row["attempt"], row["losses"]) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_leaves_within_a_second_or_so(daemon, plane, q, number):
    worker = daemon()
    wait_until(lambda: plane.workers("gpu"))
    began = time.monotonic()
    worker.send_signal(number)
    assert worker.wait(10) == 0
    assert time.monotonic() - began < 2.5
