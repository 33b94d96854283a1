"""`AsyncTopic`: a `Topic` for asyncio, with the same verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from lakeshore.errors import WaitTimeout
from lakeshore.planes.contract import Plane
from lakeshore.queues.aio_stream import AsyncStream, NativeStream
from lakeshore.queues.aio_wait import awake
from lakeshore.queues.topic import Topic


class AsyncTopic:
    """A named stream of values on a plane, for asyncio: what `Queue.topic` returns.

    Parameters and meaning are `Topic`'s.
    """

    def __init__(
        self, name: str, *, dispatch: Plane, offload: Callable[[Callable[[], Any]], Future[Any]]
    ) -> None:
        self.sync = Topic(name, dispatch=dispatch)
        self.name, self.plane = self.sync.name, dispatch
        self._offload = offload

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    async def post(self, value: Any, final: bool = False) -> int:
        """Append a value, and return the seq of its last frame; see `Topic.post`."""
        posting = self._offload(partial(self.sync.post, value, final=final))
        seq: int = await awake(asyncio.wrap_future(posting))
        return seq

    def stream(self, since: int = -1, timeout: float | None = 5.0) -> AsyncStream:
        """Follow the topic with ``async for``; `WaitTimeout` after `timeout` seconds of silence."""
        options: dict[str, Any] = {"since": since, "timeout": timeout, "of_row": False}
        if (waits := getattr(self.plane, "native_async", None)) is not None:
            return NativeStream(self.plane, self.name, waits=waits, offload=self._offload, **options)
        return AsyncStream(self.plane, self.name, offload=self._offload, **options)

    async def listen(
        self, since: int = -1, timeout: float | None = 5.0, with_seq: bool = False
    ) -> AsyncIterator[Any]:
        """Follow the topic with ``async for`` until it ends, or until `timeout` seconds of silence.

        Yields values, or ``(seq, value)`` with `with_seq`.
        """
        stream = self.stream(since, timeout)
        while True:
            try:
                value = await anext(stream)
            except (StopAsyncIteration, WaitTimeout):
                return
            yield (stream.cursor, value) if with_seq else value
