"""`Topic`: a named journal that anybody posts to and anybody follows, without a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lakeshore import settings, wire
from lakeshore.errors import DispatchError, WaitTimeout
from lakeshore.planes.contract import Plane, check_name
from lakeshore.queues.stream import Stream


class Topic:
    """A named stream of values on a plane.

    Parameters
    ----------
    name : str
        Any text of 1 to 255 UTF-8 bytes without control characters.
    dispatch : Plane
        The plane it lives on.

    Examples
    --------
    >>> from lakeshore import Dispatch, SyncQueue
    >>> topic = SyncQueue("gpu", dispatch=Dispatch(":memory:")).topic("metrics")
    >>> topic.post({"loss": 0.5})
    0
    >>> topic.post(None, final=True)
    1
    >>> list(topic.stream())
    [{'loss': 0.5}]
    """

    def __init__(self, name: str, *, dispatch: Plane) -> None:
        self.name = check_name(name, "topic")
        self.plane = dispatch

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def post(self, value: Any, final: bool = False) -> int:
        """Append a value, and return the seq of its last frame.

        Parameters
        ----------
        value : Any
            Anything the wire takes; falsy values are values.
        final : bool
            End the topic after it. A None given with it ends the topic without a value. It is for good;
            ending it again changes nothing.

        Raises
        ------
        PackError
            When the value has no form on the wire, or is over the payload limit.
        DispatchError
            When the topic has ended: no reader would see the value.
        """
        frames = [] if final and value is None else wire.value_frames(value, limit=settings.max_payload())
        seq = -1
        if len(frames) == 1:
            seq = self.plane.journal_append(self.name, None, frames[0])
        elif frames:
            seq = self.plane.journal_extend(self.name, frames)
        if frames:
            self._check_seen(seq)
        if final:
            seq = self.plane.journal_append(self.name, None, wire.end_frame(seq + 1), final=True)
        return seq

    def _check_seen(self, seq: int) -> None:
        """Raise unless readers come to `seq`; asked after the append, so that no end can come in between."""
        try:
            seen = next(self.plane.journal_read(self.name, since=seq - 1, timeout=0), None)
        except WaitTimeout:
            return  # trimmed already: the topic is open
        if seen is None:
            raise DispatchError(
                f"post: topic {self.name!r} has ended, and its readers stop there: nobody would see this "
                "value. Post to a topic of another name."
            )

    def stream(self, since: int = -1, timeout: float | None = 5.0) -> Stream:
        """Follow the topic; raises `WaitTimeout` after `timeout` seconds of silence."""
        return Stream(self.plane, self.name, since=since, timeout=timeout, of_row=False)

    def listen(self, since: int = -1, timeout: float | None = 5.0, with_seq: bool = False) -> Iterator[Any]:
        """Follow the topic until it ends, or until `timeout` seconds of silence.

        Yields values, or ``(seq, value)`` with `with_seq`.
        """
        stream = self.stream(since, timeout)
        while True:
            try:
                value = next(stream)
            except (StopIteration, WaitTimeout):
                return
            yield (stream.cursor, value) if with_seq else value
