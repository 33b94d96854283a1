"""A wait for a job that nobody takes says so, and how to start a worker."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lakeshore import Dispatch, Queue, SyncQueue, WaitTimeout, run_worker, thunk, udf
from lakeshore.queues import stream, unserved

NOBODY = "no worker has asked for 'g p u' lately"


@pytest.fixture(params=["dispatch.sqlite", "jobs.sqlite", None])
def q(request, tmp_path):
    """Give a queue without a worker, on a default file, another file, and none."""
    plane = Dispatch(":memory:" if request.param is None else str(tmp_path / request.param))
    yield SyncQueue("g p u", dispatch=plane)
    plane.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(unserved, "_POLLS", 0.02)
    monkeypatch.setattr(unserved, "NOTICE", 0.02)
    monkeypatch.setattr(stream, "NOTICE", 0.02)


def test_a_timeout_says_that_nobody_takes_the_job(q, tmp_path):
    inv = q.submit(thunk(int, "7"))
    with pytest.raises(WaitTimeout) as caught:
        q.result(inv, timeout=0.03)
    told = str(caught.value)
    assert NOBODY in told
    assert "goes on" not in told
    if "dispatch" in str(q.plane):
        assert f"lakeshore worker start --queue 'g p u' --plane {tmp_path}" in told
    else:
        assert told.endswith("Start one: q.worker()")
    with pytest.raises(WaitTimeout, match=NOBODY):
        asyncio.run(Queue("g p u", dispatch=q.plane).result(inv, timeout=0.03))


def test_a_delayed_job_and_one_of_a_busy_queue_do_not_blame_the_workers(q):
    inv = q.submit(thunk(int, "7"), delay=60)
    with pytest.raises(WaitTimeout, match="is queued, due in"):
        q.result(inv, timeout=0.03)
    q.submit(1)
    assert q.claim() is not None
    with pytest.raises(WaitTimeout, match="goes on"):
        q.result(q.submit(2), timeout=0.03)


def test_who_only_looks_is_told_no_more(q, monkeypatch):
    monkeypatch.setattr(unserved, "_POLLS", 1.0)
    with pytest.raises(WaitTimeout, match="goes on"):
        q.result(q.submit(1), timeout=0)


def double(x):
    return 2 * x


def each(n):
    yield from range(n)


async def called(q):
    return await q.call(thunk(double, 4))


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda q: udf(queue=q)(double)(4), 8),
        (lambda q: list(udf(queue=q)(each)(3)), [0, 1, 2]),
        (lambda q: list(udf(queue=q)(double).map([4])), [8]),
        (lambda q: list(udf(queue=q)(double).map([4], _ordered=False)), [8]),
        (lambda q: asyncio.run(called(Queue(q.name, dispatch=q.plane))), 8),
    ],
)
def test_a_wait_without_an_end_warns_once(call, given):
    plane = Dispatch(":memory:")
    q = SyncQueue("g p u", dispatch=plane)
    with pytest.warns(UserWarning) as warned:
        late = threading.Timer(0.3, run_worker, (q,), {"once": True})
        late.start()
        assert call(q) == given
    late.join()
    plane.close()
    (one,) = warned
    assert NOBODY in str(one.message)
    assert one.filename == __file__
