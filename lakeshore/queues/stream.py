"""`Stream`: the values a job yields, as they come, from a cursor that survives reconnects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakeshore import ports, wire
from lakeshore.errors import Detached, InvocationCancelled, InvocationFailed, UnknownInvocation, WaitTimeout
from lakeshore.planes.contract import Plane
from lakeshore.queues.unserved import NOTICE, unserved, warn
from lakeshore.states import State


class Stream:
    """An iterator over the values of one journal: a job's yields, a topic's posts.

    Iterating blocks for the next value, ends when the job succeeds (or the topic ends), and raises
    when it fails. Shown in a notebook it becomes a live panel with a cursor of its own.

    Attributes
    ----------
    id : str
        The invocation or topic.
    cursor : int
        The seq of the last frame whose value was handed out whole; pass it as `since` to go on from
        here, in any process. -1 at the start.
    attempt : int
        The attempt the last value belongs to.
    run : int
        The seq at which the run began that the last value belongs to; it differs after every retry,
        release and requeue, where `attempt` may repeat. -1 for the first.
    gap : int
        Frames that were trimmed before they could be read here.

    Raises
    ------
    InvocationFailed, InvocationCancelled
        After the values that came before.
    WaitTimeout
        After `timeout` seconds without a frame; iterating again goes on.
    UnknownInvocation
        When no job has this id.
    Detached
        On Ctrl-C, which ends the wait and not the job; iterating again goes on.
    """

    def __init__(
        self,
        plane: Plane,
        id: str,
        *,
        since: int = -1,
        timeout: float | None = 30.0,
        journal: str | None = None,
        of_row: bool = True,
        raises: bool = True,
    ) -> None:
        self.id = id
        self.cursor = since
        self.attempt = 1
        self.run = -1
        self.gap = 0
        self.timeout = timeout
        self.plane = plane
        self._journal = journal or id
        self._of_row, self._raises = of_row, raises
        self._seen = since
        self._pairs: Iterator[tuple[int, bytes]] | None = None
        self._values = wire.Assembler()
        self._failure: wire.Event | None = None
        self._finished = False
        self._known = not of_row
        self._unheard = of_row and timeout is None

    def __repr__(self) -> str:
        return f"Stream(id={self._journal!r}, cursor={self.cursor})"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                event = self._first() if self._unheard else self._step(self.timeout)[1]
            except KeyboardInterrupt:
                raise self._detached() from None
            if event is not None and event.kind == "value":
                return event.value

    def _first(self) -> wire.Event | None:
        """Take the first frame of a wait without an end, and say when no worker will take the job."""
        self._unheard = False
        try:
            return self._step(NOTICE)[1]
        except WaitTimeout:
            warn(self.id, unserved(self.plane, self.id))
            return None

    def frames(self) -> Iterator[tuple[int, wire.Frame]]:
        """Iterate over the frames themselves, with their seqs, from this stream's position."""
        while True:
            try:
                (seq, data), _ = self._step(self.timeout)
            except StopIteration:
                return
            except KeyboardInterrupt:
                raise self._detached() from None
            yield seq, wire.Frame.from_bytes(data)

    def check(self) -> None:
        """Raise `UnknownInvocation` unless the job exists."""
        if not self._known and self.plane.get(self.id) is None:
            raise UnknownInvocation(
                f"stream: no invocation {self.id!r} on this plane. Check the id, the namespace and the plane "
                "(LAKESHORE_HOME, LAKESHORE_URL)."
            )
        self._known = True

    def _step(self, timeout: float | None) -> tuple[tuple[int, bytes], wire.Event | None]:
        """Read one frame; `StopIteration` and the job's failure end the stream."""
        if self._finished:
            raise StopIteration
        self.check()
        if self._pairs is None:
            self._pairs = self.plane.journal_read(self._journal, since=self._seen, timeout=timeout)
        try:
            seq, data = next(self._pairs)
        except StopIteration:
            self._finished = True
            self._end()
            raise
        except BaseException:
            self._pairs = None  # a generator that raised is over; the next step reads on from `_seen`
            raise
        return (seq, data), self._take(seq, data)

    def _take(self, seq: int, data: bytes) -> wire.Event | None:
        """Note one frame; return what it completes."""
        event = self._values.feed(data)
        if event is not None and event.kind == "attempt":
            self.attempt = int((event.meta or {}).get("attempt", self.attempt + 1))
            self.run = seq
            self._failure = None
        elif event is not None and event.kind == "error":
            self._failure = event
        if not (self._seen == -1 and event is not None and event.kind == "attempt"):
            self.gap += max(0, seq - self._seen - 1)
        self._seen = seq
        if not self._values.open:
            self.cursor = seq
        return event

    def _detached(self) -> Detached:
        if self._of_row:
            return Detached.of(self.id)
        return Detached(f"detached: topic {self.id!r} goes on; read on with since={self.cursor}")

    def _end(self) -> None:
        """Raise what the row, or else the last ERROR frame, says."""
        if not self._raises:
            return
        row = self.plane.get(self.id) if self._of_row else None
        if row is not None and row["state"] == State.FAILED:
            raise InvocationFailed.from_row(row)
        if row is not None and row["state"] == State.CANCELLED:
            raise InvocationCancelled(f"stream: invocation {self.id!r} was cancelled.")
        if self._failure is not None and (row is None or row["state"] != State.SUCCEEDED):
            meta = self._failure.meta or {}
            raise InvocationFailed(
                str(meta.get("message") or ""),
                type=str(meta.get("type") or "Error"),
                traceback=meta.get("traceback"),
                id=self.id,
            )

    def _ipython_display_(self) -> None:
        ports.call("show_stream", self)
