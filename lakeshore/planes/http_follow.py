"""Reading a journal over HTTP: cut the stream into rows, go on from the cursor after any cut.

A clean end of a body is not the end of the journal. The end is a final frame, a row that was terminal
before the last look, or the control plane's word that the journal was finished before it answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

import msgpack

from lakeshore import settings
from lakeshore.errors import WaitTimeout
from lakeshore.planes.http_steps import Ask, Close, Open, Read, Rest, Row, Steps, rest
from lakeshore.planes.http_tries import Answer, Broken, Setback, Tries
from lakeshore.planes.protocol import AWAIT, FINISHED, FRAMES, KEEPALIVE_SECONDS, ROWS, STREAM
from lakeshore.states import TERMINAL, State
from lakeshore.wire import FrameKind

_QUIET: Final = 3 * KEEPALIVE_SECONDS
"""Seconds without a byte after which a connection is taken for dead."""
_LOOK_SECONDS: Final = 2.0
"""For ``timeout=0``: how long a look may take when the control plane holds it in spite of ``wait=0``."""
_LONGEST_PAUSE: Final = 1.0
_SNIPPET_BYTES: Final = 2048
_ROW_SLACK: Final = 1024 * 1024
"""What a row may have beside a payload, and what may come beside a row."""


class Reader(Protocol):
    """Cuts the bytes of a body into ``(seq, frame)``."""

    partial: bool

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take more bytes and yield what is now whole; raises `ValueError` for anything else."""
        ...


class Rows:
    """Reads msgpack ``[seq, bytes]`` pairs with a nil here and there."""

    def __init__(self) -> None:
        self._items = msgpack.Unpacker(
            raw=False,
            max_buffer_size=settings.max_payload() + 2 * _ROW_SLACK,
            max_array_len=2,
            max_map_len=0,
            max_str_len=0,
            max_ext_len=0,
            list_hook=_pair,  # of lists in lists none is built
        )
        self._fed = self._whole = 0
        self.partial = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take more bytes and yield the rows that are now whole."""
        try:
            self._items.feed(data)
        except msgpack.BufferFull:
            raise ValueError("no rows: one has more bytes than LAKESHORE_MAX_PAYLOAD") from None
        self._fed += len(data)
        while True:
            self.partial = self._whole < self._fed
            try:
                item = self._items.unpack()
            except msgpack.OutOfData:
                return
            except (TypeError, msgpack.exceptions.UnpackException) as exc:
                raise ValueError(f"no rows ({type(exc).__name__})") from exc
            self._whole = self._items.tell()
            if item is None:
                continue
            if type(item) is not list:
                raise _no_pair()
            yield item[0], item[1]


def _pair(item: list[Any]) -> list[Any]:
    if len(item) == 2 and type(item[0]) is int and type(item[1]) is bytes:
        return item
    raise _no_pair()


def _no_pair() -> ValueError:
    return ValueError("no rows: wants pairs of a seq and bytes")


class Frames:
    """Reads frames back to back; the row's seq stands in each header, bodies are not decoded."""

    def __init__(self) -> None:
        self._scan = msgpack.Unpacker(max_buffer_size=settings.max_payload() + 2 * _ROW_SLACK)
        self._bytes = bytearray()
        self._done = 0
        self.partial = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take more bytes and yield the frames that are now whole."""
        try:
            self._scan.feed(data)
        except msgpack.BufferFull:
            raise ValueError("no frames: one has more bytes than LAKESHORE_MAX_PAYLOAD") from None
        self._bytes += data
        while True:
            self.partial = bool(self._bytes)
            if self._bytes and self._bytes[0] not in (0x94, 0xDC, 0xDD):
                raise ValueError("no frames: each begins as a list of kind, seq, body, meta")
            try:
                self._scan.skip()
            except msgpack.OutOfData:
                return
            except (TypeError, msgpack.exceptions.UnpackException) as exc:
                raise ValueError(f"no frames ({type(exc).__name__})") from exc
            size = self._scan.tell() - self._done
            whole = bytes(self._bytes[:size])
            del self._bytes[:size]
            self._done += size
            yield _seq_of(whole), whole


def _seq_of(frame: bytes) -> int:
    head = msgpack.Unpacker()
    head.feed(frame[:24])
    if head.read_array_header() == 4:
        kind, seq = head.unpack(), head.unpack()
        if type(kind) is int and type(seq) is int and 0 <= kind <= FrameKind.ERROR and seq >= 0:
            return seq
    raise ValueError("no frames: wants lists of kind, seq, body, meta")


def _is_terminal(frame: bytes) -> bool:
    return frame[:1] == b"\x94" and frame[1:2] in (bytes((FrameKind.END,)), bytes((FrameKind.ERROR,)))


def _media(body: Any) -> str:
    """Return the media type of a stream; one that names none is as in the field."""
    media: str = body.media if "content-type" in body.headers else FRAMES
    return media


class Following:
    """One read of one journal.

    Parameters
    ----------
    path : str
        The stream's path, without a query.
    state_of : callable
        Returns the row's state as it is now, None where there is no row or no answer.
    since, timeout
        As for `Plane.journal_read`.
    what : str
        The journal's id, for messages.
    """

    def __init__(
        self,
        tries: Tries,
        path: str,
        state_of: Callable[[], State | None],
        *,
        since: int,
        timeout: float | None,
        what: str,
    ) -> None:
        self._tries, self._path, self._state_of, self._what = tries, path, state_of, what
        self._cursor, self._timeout = since, timeout
        self._deadline = self._from_now()
        self._ended = False  # the row was terminal before the look that is under way
        self._final = False  # the last frame was END or ERROR
        self._interrupted = False  # the last look was cut
        self._failures = self._idle = 0
        self.opened: Any = None

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield ``(seq, frame)`` until the journal is finished, blocking for each."""
        steps, outcome = self.steps(), cast(Any, None)
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration:
                    return
                outcome = None
                if isinstance(step, Row):
                    yield step.seq, step.frame
                elif isinstance(step, Rest):
                    rest(step)
                elif isinstance(step, Open):
                    outcome = self._tries.line.open(
                        STREAM.method,
                        step.path,
                        content=None,
                        accept=step.accept,
                        read_timeout=step.read_timeout,
                    )
                elif isinstance(step, Read):
                    outcome = step.body.read()
                elif isinstance(step, Close):
                    step.body.close()
                elif isinstance(step, Ask):
                    outcome = self._state_of()
        finally:
            if self.opened is not None:
                self.opened.close()

    def steps(self) -> Steps[None]:
        """Read the journal to its end, step by step; an `Ask` wants the state of its row, or None."""
        while True:
            before, began = self._cursor, time.monotonic()
            self.opened = yield from self._open()
            if self.opened is not None:
                finished = yield from self._body(self.opened)
                yield Close(self.opened)
                self.opened = None
                if finished:
                    return
                quick = self._cursor == before and time.monotonic() - began < _LONGEST_PAUSE
                self._idle = self._idle + 1 if quick else 0
            if self._timeout == 0 and not (self._ended or self._interrupted):
                raise self._late()
            if not self._ended and self._idle > 1:
                yield self._rest(min(_LONGEST_PAUSE, 0.05 * 2.0 ** min(self._idle, 8)))

    def _open(self) -> Steps[Any]:
        """Open the stream from the cursor; None when there is nothing to read yet."""
        while True:
            look = self._timeout == 0
            self._read_timeout = (
                _LOOK_SECONDS if look else max(0.05, min(self._deadline - time.monotonic(), _QUIET))
            )
            outcome = yield Open(
                f"{self._path}?since={self._cursor}" + ("&wait=0" if look else ""),
                f"{ROWS}, {FRAMES}",
                self._read_timeout,
            )
            if isinstance(outcome, Broken) and outcome.silent and not look and self._read_timeout < _QUIET:
                raise self._late()  # some servers begin an answer with the first frame
            setback = self._tries.setback(outcome, harmless=True)
            if setback is None:
                assert not isinstance(outcome, (Broken, Answer))
                self._failures = 0
                return (yield from self._checked(outcome))
            if not isinstance(outcome, Broken):
                yield Close(outcome)
            until = time.monotonic() + _LOOK_SECONDS if look and not self._failures else self._deadline
            if not (yield from self._tries.ride_out("journal_read", setback, self._failures, until)):
                if look:  # nobody can say what is there
                    raise self._tries.unavailable("journal_read", setback)
                raise self._late(f" ({setback.why})")
            self._failures += 1

    def _checked(self, body: Any) -> Steps[Any]:
        if body.status < 300 and _media(body) in (ROWS, FRAMES):
            return body
        part = yield Read(body)
        yield Close(body)
        answer = Answer(body.status, body.headers, part if isinstance(part, bytes) else b"")
        if body.status < 300 or self._tries.is_strange(answer):
            raise self._tries.no_answer("journal_read", answer)
        if body.status != 404:
            raise self._tries.refusal("journal_read", STREAM, answer)
        self._idle += 1  # nothing has this id yet
        return None

    def _body(self, body: Any) -> Steps[bool]:
        """Yield the rows of one body; returns whether the journal is finished."""
        plain = _media(body) == FRAMES
        reader: Reader = Frames() if plain else Rows()
        before = self._cursor
        self._interrupted = False
        while True:
            part = yield Read(body)
            if isinstance(part, Broken):
                return self._cut(part, plain=plain)
            if part is None:
                return (yield from self._clean_end(body))
            came, problem = False, ""
            try:
                for seq, frame in reader.feed(part):
                    came = True
                    if seq > self._cursor:
                        self._cursor, self._final = seq, _is_terminal(frame)
                        yield Row(seq, frame)
            except ValueError as exc:
                problem = str(exc)
            if problem and self._cursor == before:
                raise self._tries.no_answer(
                    "journal_read", Answer(body.status, body.headers, part[:_SNIPPET_BYTES]), problem
                )
            if problem:  # what came before was sound: ask again from there
                self._interrupted = True
                return False
            if came or reader.partial:
                self._deadline = self._from_now()
            elif self._timeout:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise self._late()
                if left < self._read_timeout:
                    return False  # only a shorter read ends in time

    def _cut(self, broken: Broken, *, plain: bool) -> bool:
        if self._final and plain:
            return True
        self._interrupted = not broken.silent
        if self._timeout == 0 and self._interrupted and self._idle > 2:
            raise self._tries.unavailable("journal_read", Setback(broken.why, landed=True))
        if self._timeout != 0 and time.monotonic() >= self._deadline:
            raise self._late("" if broken.silent else f" ({broken.why})")
        return False

    def _clean_end(self, body: Any) -> Steps[bool]:
        if self._final or self._ended or FINISHED.lower() in body.headers:
            return True
        state = yield Ask("journal_read", AWAIT, {}, 0.0)
        if state in TERMINAL:
            self._ended = True  # what came with the ending is read by one more look
        elif self._timeout != 0 and time.monotonic() >= self._deadline:
            raise self._late()
        return False

    def _from_now(self) -> float:
        return float("inf") if self._timeout is None else time.monotonic() + self._timeout

    def _rest(self, seconds: float) -> Rest:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return Rest(min(seconds, left))

    def _late(self, why: str = "") -> WaitTimeout:
        return WaitTimeout(
            f"journal_read: no frame of {self._what!r} within {self._timeout:g} s{why}. The job goes on; "
            f"read on with since={self._cursor}."
        )
