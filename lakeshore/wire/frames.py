"""Frames: `[kind, seq, body, meta]`, what a journal is made of, and how a large value travels in chunks."""

from __future__ import annotations

import enum
import reprlib
from dataclasses import dataclass
from typing import Any, Literal

import msgpack

from lakeshore.errors import PackError, UnpackError
from lakeshore.wire.codecs import plain_packb
from lakeshore.wire.values import MAX_DEPTH, decode, pack, unpack

CHUNK_SIZE = 1024 * 1024
MAX_FRAME_BYTES = 512 * 1024 * 1024
_ARRAYS = (0x94, 0xDC, 0xDD)  # how an array of 4 can begin


class FrameKind(enum.IntEnum):
    """What a frame says; END and ERROR are terminal."""

    VALUE = 0
    CHUNK = 1
    BEGIN = 2
    END = 3
    ERROR = 4

    @property
    def terminal(self) -> bool:
        """Whether nothing of this attempt follows."""
        return self >= FrameKind.END


@dataclass(frozen=True, slots=True, repr=False)
class Frame:
    """One entry of a journal.

    Attributes
    ----------
    kind : FrameKind
        What it says.
    seq : int
        What its producer counted; the row's seq in the plane is the truth.
    body : object
        A VALUE's value, a CHUNK's bytes.
    meta : dict or None
        BEGIN ``{"total"}`` or ``{"attempt"}``, END ``{"state"}``, ERROR ``{"type", "message", "traceback"}``.
    """

    kind: FrameKind
    seq: int
    body: Any = None
    meta: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Return the frame's bytes. Raises `PackError` when the body or meta cannot travel."""
        if type(self.seq) is not int or not 0 <= self.seq < 2**63:
            raise PackError(f"cannot pack frame: seq {self.seq!r} wants an int from 0 to 2**63-1")
        if self.meta is not None and type(self.meta) is not dict:
            raise PackError(f"cannot pack frame: meta wants a dict or None, got {type(self.meta).__name__}")
        return _frame(FrameKind(self.kind), self.seq, pack(self.body, at="body"), pack(self.meta, at="meta"))

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Read one frame.

        Raises
        ------
        UnpackError
            When the bytes are no frame, or damaged.
        """
        parts = decode(data, MAX_DEPTH + 1)
        if type(parts) is not list or len(parts) != 4:
            raise UnpackError("not a frame: wants a list of kind, seq, body, meta")
        kind, seq, body, meta = parts
        if type(kind) is not int or kind not in _KINDS:
            raise UnpackError(f"damaged frame: kind {_short(kind)} is none of 0 to 4. Upgrade here?")
        if type(seq) is not int or not 0 <= seq < 2**63:
            raise UnpackError(f"damaged frame: seq {_short(seq)} wants an int from 0 to 2**63-1")
        if meta is not None and type(meta) is not dict:
            raise UnpackError(f"damaged frame: meta wants a map or nil, got {type(meta).__name__}")
        return cls(_KINDS[kind], seq, body, meta)

    def __repr__(self) -> str:
        meta = "" if self.meta is None else f", meta={_short(self.meta)}"
        return f"Frame({self.kind.name}, {self.seq}, {_short(self.body)}{meta})"


_REPR = reprlib.Repr()  # cuts short, and survives a repr that raises
_REPR.maxstring = _REPR.maxother = 120
_KINDS = {int(kind): kind for kind in FrameKind}


def _short(value: object) -> str:
    if isinstance(value, (bytes, bytearray)) and len(value) > 40:
        return f"<{len(value)} bytes>"
    return _REPR.repr(value)


def _frame(kind: FrameKind, seq: int, body: bytes, meta: bytes) -> bytes:
    return b"".join((b"\x94", bytes((kind,)), plain_packb(seq), body, meta))


def value_frames(value: Any, seq: int = 0, *, limit: int | None = None) -> list[bytes]:
    """Return the frames that carry one value: a VALUE, or BEGIN and CHUNKs where it is over `CHUNK_SIZE`.

    Parameters
    ----------
    value : object
        Any wire value.
    seq : int
        The first frame's; the others count on.
    limit : int or None
        The most bytes the packed value may have; None for no limit.

    Raises
    ------
    PackError
        When the value cannot travel, or is over `limit`.
    """
    packed = pack(value, limit=limit)
    if len(packed) <= CHUNK_SIZE:
        return [_frame(FrameKind.VALUE, seq, packed, _NIL)]
    frames = [_frame(FrameKind.BEGIN, seq, _NIL, plain_packb({"total": len(packed)}))]
    for start in range(0, len(packed), CHUNK_SIZE):
        seq += 1
        frames.append(_frame(FrameKind.CHUNK, seq, plain_packb(packed[start : start + CHUNK_SIZE]), _NIL))
    return frames


_NIL = b"\xc0"


def attempt_frame(seq: int, attempt: int) -> bytes:
    """Return the BEGIN that opens attempt `attempt` in a journal that already holds frames of another."""
    return _frame(FrameKind.BEGIN, seq, _NIL, plain_packb({"attempt": attempt}))


def end_frame(seq: int) -> bytes:
    """Return the END of a stream that succeeded."""
    return _frame(FrameKind.END, seq, _NIL, plain_packb({"state": "succeeded"}))


def error_frame(seq: int, *, type: str, message: str, traceback: str | None = None) -> bytes:
    """Return the ERROR of a stream that failed for good: the exception's class name, text and traceback."""
    texts = {"type": type, "message": message, "traceback": traceback}
    clean = {k: v and v.encode("utf-8", "replace").decode() for k, v in texts.items()}
    return _frame(FrameKind.ERROR, seq, _NIL, plain_packb(clean))


def reseq(data: bytes, seq: int) -> bytes:
    """Return a frame's bytes with another seq in its header; its body is not decoded.

    Raises
    ------
    UnpackError
        When the bytes do not begin as a frame.
    """
    head = msgpack.Unpacker(max_buffer_size=32)
    head.feed(data[:24])
    try:
        if head.read_array_header() == 4:
            kind = head.unpack()
            head.skip()
            if type(kind) is int and kind in _KINDS:
                return b"".join((b"\x94", bytes((kind,)), plain_packb(seq), data[head.tell() :]))
    except (ValueError, msgpack.exceptions.UnpackException):
        pass
    raise UnpackError("not a frame: wants a list of kind, seq, body, meta")


class FrameReader:
    """Cuts a byte stream into frames, wherever the stream itself was cut.

    Parameters
    ----------
    max_frame_bytes : int
        The most bytes one frame may have; more are an `UnpackError`.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._bytes = bytearray()
        self._failed: UnpackError | None = None
        # `skip` finds where a frame ends, allocates nothing, and goes on where the bytes had ended
        self._scan = msgpack.Unpacker(max_buffer_size=2**31 - 1)
        self._done = 0

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are held; not 0 where a stream ends means that it was cut."""
        return len(self._bytes)

    def feed(self, data: bytes) -> list[Frame]:
        """Take more bytes and return the frames that are now whole.

        Raises
        ------
        UnpackError
            When the stream holds no frames, a damaged or an oversized one; after the whole frames that
            came before it were returned, so maybe at the next call, and again at each later one.
        """
        if self._failed is not None:
            raise UnpackError(str(self._failed))
        frames: list[Frame] = []
        view = memoryview(data)
        try:
            for start in range(0, len(view), CHUNK_SIZE):
                self._take(view[start : start + CHUNK_SIZE], frames)
        except UnpackError as e:
            self._failed = e
            if not frames:
                raise
        return frames

    def _take(self, data: memoryview, frames: list[Frame]) -> None:
        self._bytes += data
        self._scan.feed(data)  # cannot overflow: what is unread stays below the limit, checked at the end
        while self._bytes:
            if self._bytes[0] not in _ARRAYS:
                raise UnpackError("not a frame stream: a frame begins as a list of kind, seq, body, meta")
            try:
                self._scan.skip()
            except msgpack.OutOfData:
                break
            except (ValueError, msgpack.exceptions.UnpackException) as e:
                raise UnpackError(f"damaged frame stream ({type(e).__name__}: {e})") from e
            end = self._scan.tell()
            whole = bytes(self._bytes[: end - self._done])
            del self._bytes[: end - self._done]
            self._done = end
            if len(whole) > self._max:
                raise UnpackError(f"a frame of {len(whole)} bytes is over the limit of {self._max}")
            frames.append(Frame.from_bytes(whole))
        if len(self._bytes) > self._max:
            raise UnpackError(f"a frame of {len(self._bytes)} bytes or more is over the limit of {self._max}")


@dataclass(frozen=True, slots=True)
class Event:
    """What the frames of a journal come to.

    Attributes
    ----------
    kind : {"value", "attempt", "end", "error"}
        A whole value; another attempt begins; the stream ended; it failed.
    value : object
        The value, where it is one (END may carry one too).
    meta : dict or None
        The frame's meta: ``{"attempt": n}``, ``{"type", "message", "traceback"}``, ...
    """

    kind: Literal["value", "attempt", "end", "error"]
    value: Any = None
    meta: dict[str, Any] | None = None


class Assembler:
    """Makes values of one journal's frames, given in order; a chunk run comes out as the one value it was.

    Attributes
    ----------
    open : bool
        A run is unfinished: a reader's cursor stays before it.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0
        self._orphans = False

    @property
    def open(self) -> bool:
        """Whether a chunk run is unfinished."""
        return self._missing > 0

    def gap(self) -> None:
        """Take note that frames before the next were trimmed: what is left of a cut run is passed over."""
        self._drop()
        self._orphans = True

    def feed(self, data: bytes) -> Event | None:
        """Take one frame's bytes; returns what it completes, or None while a run is incomplete.

        Raises
        ------
        UnpackError
            When the frame is damaged, or a run is cut short, overrun or never begun.
        """
        frame = Frame.from_bytes(data)
        kind, meta = frame.kind, frame.meta or {}
        if kind is FrameKind.CHUNK:
            return self._chunk(frame)
        self._orphans = False
        if kind is FrameKind.BEGIN and "total" not in meta:
            self._drop()
            return Event("attempt", frame.body, frame.meta)
        if self.open:
            missing = self._missing
            self._drop()
            raise UnpackError(
                f"damaged stream: {kind.name} cut a chunk run short, {missing} bytes are missing"
            )
        if kind is FrameKind.BEGIN:
            total = meta["total"]
            if type(total) is not int or total < 1:
                raise UnpackError(f"damaged stream: a total wants 1 byte or more, got {_short(total)}")
            self._missing = total
            return None
        if kind is FrameKind.VALUE:
            return Event("value", frame.body, frame.meta)
        return Event("end" if kind is FrameKind.END else "error", frame.body, frame.meta)

    def _drop(self) -> None:
        self._parts, self._missing = [], 0

    def _chunk(self, frame: Frame) -> Event | None:
        if not self.open:
            if self._orphans:
                return None
            raise UnpackError("damaged stream: a CHUNK without a BEGIN")
        body = frame.body
        if type(body) is not bytes or not 0 < len(body) <= self._missing:
            self._drop()
            size = f"{len(body)} bytes" if type(body) is bytes else type(body).__name__
            raise UnpackError(f"damaged stream: a CHUNK of {size} does not fit its run")
        self._parts.append(body)
        self._missing -= len(body)
        if self._missing:
            return None
        packed = b"".join(self._parts)
        self._drop()
        return Event("value", unpack(packed))
