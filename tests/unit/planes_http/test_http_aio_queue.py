"""`Queue` on a control plane: its waits are awaited, and end as those of a local plane do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from unit.planes_http.ours import Ours

from lakeshore import (
    Dispatch,
    HttpDispatch,
    InvocationFailed,
    Queue,
    SyncQueue,
    UnknownInvocation,
    WaitTimeout,
    wire,
)
from lakeshore.queues.aio import offload


@pytest.fixture
def q(ours: Ours, connect: Callable[..., HttpDispatch]) -> Queue:
    return Queue("gpu", dispatch=connect(ours.behind))


def value(item: object) -> bytes:
    return wire.value_frames(item, limit=1000)[0]


def test_many_waits_and_streams_hold_no_thread(ours: Ours, q: Queue) -> None:
    async def main() -> int:
        ids = await q.submit_many(range(30))
        waits = [asyncio.create_task(q.result(id)) for id in ids]
        streams = [asyncio.create_task(_all(q.stream(id))) for id in ids]
        await asyncio.sleep(0.6)
        threads = threading.active_count()
        for _ in ids:
            async with q.working(wait=5) as job:
                assert job is not None
                ours.plane.journal_extend(
                    job.id, [value(job.payload)], worker_id=q.sync.worker_id, fence=job.fence
                )
                job.result = job.payload * 2
        assert await asyncio.gather(*waits) == [2 * n for n in range(30)]
        assert await asyncio.gather(*streams) == [[n] for n in range(30)]
        return threads

    # Each stream looks once, in a pool, whether there is such a job: its threads idle on and hold nothing.
    met = threading.Barrier(31)
    for _ in range(30):
        offload(met.wait)
    met.wait(timeout=10)
    before = threading.active_count()
    assert asyncio.run(main()) - before < 30


async def _all(stream: object) -> list[object]:
    return [item async for item in stream]  # type: ignore[attr-defined]


def test_ends(ours: Ours, q: Queue) -> None:
    async def main() -> None:
        with pytest.raises(UnknownInvocation):
            await q.result("none")
        with pytest.raises(UnknownInvocation):
            await anext(q.stream("none"))
        job = await q.submit(1)
        with pytest.raises(WaitTimeout):
            await q.result(job, timeout=0.1)
        with pytest.raises(WaitTimeout):
            await anext(q.stream(job, timeout=0.1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await q.result(job, timeout=None)
        held = await q.claim()
        assert held is not None
        await q.nack(held, ValueError("no"), retry=False)
        stream = q.stream(job)
        with pytest.raises(InvocationFailed, match="no"):
            await _all(stream)
        assert await _all(stream) == []
        assert await q.claim(wait=0.1) is None
        bad = ours.plane.submit("gpu", b"\xc1 not ours", id="bad")
        assert await q.claim() is None
        assert ours.plane.get(bad)["state"] == "failed"  # type: ignore[index]

    asyncio.run(main())


def test_a_cancelled_step_and_another_loop_lose_nothing(ours: Ours, q: Queue) -> None:
    job = ours.plane.submit("gpu", wire.pack(1), id="job")
    claimed = ours.plane.claim("gpu", "w")
    assert claimed is not None
    stream = q.stream(job)

    def write(n: int) -> None:
        ours.plane.journal_extend(job, [value(n)], worker_id="w", fence=claimed.fence)

    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)
        write(0)
        assert await anext(stream) == 0
        write(1)

    async def later() -> list[object]:
        return [await anext(stream), await anext(stream)]

    asyncio.run(impatient())
    write(2)
    assert asyncio.run(later()) == [1, 2]


def test_a_cancelled_claim_holds_none(ours: Ours, q: Queue) -> None:
    async def main() -> None:
        taking = asyncio.create_task(q.claim(wait=30))
        await asyncio.sleep(0.3)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        job = await q.submit(1)
        await asyncio.sleep(0.2)
        end = time.monotonic() + 5
        while ours.plane.get(job)["state"] != "queued":  # type: ignore[index]
            assert time.monotonic() < end
            await asyncio.sleep(0.05)

    asyncio.run(main())
    assert SyncQueue("gpu", dispatch=ours.plane).count() == 1
    assert isinstance(ours.plane, Dispatch)


@pytest.mark.parametrize("plane", ["control plane", "memory"])
def test_topics_are_awaited(q: Queue, plane: str) -> None:
    if plane == "memory":
        q = Queue("gpu", dispatch=Dispatch(":memory:"))

    async def main() -> None:
        topic = q.topic("metrics")
        heard = asyncio.create_task(_all(topic.listen(timeout=10, with_seq=True)))
        followed = asyncio.create_task(_all(topic.stream(timeout=10)))
        assert await topic.post({"loss": 0.5}) == 0
        assert await q.post("metrics", None) == 1
        assert await topic.post("last", final=True) == 3
        assert await heard == [(0, {"loss": 0.5}), (1, None), (2, "last")]
        assert await followed == [{"loss": 0.5}, None, "last"]
        assert await _all(topic.stream(since=0)) == [None, "last"]
        assert await _all(q.topic("silent").listen(timeout=0.1)) == []
        with pytest.raises(WaitTimeout):
            await anext(q.topic("silent").stream(timeout=0.1))
        with pytest.raises(ValueError, match="topic"):
            q.topic("")

    asyncio.run(main())
    if plane == "memory":
        q.plane.close()
