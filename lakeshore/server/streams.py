"""Streams: a journal's frames as they come, as rows for our clients and as plain frames for the field's.

A body ends cleanly only where the journal does. A server that stops breaks its streams off instead, so that
no client takes their end for the job's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lakeshore.errors import DispatchError, WaitTimeout
from lakeshore.planes import protocol
from lakeshore.planes.protocol import FINISHED, FRAMES, HEADER, KEEPALIVE, ROWS, VERSION
from lakeshore.planes.store_within import Within, check_journal
from lakeshore.server.serving import EVERYONE, Call, Serving

_PART: Final = 256 * 1024
"""What is read of a journal at a time, about; a single frame may be larger."""
_ITEMS: Final = 2000
SEQ_LIMIT: Final = 2**62


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""

    async def stream(call: Call) -> Response:
        journal = check_journal(call.names["id"])
        since = call.whole("since", -1)
        if not -1 <= since < SEQ_LIMIT:
            raise ValueError(f"since: wants -1 or a seq below 2**62, got {since}")
        rows = ROWS in call.request.headers.get("accept", "")
        if call.query("wait", "0") != "0":
            raise ValueError("wait: wants 0, or to be left out")
        look = call.query("wait") is not None
        opened = serving.open_stream(call)
        opened.__enter__()  # the answer closes it, once it has gone out
        try:
            first = await serving.read(part, serving.plane(call.ns), journal, since)
        except BaseException:
            opened.__exit__(None, None, None)
            raise
        return Streamed(serving, call, journal, since, first, rows=rows, look=look, opened=opened)

    return [serving.route(protocol.STREAM, stream, EVERYONE)]


def part(plane: Within, journal: str, since: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Return the next frames that are there, and whether the journal is finished after them."""
    taken: list[tuple[int, bytes]] = []
    size = 0
    frames = plane.journal_read(journal, since=since, timeout=0)
    try:
        for seq, data in itertools.islice(frames, _ITEMS):
            taken.append((seq, data))
            size += len(data)
            if size >= _PART:
                return taken, False
    except WaitTimeout:
        return taken, False
    return taken, len(taken) < _ITEMS


class Streamed(Response):
    """The answer that follows a journal."""

    def __init__(
        self,
        serving: Serving,
        call: Call,
        journal: str,
        since: int,
        first: tuple[list[tuple[int, bytes]], bool],
        *,
        rows: bool,
        look: bool,
        opened: Any,
    ) -> None:
        self._serving, self._call, self._journal, self._cursor = serving, call, journal, since
        self._first, self._rows, self._look, self._opened = first, rows, look, opened
        self._plane = serving.plane(call.ns)
        self.status_code, self.background = 200, None
        self._finished_before = first[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            headers = [
                (b"content-type", (ROWS if self._rows else FRAMES).encode()),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),  # nginx passes on what comes, as it comes
                (HEADER.lower().encode(), VERSION.encode()),
            ]
            if self._finished_before:
                headers.append((FINISHED.lower().encode(), b"1"))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if await self._follow(send):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                scope["lakeshore.cut"] = True
        finally:
            self._opened.__exit__(None, None, None)

    async def _follow(self, send: Send) -> bool:
        """Send what comes; True when the journal has ended, so that the body may."""
        serving, plane, journal = self._serving, self._plane, self._journal
        topic = plane.journal_topic(journal)
        frames, finished = self._first
        loop = asyncio.get_running_loop()
        async with serving.listening(self._call, topic, lambda: plane.has_news(journal, self._cursor)) as (
            ear,
            gone,
        ):
            quiet_since = loop.time()
            while True:
                if frames and not await serving.still_good(self._call):
                    return False  # broken off: whoever asks again is told why
                if frames and not gone.done():
                    await send(self._body(frames))
                    quiet_since = loop.time()
                if finished:
                    return True
                if gone.done() or serving.draining:
                    return False
                if self._look and not frames:
                    return True
                ear.clear()
                try:
                    frames, finished = await serving.read(part, plane, journal, self._cursor)
                except DispatchError:
                    return False  # the store is away: the client asks again, from its cursor
                if frames or finished or self._look:
                    continue
                silence = quiet_since + serving.options.keepalive - loop.time()
                if not await ear.wait(silence) and self._rows:
                    if not await serving.still_good(self._call):
                        return False
                    await send({"type": "http.response.body", "body": KEEPALIVE, "more_body": True})
                if loop.time() >= quiet_since + serving.options.keepalive:
                    quiet_since = loop.time()

    def _body(self, frames: list[tuple[int, bytes]]) -> MutableMapping[str, Any]:
        self._cursor = frames[-1][0]
        item = protocol.row_item if self._rows else protocol.frame_item
        data = b"".join(filter(None, (item(seq, frame) for seq, frame in frames)))
        return {"type": "http.response.body", "body": data, "more_body": True}
