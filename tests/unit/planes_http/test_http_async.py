"""The waiting verbs awaited: many at once without a thread each, through the same storms and cuts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable

import pytest
from unit.planes_http.loopback import status
from unit.planes_http.ours import Ours

from lakeshore import (
    DispatchError,
    HttpDispatch,
    InvocationFailed,
    UnknownInvocation,
    WaitTimeout,
    wire,
)

Connect = Callable[..., HttpDispatch]


def test_many_waits_hold_no_thread(ours: Ours, connect: Connect) -> None:
    waits = connect(ours.behind).native_async
    for n in range(100):
        ours.plane.submit("gpu", b"%d" % n, id=f"a-{n}")

    async def main() -> tuple[list[bytes], int]:
        results = [asyncio.create_task(waits.result(f"a-{n}", timeout=20)) for n in range(100)]
        await asyncio.sleep(0.5)
        threads = threading.active_count()
        for _ in range(100):
            claimed = await waits.claim("gpu", "w", wait=5)
            assert claimed is not None
            ours.plane.ack(claimed.id, "w", result=claimed.envelope)
        return await asyncio.gather(*results), threads

    before = threading.active_count()
    told, threads = asyncio.run(main())
    assert told == [b"%d" % n for n in range(100)]
    assert threads - before < 20


def test_the_ends_of_a_wait(ours: Ours, connect: Connect) -> None:
    plane = connect(ours)
    waits = plane.native_async
    ours.plane.submit("gpu", b"e", id="a")
    ours.plane.submit("gpu", b"e", id="b")

    async def main() -> None:
        with pytest.raises(UnknownInvocation):
            await waits.result("none")
        with pytest.raises(WaitTimeout, match="has not ended"):
            await waits.result("a", timeout=0.2)
        with pytest.raises(WaitTimeout, match="no frame"):
            async for _ in waits.journal_read("quiet", timeout=0.3):
                pass
        taken = await waits.claim_many("gpu", "w", 5)
        assert [each.id for each in taken] == ["a", "b"]
        ours.plane.nack("a", "w", error="E: x", retry=False)
        with pytest.raises(InvocationFailed, match="E: x"):
            await waits.result("a")
        assert await waits.claim("gpu", "w", wait=0.2) is None
        waiting = asyncio.create_task(waits.result("b", timeout=None))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    plane.close()
    with pytest.raises(DispatchError, match="closed"):
        asyncio.run(waits.result("b"))


def test_storms_and_cuts_are_ridden_out(ours: Ours, connect: Connect) -> None:
    chance = random.Random(3)
    waits = connect(ours).native_async
    frames = [
        wire.Frame(wire.FrameKind.VALUE, 0, b"x" * chance.choice((0, 10, 300))).to_bytes() for _ in range(100)
    ]
    ours.plane.submit("gpu", b"e", id="a")
    ours.plane.claim("gpu", "w")
    ours.plane.journal_extend("a", frames)
    ours.plane.ack("a", "w", result=b"r", frame=wire.end_frame(0))
    ours.script = {
        "await": [status(503), status(502, b"<html>"), status(429, retry_after="0")],
        "stream": [status(503)],
    }
    ours.cuts = [chance.randrange(1, 4000) for _ in range(12)]

    async def main() -> list[tuple[int, bytes]]:
        assert await waits.result("a") == b"r"
        return [row async for row in waits.journal_read("a")]

    assert asyncio.run(main()) == list(ours.plane.journal_read("a"))
    assert ours.script["await"] == []


def test_a_reader_that_stops_early_is_gone(ours: Ours, connect: Connect) -> None:
    waits = connect(ours.behind).native_async
    ours.plane.journal_append("t", None, b"1")

    async def main() -> None:
        rows = waits.journal_read("t")
        assert await anext(rows) == (0, b"1")
        await rows.aclose()

    asyncio.run(main())
    end = time.monotonic() + 5
    while ours.app.serving.streams and time.monotonic() < end:
        time.sleep(0.01)
    assert ours.app.serving.streams == 0
