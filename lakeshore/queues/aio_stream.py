"""`AsyncStream`: a `Stream` for ``async for``; beside it, so that a worker need not load asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from lakeshore.errors import InvocationCancelled, InvocationFailed, WaitTimeout
from lakeshore.planes.contract import Plane
from lakeshore.queues.aio_wait import awake, let_go
from lakeshore.queues.stream import Stream
from lakeshore.wire import Event

SLICE = 1.0
"""The longest a thread is parked for an async reader, seconds."""


class AsyncStream(Stream):
    """A `Stream` for ``async for``: what `Queue.stream` returns.

    One cancelled step does not end the stream: what its thread read is handed out by the next.
    """

    def __init__(
        self, plane: Plane, id: str, *, offload: Callable[[Callable[[], Any]], Future[Any]], **options: Any
    ) -> None:
        super().__init__(plane, id, **options)
        self._offload = offload
        self._pending: Future[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        part = SLICE if self.timeout is None else min(SLICE, self.timeout)
        silent_since = time.monotonic()
        while True:
            try:
                kind, value = await self._step_async(part)
            except WaitTimeout:
                if self.timeout is not None and time.monotonic() - silent_since >= self.timeout:
                    raise
                continue
            silent_since = time.monotonic()
            if kind == "value":
                return value
            if kind == "end":
                raise StopAsyncIteration

    async def _step_async(self, part: float) -> tuple[str, Any]:
        if self._pending is None:
            self._pending = self._offload(lambda: self._tagged_step(part))
        try:
            answer: tuple[str, Any] = await awake(asyncio.shield(asyncio.wrap_future(self._pending)))
        except asyncio.CancelledError as error:
            let_go(error, self._detached())
            raise  # the thread's answer waits for the next step
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        return answer

    def _tagged_step(self, part: float) -> tuple[str, Any]:
        """Step, with the end as a value, since a future cannot carry `StopIteration`."""
        try:
            _, event = self._step(part)
        except StopIteration:
            return "end", None
        return _tagged(event)


class NativeStream(AsyncStream):
    """An `AsyncStream` of a plane whose waits can be awaited: it holds no thread.

    A cancelled step closes its connection; the next one reads on from the last frame that was taken.
    """

    def __init__(self, plane: Plane, id: str, *, waits: Any, **options: Any) -> None:
        super().__init__(plane, id, **options)
        self._waits = waits
        self._rows: AsyncGenerator[tuple[int, bytes], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _step_async(self, part: float) -> tuple[str, Any]:
        if self._finished:
            return "end", None
        loop = asyncio.get_running_loop()
        try:
            if not self._known:
                await awake(asyncio.wrap_future(self._offload(self.check)))
            if self._rows is None or self._loop is not loop:  # a loop that ended has closed what it read
                reading = self._waits.journal_read(self._journal, since=self._seen, timeout=self.timeout)
                self._rows, self._loop = reading, loop
            row = await awake(loop.create_task(_next_row(self._rows)))
            if row is None:
                await awake(asyncio.wrap_future(self._offload(self._end)))
                self._finished = True
                return "end", None
        except asyncio.CancelledError as error:
            self._rows = None
            let_go(error, self._detached())
            raise
        except (InvocationFailed, InvocationCancelled):
            self._finished = True
            raise
        except BaseException:
            self._rows = None
            raise
        return _tagged(self._take(*row))


async def _next_row(rows: AsyncGenerator[tuple[int, bytes], None]) -> tuple[int, bytes] | None:
    return await anext(rows, None)


def _tagged(event: Event | None) -> tuple[str, Any]:
    return ("value", event.value) if event is not None and event.kind == "value" else ("other", None)
