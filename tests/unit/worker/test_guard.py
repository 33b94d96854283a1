"""Stopping a body from another thread: at its next bytecode, never after its end, never in a shield."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from lakeshore.errors import JobCancelled
from lakeshore.worker.guard import Guard


def stop_soon(guard, reason="cancelled"):
    threading.Thread(target=lambda: (started.wait(5), guard.stop(reason)), daemon=True).start()


started = threading.Event()


@pytest.fixture(autouse=True)
def _fresh():
    started.clear()


def spin():
    started.set()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pass


def test_a_spinning_body_is_stopped():
    guard = Guard()
    stop_soon(guard)
    value, failure = guard.run(spin)
    assert value is None
    assert isinstance(failure, JobCancelled)
    assert guard.reason == "cancelled"


def test_except_exception_does_not_eat_it():
    guard = Guard()
    stop_soon(guard)

    def body():
        try:
            spin()
        except Exception:
            return "eaten"

    assert isinstance(guard.run(body)[1], JobCancelled)


def test_the_first_reason_stays():
    guard = Guard()
    guard.run(lambda: [guard._lock, None])
    other = Guard()
    other.reason = None
    with pytest.raises(JobCancelled), other:
        other.stop("timeout")
        other.stop("lost")
    assert other.reason == "timeout"


def test_nothing_comes_after_the_end():
    guard = Guard()
    assert guard.run(lambda: 7) == (7, None)
    guard.stop("cancelled")
    assert guard.reason is None
    for _ in range(1000):
        pass


def test_a_shield_holds_it_back_until_its_end():
    guard = Guard()
    done = []

    def body():
        with guard:
            stopper = threading.Thread(target=guard.stop, args=("timeout",))
            stopper.start()
            stopper.join()
            done.extend(range(100))
        done.append("after")

    _, failure = guard.run(body)
    assert isinstance(failure, JobCancelled)
    assert done == list(range(100))


def test_a_shield_does_not_open_once_stopped():
    guard = Guard()
    guard.reason = "lost"
    with pytest.raises(JobCancelled), guard:
        pytest.fail("entered")


def test_a_stop_at_any_moment_neither_leaks_nor_loses_the_end():
    """The race of end and stop, many times: what comes back is the value or the stop, and then silence."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for n in range(600):
            _race(n % 60)
    finally:
        sys.setswitchinterval(before)


def _race(n):
    guard = Guard()
    near = []

    def stop():
        while not near:
            pass
        guard.stop("lost")

    def body():
        stopper.start()
        near.append(True)
        for _ in range(n):
            pass
        return "value"

    stopper = threading.Thread(target=stop)
    value, failure = guard.run(body)
    near.append(True)
    stopper.join()
    for _ in range(50):
        pass
    assert (value == "value") != isinstance(failure, JobCancelled)
