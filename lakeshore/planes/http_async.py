"""The waiting verbs of a control plane for an event loop: their steps, awaited instead of blocking.

A cancelled wait closes its connection; a claim that was made meanwhile is handed back by the control plane,
which sees the client go, or lapses with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from lakeshore.errors import DispatchError
from lakeshore.planes import protocol
from lakeshore.planes.contract import Claimed
from lakeshore.planes.http_journals import stem
from lakeshore.planes.http_steps import Ask, Close, Open, Read, Rest, Row, Steps
from lakeshore.planes.http_tries import HOLD_MARGIN, Reply
from lakeshore.planes.protocol import MSGPACK
from lakeshore.states import State

if TYPE_CHECKING:
    from lakeshore.planes.http import HttpDispatch
    from lakeshore.planes.http_line import AsyncLine

T = TypeVar("T")


class AsyncWaits:
    """`result`, `claim`, `claim_many` and `journal_read` of one `HttpDispatch`, awaited.

    Parameters and meaning are the blocking verbs'.
    """

    def __init__(self, plane: HttpDispatch, line: AsyncLine) -> None:
        self._plane, self._line = plane, line

    async def result(self, inv_id: str, *, timeout: float | None = 30.0, poll: float | None = None) -> bytes:
        """Wait for the job to end and return its packed result; see `Plane.result`."""
        return await self._drive(self._plane._result_steps(inv_id, timeout=timeout, poll=poll))

    async def claim(self, queue: str, worker_id: str, **options: Any) -> Claimed | None:
        """Take the next due job, waiting up to `wait` seconds for one; see `Plane.claim`."""
        taken = await self.claim_many(queue, worker_id, 1, **options)
        return taken[0] if taken else None

    async def claim_many(self, queue: str, worker_id: str, n: int, **options: Any) -> list[Claimed]:
        """Take up to `n` jobs in one transaction; see `Plane.claim_many`."""
        return await self._drive(self._plane._claim_steps(queue, worker_id, n, **options))

    async def journal_read(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 30.0, poll: float | None = None
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield ``(seq, frame)`` after `since` until the journal is finished; see `Plane.journal_read`."""
        following = self._plane._following(inv_id, since=since, timeout=timeout, poll=poll)
        async with aclosing(self._walk(inv_id, following.steps())) as steps:
            try:
                async for step in steps:
                    yield step.seq, step.frame
            finally:
                if following.opened is not None:
                    await following.opened.close()

    async def _drive(self, steps: Steps[T]) -> T:
        outcome: Any = None
        try:
            while True:
                outcome = await self._do(steps.send(outcome))
        except StopIteration as done:
            value: T = done.value
        return value

    async def _walk(self, journal: str, steps: Steps[None]) -> AsyncGenerator[Row, None]:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, Row):
                yield step
            elif isinstance(step, Ask):
                outcome = await self._state(journal)
            else:
                outcome = await self._do(step)

    async def _state(self, journal: str) -> State | None:
        """Return the state of the journal's row; None where it has none, or nobody says."""
        body = self._plane._await_body(stem(journal), 0.0)
        try:
            reply = await self._do(Ask("journal_read", protocol.AWAIT, body, 0.0, miss=True))
            return protocol.read_state(reply.body) if isinstance(reply, Reply) else None
        except (DispatchError, ValueError):
            return None

    async def _do(self, step: Any) -> Any:
        if isinstance(step, Rest):
            return await asyncio.sleep(max(0.0, step.seconds))
        if isinstance(step, Read):
            return await step.body.read()
        if isinstance(step, Close):
            return await step.body.close()
        if isinstance(step, Open):
            route = protocol.STREAM
            return await self._line.open(
                route.method, step.path, content=None, accept=step.accept, read_timeout=step.read_timeout
            )
        outcome = await self._line.send(
            step.route.method,
            self._plane._path(step.route),
            content=protocol.pack(step.body),
            accept=MSGPACK,
            read_timeout=step.hold + HOLD_MARGIN,
            payloads=step.body.get("capacity", 1),
        )
        return self._plane._answered(step.verb, step.route, step.body, outcome, miss=step.miss)
