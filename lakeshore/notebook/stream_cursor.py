"""The reading end of a journal for a panel: raw frames in, events out, bounded in time and size."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing

from lakeshore import wire
from lakeshore.errors import WaitTimeout, WireError
from lakeshore.notebook.render_numerals import size
from lakeshore.notebook.render_values import clip
from lakeshore.notebook.stream_watch import Looks

LARGE_BYTES = 8 * 1024 * 1024
"""Chunked values larger than this are told of by their size and never assembled for a panel."""


class Cursor:
    """The reading end of one journal: raw frames in, events out."""

    def __init__(self, plane: Looks, journal: str, since: int = -1) -> None:
        self._plane, self._journal, self.seq = plane, journal, since
        self._assembler = wire.Assembler()
        self._skipping = False
        self._at_end = False
        self.finished = self.behind = False
        self.gap = 0

    def read(self, deadline: float) -> Iterator[wire.Event | str]:
        """Yield events until the newest frame or the deadline; `finished` then says whether more can come.

        What cannot be shown comes as a str that says why.
        """
        self.finished = self.behind = False
        with closing(self._frames()) as frames:
            for n, (seq, data) in enumerate(frames, 1):
                if self.seq >= 0 and seq > self.seq + 1:
                    self.gap += seq - self.seq - 1
                    self._assembler.gap()
                self.seq = seq
                event = self._take(data)
                if event is not None:
                    yield event
                if n % 64 == 0 and time.monotonic() > deadline:
                    self.behind = True
                    return
        self.finished = self._at_end

    def _frames(self) -> Generator[tuple[int, bytes]]:
        self._at_end = False
        try:
            yield from self._plane.journal_read(self._journal, since=self.seq, timeout=0)
            self._at_end = True
        except WaitTimeout:
            return

    def _take(self, data: bytes) -> wire.Event | str | None:
        try:
            # A frame is a msgpack array of four, so its second byte is its kind.
            kind = data[1] if data[:1] == b"\x94" else None
            if kind == wire.FrameKind.BEGIN:
                self._skipping = False
                total = (wire.Frame.from_bytes(data).meta or {}).get("total")
                if isinstance(total, int) and total > LARGE_BYTES:
                    self._skipping = True
                    self._assembler = wire.Assembler()
                    return f"a value of {size(total)}, too large to show here"
            elif kind == wire.FrameKind.CHUNK and self._skipping:
                return None
            else:
                self._skipping = False
            return self._assembler.feed(data)
        except WireError as error:
            self._assembler = wire.Assembler()
            return f"a frame that cannot be read: {clip(str(error), 200)}"
