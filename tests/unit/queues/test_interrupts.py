"""Ctrl-C in a script's waits: at once, and with a word on what still runs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest

from lakeshore import Detached, Dispatch, Queue, SyncQueue, thunk, udf


@pytest.fixture
def q() -> Iterator[SyncQueue]:
    with Dispatch(":memory:") as plane:
        yield SyncQueue("gpu", dispatch=plane)


def double(n: int) -> int:
    return 2 * n


@pytest.fixture
def in_a_moment() -> Iterator[Callable[[], None]]:
    """Press Ctrl-C in a moment."""
    timer = threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT))
    yield timer.start
    timer.join()


@pytest.mark.parametrize(
    "wait",
    [
        lambda q, job: q.result(job),
        lambda q, job: next(q.stream(job)),
        lambda q, job: next(q.stream(job).frames()),
        lambda q, job: next(q.logs(job, timeout=None)),
    ],
    ids=["result", "stream", "frames", "logs"],
)
def test_a_wait_names_the_job_that_goes_on(
    q: SyncQueue, in_a_moment: Callable[[], None], wait: Callable[[SyncQueue, str], object]
) -> None:
    job = q.submit(1)
    began = time.monotonic()
    in_a_moment()
    with pytest.raises(Detached) as caught:
        wait(q, job)
    assert time.monotonic() - began < 0.65
    assert str(caught.value) == f"detached: {job} still runs; lakeshore cancel {job}"
    assert isinstance(caught.value, KeyboardInterrupt)
    assert q.status(job)["state"] == "queued"  # type: ignore[index]


def test_a_call_names_the_job_that_nobody_has_the_id_of(
    q: SyncQueue, in_a_moment: Callable[[], None]
) -> None:
    in_a_moment()
    with pytest.raises(Detached) as caught:
        q.call(thunk(double, 1))
    assert q.invocations()[0]["id"] in str(caught.value)


def test_a_map_names_all_whose_results_were_not_taken(q: SyncQueue, in_a_moment: Callable[[], None]) -> None:
    results = udf(double).map(range(3), _queue=q)
    in_a_moment()
    with pytest.raises(Detached, match="still run; lakeshore cancel") as caught:
        next(results)
    assert all(id in str(caught.value) for id in results.ids)


def test_a_stream_goes_on_where_it_was_interrupted(q: SyncQueue, in_a_moment: Callable[[], None]) -> None:
    topic = q.topic("metrics")
    topic.post(1)
    stream = topic.stream(timeout=None)
    assert next(stream) == 1
    in_a_moment()
    with pytest.raises(Detached, match=r"topic 'metrics' goes on; read on with since=0"):
        next(stream)
    topic.post(2)
    assert next(stream) == 2


def test_an_interrupted_event_loop_says_it_as_a_note(q: SyncQueue, in_a_moment: Callable[[], None]) -> None:
    job = q.submit(1)

    async def main() -> None:
        in_a_moment()
        await Queue("gpu", dispatch=q.plane).result(job)

    with pytest.raises(KeyboardInterrupt) as caught:
        asyncio.run(main())
    text = "".join(traceback.format_exception(caught.value))
    assert f"detached: {job} still runs; lakeshore cancel {job}" in text


def test_a_time_limit_stays_one(q: SyncQueue) -> None:
    job = q.submit(1)

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await anext(Queue("gpu", dispatch=q.plane).stream(job))

    with pytest.raises(TimeoutError):
        asyncio.run(main())
