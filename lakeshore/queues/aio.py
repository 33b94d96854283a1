"""`Queue`: the verbs of `SyncQueue` for asyncio; the loop is never blocked.

Where the plane's waits can be awaited (a control plane's), they are. Else, and for what answers at once,
verbs run in threads, in slices of at most a second. A cancelled task leaves no thread parked, no claim held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, Never, TypeVar

from lakeshore.errors import Detached, WaitTimeout
from lakeshore.planes.contract import Claimed, Plane, check_id
from lakeshore.queues import unserved
from lakeshore.queues.aio_stream import SLICE, AsyncStream, NativeStream
from lakeshore.queues.aio_topic import AsyncTopic
from lakeshore.queues.aio_wait import awake, let_go
from lakeshore.queues.encoding import MISSING, decode
from lakeshore.queues.job import Job
from lakeshore.queues.sync import SyncQueue
from lakeshore.states import State

T = TypeVar("T")
_LARGE = 1 << 20
"""A result of so many bytes is decoded in a thread."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=256, thread_name_prefix="lakeshore-aio")


def offload(call: Callable[[], T]) -> Future[T]:
    """Run `call` in a thread of this module's own."""
    return _threads().submit(call)


async def _await(call: Callable[[], T]) -> T:
    return await awake(asyncio.wrap_future(offload(call)))


class Queue:
    """A queue on a dispatch plane, for asyncio.

    Parameters and meaning are `SyncQueue`'s; every verb that touches the plane is a coroutine.

    Examples
    --------
    >>> import asyncio
    >>> from lakeshore import Dispatch, Queue
    >>> async def main():
    ...     q = Queue("gpu", dispatch=Dispatch(":memory:"))
    ...     await q.submit({"x": 1})
    ...     return await q.count()
    >>> asyncio.run(main())
    1
    """

    def __init__(
        self,
        name: str,
        *,
        dispatch: Plane | None = None,
        kind: str = "fifo",
        temperature: float = 1.0,
    ) -> None:
        self.sync = SyncQueue(name, dispatch=dispatch, kind=kind, temperature=temperature)
        self.name, self.kind, self.temperature = name, kind, temperature
        self.plane = self.sync.plane

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, dispatch={self.plane!r})"

    async def submit(
        self,
        payload: Any = MISSING,
        *more: Never,
        envelope: bytes | None = None,
        id: str | None = None,
        key: str | None = None,
        priority: float = 0.0,
        delay: float = 0.0,
        parent: str | None = None,
    ) -> str:
        """Queue one job for good and return its id; see `SyncQueue.submit`."""
        return await _await(
            partial(
                self.sync.submit,
                payload,
                *more,
                envelope=envelope,
                id=id,
                key=key,
                priority=priority,
                delay=delay,
                parent=parent,
            )
        )

    async def submit_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: float = 0.0,
        delay: float = 0.0,
        parent: str | None = None,
    ) -> list[str]:
        """Queue many jobs in one transaction and return their ids in order."""
        return await _await(
            partial(self.sync.submit_many, list(payloads), priority=priority, delay=delay, parent=parent)
        )

    async def call(self, payload: Any, timeout: float | None = None) -> Any:
        """Submit and wait for the result; the default `timeout` waits for ever."""
        return await self.result(await self.submit(payload), timeout=timeout)

    async def result(self, id: str, timeout: float | None = 30.0) -> Any:
        """Wait for a job to end and return its result; see `SyncQueue.result`."""
        try:
            return await self._result(id, timeout)
        except asyncio.CancelledError as error:
            let_go(error, Detached.of(id))
            raise

    async def _result(self, id: str, timeout: float | None) -> Any:
        try:
            packed = await self._packed(id, unserved.NOTICE if timeout is None else timeout)
        except WaitTimeout as error:
            if timeout is not None:
                raise await _await(partial(unserved.timed_out, self.plane, id, timeout, error)) from None
            unserved.warn(id, await _await(partial(unserved.unserved, self.plane, id)))
            packed = await self._packed(id, None)
        return decode(packed) if len(packed) < _LARGE else await _await(partial(decode, packed))

    async def _packed(self, id: str, timeout: float | None) -> bytes:
        if (waits := self._waits) is not None:
            return await awake(asyncio.ensure_future(waits.result(id, timeout=timeout)))
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            part = SLICE if end is None else max(0.0, min(SLICE, end - time.monotonic()))
            try:
                return await _await(partial(self.plane.result, id, timeout=part))
            except WaitTimeout:
                if end is not None and time.monotonic() >= end:
                    raise WaitTimeout(
                        f"result: invocation {id!r} has not ended within {timeout:g} s. "
                        "It goes on; ask again with its id."
                    ) from None

    async def fetch(self, id: str, key: str, dest: str | os.PathLike[str] | None = None) -> Path:
        """Return the path of a file that a job wrote, brought here if need be; see `SyncQueue.fetch`."""
        return await _await(partial(self.sync.fetch, id, key, dest))

    def stream(self, id: str, since: int = -1, timeout: float | None = 30.0) -> AsyncStream:
        """Follow what a job yields with ``async for``; see `Stream`."""
        return self._stream(id, since=since, timeout=timeout)

    def logs(self, id: str, since: int = -1, timeout: float | None = 30.0) -> AsyncStream:
        """Follow what a job prints with ``async for``; see `SyncQueue.logs`."""
        return self._stream(id, since=since, timeout=timeout, journal=f"{id}.log", raises=False)

    def _stream(self, id: str, **options: Any) -> AsyncStream:
        if (waits := self._waits) is not None:
            return NativeStream(self.plane, check_id(id), waits=waits, offload=offload, **options)
        return AsyncStream(self.plane, check_id(id), offload=offload, **options)

    async def status(self, id: str) -> dict[str, Any] | None:
        """Return a job's row as a dict, or None."""
        return await _await(partial(self.sync.status, id))

    async def cancel(self, id: str) -> bool:
        """Cancel a queued or running job; False when it had ended, or does not exist."""
        return await _await(partial(self.sync.cancel, id))

    async def requeue(self, id: str) -> bool:
        """Queue a failed or cancelled job again; False for any other state."""
        return await _await(partial(self.sync.requeue, id))

    async def count(self, state: str = State.QUEUED) -> int:
        """Count this queue's jobs in one state."""
        return await _await(partial(self.sync.count, state))

    async def invocations(
        self, *, state: str | None = None, limit: int = 100, before: str | None = None
    ) -> list[dict[str, Any]]:
        """List this queue's jobs, newest first."""
        return await _await(partial(self.sync.invocations, state=state, limit=limit, before=before))

    async def workers(self) -> list[dict[str, Any]]:
        """List the workers that asked this queue for jobs, latest first."""
        return await _await(self.sync.workers)

    async def claim(self, *, wait: float = 0.0, lease: float = 30.0) -> Job | None:
        """Take the next job, waiting up to `wait` seconds; a cancelled wait holds no claim."""
        end = time.monotonic() + wait
        if self._waits is not None:
            return await self._claim_awaited(end, lease)
        while True:
            part = max(0.0, min(SLICE, end - time.monotonic()))
            taking = offload(partial(self.sync.claim, wait=part, lease=lease))
            try:
                job = await awake(asyncio.shield(asyncio.wrap_future(taking)))
            except asyncio.CancelledError:
                taking.add_done_callback(lambda taken: offload(partial(_hand_back, taken)))
                raise
            if job is not None or time.monotonic() >= end:
                return job

    async def _claim_awaited(self, end: float, lease: float) -> Job | None:
        q = self.sync
        while True:
            taking = asyncio.ensure_future(
                self._waits.claim(
                    q.name,
                    q.worker_id,
                    kind=q.kind,
                    temperature=q.temperature,
                    lease=lease,
                    wait=max(0.0, end - time.monotonic()),
                )
            )
            try:
                claimed = await awake(taking)
                job = None if claimed is None else await _await(partial(q.taken, claimed, lease))
            except asyncio.CancelledError:
                taking.add_done_callback(partial(_release, q))
                raise
            if claimed is None or job is not None:
                return job

    @property
    def _waits(self) -> Any:
        """The plane's waiting verbs, to be awaited; None where it has none."""
        return getattr(self.plane, "native_async", None)

    async def ack(self, job: Job, result: Any = None) -> None:
        """End a claimed job as succeeded; see `Job.ack`."""
        await _await(partial(job.ack, result))

    async def nack(
        self, job: Job, error: str | BaseException, *, retry: bool = True, delay: float = 0.0
    ) -> None:
        """Give a claimed job back, or end it as failed; see `Job.nack`."""
        await _await(partial(job.nack, error, retry=retry, delay=delay))

    @contextlib.asynccontextmanager
    async def working(self, *, wait: float = 0.0, lease: float = 30.0) -> AsyncIterator[Job | None]:
        """Claim a job for an ``async with`` block; see `SyncQueue.working`."""
        job = await self.claim(wait=wait, lease=lease)
        if job is None:
            yield None
            return
        kept = job.kept()
        kept.__enter__()
        try:
            yield job
        except BaseException as error:
            if not await _await(partial(kept.__exit__, type(error), error, error.__traceback__)):
                raise
        else:
            await _await(partial(kept.__exit__, None, None, None))

    def worker(self, **options: Any) -> Any:
        """Start a worker for this queue in a thread of this process; see `WorkerThread`."""
        return self.sync.worker(**options)

    def topic(self, name: str) -> AsyncTopic:
        """Return a topic of this plane, whose verbs are coroutines."""
        return AsyncTopic(name, dispatch=self.plane, offload=offload)

    async def post(self, topic: str, value: Any, final: bool = False) -> int:
        """Post a value to a topic; see `Topic.post`."""
        return await _await(partial(self.sync.post, topic, value, final=final))

    def _ipython_display_(self) -> None:
        self.sync._ipython_display_()


def _release(q: SyncQueue, taking: asyncio.Future[Claimed | None]) -> None:
    """Give back what was claimed for a task that was cancelled meanwhile."""
    claimed = None if taking.cancelled() or taking.exception() else taking.result()
    if claimed is not None:
        offload(partial(q.plane.release, claimed.id, q.worker_id, fence=claimed.fence))


def _hand_back(taking: Future[Job | None]) -> None:
    job = None if taking.cancelled() or taking.exception() else taking.result()
    if job is not None:
        job.release()
