"""`SyncQueue`: submit, wait, stream, cancel, and work a queue by hand; every verb blocks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Never

from lakeshore import ports
from lakeshore.errors import Detached, UnpackError
from lakeshore.planes.contract import (
    Claimed,
    ClaimSpec,
    Plane,
    check_id,
    check_name,
    check_spec,
)
from lakeshore.planes.default import default_plane
from lakeshore.queues.encoding import MISSING, decode, submission
from lakeshore.queues.job import Job, new_worker_id
from lakeshore.queues.stream import Stream
from lakeshore.queues.topic import Topic
from lakeshore.queues.unserved import packed_result
from lakeshore.states import State


class SyncQueue:
    """A queue on a dispatch plane.

    Parameters
    ----------
    name : str
        Any text of 1 to 255 UTF-8 bytes without control characters.
    dispatch : Plane, optional
        Where it lives; default the process-default plane (the local file under LAKESHORE_HOME, or the
        control plane at LAKESHORE_URL).
    kind : {"fifo", "priority", "filo", "boltzmann"}
        The order in which its workers claim, default ``"fifo"``.
    temperature : float
        Boltzmann's T, default 1.

    Examples
    --------
    >>> from lakeshore import Dispatch, SyncQueue, run_worker, thunk
    >>> q = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
    >>> inv = q.submit(thunk(pow, 2, 10))
    >>> run_worker(q, once=True)
    1
    >>> q.result(inv)
    1024
    """

    def __init__(
        self,
        name: str,
        *,
        dispatch: Plane | None = None,
        kind: str = "fifo",
        temperature: float = 1.0,
    ) -> None:
        check_spec(ClaimSpec(check_name(name, "queue"), kind, temperature))
        self.name, self.kind, self.temperature = name, kind, temperature
        self.plane = default_plane() if dispatch is None else dispatch
        self._worker_id: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, dispatch={self.plane!r})"

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    # -- producing ------------------------------------------------------------

    def submit(
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
        """Queue one job for good and return its id.

        Parameters
        ----------
        payload : Any
            A call (`thunk(f, ...)`), or any value of the wire for a program that claims by hand.
        envelope : bytes, optional
            Ready bytes instead of a payload.
        id : str, optional
            Its id; default a new ULID.
        key : str, optional
            Makes the submit repeatable: the same key in this queue returns the same id.
        priority : float
            Higher is sooner, default 0.
        delay : float
            Seconds before it is due, default 0.
        parent : str, optional
            The invocation it belongs to; default the one whose body submits.

        Raises
        ------
        PackError, TransportError
            When the payload cannot travel; nothing is stored.
        DispatchError
            When `id` is taken by another job.
        TypeError
            For arguments after the payload: a call is ``thunk(f, ...)``.
        """
        item = submission(
            payload,
            *more,
            plane=self.plane,
            envelope=envelope,
            id=id,
            key=key,
            priority=priority,
            parent=parent,
            delay=delay,
        )
        return self.plane.submit(
            self.name,
            item.envelope,
            id=item.id,
            key=key,
            priority=priority,
            parent=item.parent,
            delay=delay,
        )

    def submit_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: float = 0.0,
        delay: float = 0.0,
        parent: str | None = None,
    ) -> list[str]:
        """Queue many jobs in one transaction and return their ids in order.

        A function that several of them call by value is pickled once, as it is at the first.
        """
        shared: dict[Any, Any] = {}
        items = [
            submission(
                payload, plane=self.plane, priority=priority, delay=delay, parent=parent, shared=shared
            )
            for payload in payloads
        ]
        return self.plane.submit_many(self.name, items)

    def call(self, payload: Any, timeout: float | None = None) -> Any:
        """Submit and wait for the result; the default `timeout` waits for ever."""
        return self.result(self.submit(payload), timeout=timeout)

    # -- following ------------------------------------------------------------

    def result(self, id: str, timeout: float | None = 30.0) -> Any:
        """Wait for a job to end and return its result.

        Raises
        ------
        InvocationFailed
            With the remote error's type, message and traceback.
        InvocationCancelled, UnknownInvocation
        WaitTimeout
            After `timeout` seconds; None waits for ever, and warns once, after 5 s, when the job is queued
            and no worker asks for its queue. The job goes on.
        Detached
            On Ctrl-C, which ends the wait and not the job; it names the id.
        """
        try:
            result = packed_result(self.plane, id, timeout)
        except KeyboardInterrupt:
            raise Detached.of(id) from None
        return decode(result)

    def fetch(self, id: str, key: str, dest: str | os.PathLike[str] | None = None) -> Path:
        """Return the path of a file (or folder) that a job wrote with `run.write`, brought here if need be.

        Parameters
        ----------
        id : str
            The job.
        key : str
            As the job returned it, relative to the scope it was submitted in.
        dest : path, optional
            Where to put it: a path, or a folder to put it in under the key's name, which is one that exists
            or whose path ends in a slash. Default: below LAKESHORE_HOME, or on a local plane where it lies.

        Raises
        ------
        KeyNotFound
            When nothing is stored under this key; a `FileNotFoundError` too.
        UnknownInvocation
            When no job has this id.
        PlaneUnavailable
            When the control plane does not answer.
        ValueError
            When `dest` lies within what is a file.
        """
        from lakeshore.queues.fetching import fetch  # most notebooks fetch no file

        return fetch(self.plane, id, key, dest)

    def stream(self, id: str, since: int = -1, timeout: float | None = 30.0) -> Stream:
        """Follow what a job yields, from the frame after `since`; see `Stream`.

        Raises
        ------
        UnknownInvocation
            When no job has this id.
        """
        stream = Stream(self.plane, check_id(id), since=since, timeout=timeout)
        stream.check()
        return stream

    def logs(self, id: str, since: int = -1, timeout: float | None = 30.0) -> Stream:
        """Follow what a job prints: dicts with ``stream`` and ``text``, or ``display``.

        It ends with the job, however that ended.
        """
        stream = Stream(
            self.plane, check_id(id), since=since, timeout=timeout, journal=f"{id}.log", raises=False
        )
        stream.check()
        return stream

    def status(self, id: str) -> dict[str, Any] | None:
        """Return a job's row as a dict, or None."""
        return self.plane.get(id)

    def cancel(self, id: str) -> bool:
        """Cancel a queued or running job; False when it had ended, or does not exist."""
        return self.plane.cancel(id)

    def requeue(self, id: str) -> bool:
        """Queue a failed or cancelled job again; False for any other state."""
        return self.plane.requeue(id)

    def count(self, state: str = State.QUEUED) -> int:
        """Count this queue's jobs in one state."""
        return self.plane.count(self.name, state)

    def invocations(
        self, *, state: str | None = None, limit: int = 100, before: str | None = None
    ) -> list[dict[str, Any]]:
        """List this queue's jobs, newest first; page with `before`, the id to go on from."""
        return self.plane.invocations(self.name, state=state, limit=limit, before=before)

    def workers(self) -> list[dict[str, Any]]:
        """List the workers that asked this queue for jobs, latest first."""
        return self.plane.workers(self.name)

    # -- working by hand ------------------------------------------------------

    def claim(self, *, wait: float = 0.0, lease: float = 30.0) -> Job | None:
        """Take the next job to work on it here, waiting up to `wait` seconds for one.

        A job whose payload cannot be decoded is failed, with the reason on its row, and the next one
        is taken.
        """
        while True:
            claimed = self.plane.claim(
                self.name,
                self.worker_id,
                kind=self.kind,
                temperature=self.temperature,
                lease=lease,
                wait=wait,
            )
            if claimed is None:
                return None
            if (job := self.taken(claimed, lease)) is not None:
                return job

    def taken(self, claimed: Claimed, lease: float) -> Job | None:
        """Return a claim of this queue's as a job; one whose payload cannot be decoded is failed: None."""
        try:
            return Job(self.plane, claimed, self.worker_id, lease)
        except UnpackError as error:
            told = {"type": type(error).__name__, "message": f"the payload cannot be decoded: {error}"}
            self.plane.nack(claimed.id, self.worker_id, error=told, retry=False, fence=claimed.fence)
            return None

    def ack(self, job: Job, result: Any = None) -> None:
        """End a claimed job as succeeded; see `Job.ack`."""
        job.ack(result)

    def nack(self, job: Job, error: str | BaseException, *, retry: bool = True, delay: float = 0.0) -> None:
        """Give a claimed job back, or end it as failed; see `Job.nack`."""
        job.nack(error, retry=retry, delay=delay)

    @contextlib.contextmanager
    def working(self, *, wait: float = 0.0, lease: float = 30.0) -> Iterator[Job | None]:
        """Claim a job for a ``with`` block: its lease is kept, and the block's end ends it.

        Yields None when there is no job. Set ``job.result`` to what it is to be acked with; an
        exception gives it back for a retry.
        """
        job = self.claim(wait=wait, lease=lease)
        if job is None:
            yield None
            return
        with job.kept():
            yield job

    @property
    def worker_id(self) -> str:
        """The id under which this object claims."""
        if self._worker_id is None:
            self._worker_id = new_worker_id()
        return self._worker_id

    def worker(self, **options: Any) -> Any:
        """Start a worker for this queue in a thread of this process; see `WorkerThread`.

        In a notebook, whose cells run again, the same call gives the worker that runs already. Other
        options, and scripts, start one more.
        """
        return ports.call("start_worker", self, **options)

    # -- topics ---------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic of this plane."""
        return Topic(name, dispatch=self.plane)

    def post(self, topic: str, value: Any, final: bool = False) -> int:
        """Post a value to a topic; see `Topic.post`."""
        return self.topic(topic).post(value, final=final)

    def _ipython_display_(self) -> None:
        ports.call("show_queue", self)
