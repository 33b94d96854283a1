"""`AsyncStream`: a `Stream` for ``async for``; beside it, so that a worker need not load asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from lakeshore.errors import WaitTimeout
from lakeshore.planes.contract import Plane
from lakeshore.queues.aio_wait import awake, let_go
from lakeshore.queues.stream import Stream

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
        return ("value", event.value) if event is not None and event.kind == "value" else ("other", None)
