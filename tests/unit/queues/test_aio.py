"""Queue: the loop is never blocked, and a cancelled task leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from lakeshore import Dispatch, InvocationFailed, Queue, SyncQueue, UnknownInvocation, WaitTimeout, wire


@pytest.fixture
def q() -> Queue:
    return Queue("gpu", dispatch=Dispatch(":memory:"))


def emit(q: Queue, id: str, *values) -> None:
    for value in values:
        q.plane.journal_extend(id, wire.value_frames(value))


def test_submit_claim_ack_result(q):
    async def main():
        inv = await q.submit({"x": 1})
        job = await q.claim()
        await q.ack(job, job.payload["x"] + 1)
        return await q.result(inv), await q.count("succeeded"), (await q.status(inv))["state"]

    assert asyncio.run(main()) == (2, 1, "succeeded")


def test_the_loop_runs_on_while_a_stream_waits(q):
    async def main():
        inv = await q.submit(1)
        await q.claim()
        stream, ticks, got = q.stream(inv, timeout=5), 0, []

        async def read():
            async for value in stream:
                got.append(value)
                waiting.set()

        waiting = asyncio.Event()
        task = asyncio.create_task(read())
        emit(q, inv, "first")
        await waiting.wait()
        for _ in range(20):
            await asyncio.sleep(0.005)
            ticks += 1
        emit(q, inv, "second")
        q.plane.journal_append(inv, None, wire.end_frame(2), final=True)
        await task
        return got, ticks

    assert asyncio.run(main()) == (["first", "second"], 20)


def test_a_cancelled_step_loses_no_value(q):
    async def main():
        inv = await q.submit(1)
        await q.claim()
        stream, got = q.stream(inv, timeout=5), []
        for value in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(stream)
            emit(q, inv, value)
            got.append(await anext(stream))
        return got

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_a_cancelled_claim_is_handed_back(q):
    async def main():
        for _ in range(3):
            task = asyncio.create_task(q.claim(wait=30))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        inv = await q.submit(1)
        job = await q.claim(wait=5)
        return inv, job

    inv, job = asyncio.run(main())
    assert (job.id, job.attempt) == (inv, 1)


class Counting(Dispatch):
    """Counts the calls that are under way."""

    under_way = 0

    def _counted(self, call):
        self.under_way += 1
        try:
            return call()
        finally:
            self.under_way -= 1

    def claim(self, *args, **options):
        return self._counted(lambda: Dispatch.claim(self, *args, **options))

    def result(self, *args, **options):
        return self._counted(lambda: Dispatch.result(self, *args, **options))


@pytest.mark.parametrize("verb", ["claim", "result", "call"])
def test_a_cancelled_task_leaves_no_thread_parked(verb):
    with Counting(":memory:") as plane:
        q = Queue("gpu", dispatch=plane)

        async def main():
            inv = await q.submit(1)
            if verb == "claim":
                await q.claim()
            waits = {
                "claim": lambda: q.claim(wait=60),
                "result": lambda: q.result(inv, timeout=None),
                "call": lambda: q.call(1),
            }
            tasks = [asyncio.create_task(waits[verb]()) for _ in range(5)]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*tasks, return_exceptions=True)
            )

        asyncio.run(main())
        until = time.monotonic() + 1.5
        while plane.under_way:
            assert time.monotonic() < until, f"{plane.under_way} threads wait on"
            time.sleep(0.01)
        assert plane.count("gpu", "running") == (1 if verb == "claim" else 0)


def test_a_claim_that_was_cancelled_as_it_came_does_not_block_the_loop():
    """It is handed back by another thread, however long that takes."""

    class Slow(Dispatch):
        released = threading.Event()

        def release(self, *args, **options):
            time.sleep(0.5)
            super().release(*args, **options)
            self.released.set()

    with Slow(":memory:") as plane:
        q = Queue("gpu", dispatch=plane)

        async def main():
            await q.submit(1)
            task = asyncio.create_task(q.claim())
            await asyncio.sleep(0)
            time.sleep(0.2)  # the thread has the job; the task does not know yet
            task.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - began

        assert asyncio.run(main()) < 0.3
        assert plane.released.wait(5)
        assert (plane.count("gpu"), plane.count("gpu", "running")) == (1, 0)


def test_result_times_out_and_fails_as_the_row_says(q):
    async def main():
        inv = await q.submit(1)
        with pytest.raises(WaitTimeout, match=inv):
            await q.result(inv, timeout=0.02)
        await q.nack(await q.claim(), "ValueError: broke", retry=False)
        with pytest.raises(InvocationFailed, match="broke"):
            await q.result(inv)
        with pytest.raises(InvocationFailed, match="broke"):
            async for _ in q.stream(inv):
                pass
        with pytest.raises(UnknownInvocation):
            await anext(q.stream("01NOBODY"))
        with pytest.raises(WaitTimeout):
            await anext(q.stream(await q.submit(2), timeout=0.02))

    asyncio.run(main())


def test_working(q):
    async def main():
        inv = await q.submit(20)
        async with q.working() as job:
            job.result = job.payload + 1
        with pytest.raises(RuntimeError):
            await q.submit(1)
            async with q.working():
                raise RuntimeError("not today")
        return await q.result(inv), await q.count()

    assert asyncio.run(main()) == (21, 1)


def test_many_streams_at_once(q):
    async def main():
        ids = await q.submit_many(range(40))
        streams = [asyncio.create_task(anext(q.stream(id, timeout=10))) for id in ids]
        await asyncio.sleep(0.05)
        threading.Thread(target=lambda: [emit(q, id, id) for id in ids]).start()
        return ids == await asyncio.gather(*streams)

    assert asyncio.run(main())


def test_a_sync_queue_works_inside_a_running_loop(q):
    async def main():
        sync = SyncQueue("gpu", dispatch=q.plane)
        inv = sync.submit(1)
        sync.claim().ack(2)
        return sync.result(inv)

    assert asyncio.run(main()) == 2
