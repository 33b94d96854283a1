"""The journals of one running job (values, log, progress) and the thread that flushes what waits.

Slow yields are written at once by the body's own thread. What comes within a millisecond of the last
commit waits for the next one, so a fast body gets group commits, and nothing waits longer than that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lakeshore import wire
from lakeshore.errors import DispatchError
from lakeshore.planes.contract import Plane
from lakeshore.worker.guard import Guard
from lakeshore.worker.keeper import Running
from lakeshore.worker.outage import ridden_out

GATHER: Final = 0.001
"""Seconds a frame may wait for company after the last commit."""
COMMIT_BYTES: Final = 4 * 1024 * 1024
"""Frames of one commit are at most about this large together."""
LOG_GATHER: Final = 0.01
"""Seconds a piece of output waits for company: a print is two writes."""
LOG_FRAMES_A_SECOND: Final = 20
LOG_LIMIT: Final = 1024 * 1024
"""Bytes of output that one job may put in its log."""
DISPLAYS_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of displays that one job may put in its log."""
DISPLAYS_WAITING: Final = 20
PROGRESS_EVERY: Final = 0.1

_log = logging.getLogger("lakeshore.worker")


class Flusher:
    """The thread that flushes journals in which something waits; one a worker."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._waiting: dict[Journals, float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lakeshore-flusher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def at(self, journals: Journals, when: float) -> None:
        """Have ``journals.flush_due`` called at `when` (`time.monotonic`), or sooner where asked for."""
        with self._lock:
            before = self._waiting.get(journals)
            if before is not None and before <= when:
                return
            self._waiting[journals] = when
        self._wake.set()

    def forget(self, journals: Journals) -> None:
        """Flush these journals no more."""
        if self._waiting:
            with self._lock:
                self._waiting.pop(journals, None)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                next_due = min(self._waiting.values(), default=None)
            self._wake.wait(None if next_due is None else max(0.0, next_due - time.monotonic()))
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                due = [journals for journals, when in self._waiting.items() if when <= now]
                for journals in due:
                    del self._waiting[journals]
            for journals in due:
                try:
                    journals.flush_due()
                except Exception:  # noqa: BLE001 - what waits goes out, or fails, at the job's end
                    _log.exception("flushing %s failed", journals.id)


class Writer:
    """Appends frames to the journals of a claim, in order, through outages."""

    __slots__ = ("_job", "_plane")

    def __init__(self, plane: Plane, job: Running) -> None:
        self._plane, self._job = plane, job

    def write(self, frames: Sequence[bytes], suffix: str = "") -> None:
        """Append `frames`, a commit at a time, to the job's own journal or to a sibling.

        Raises
        ------
        ClaimLost
            When the claim is no longer current, or the plane is away and the body was told to stop.
        """
        start = size = 0
        for index, frame in enumerate(frames):
            size += len(frame)
            if size >= COMMIT_BYTES:
                self._commit(frames[start : index + 1], suffix)
                start, size = index + 1, 0
        if start < len(frames):
            self._commit(frames[start:], suffix)

    def _commit(self, frames: Sequence[bytes], suffix: str) -> None:
        job, plane, id = self._job, self._plane, self._job.claimed.id + suffix
        guard: dict[str, Any] = {"worker_id": job.worker_id, "fence": job.claimed.fence}

        def append() -> object:
            if len(frames) == 1:
                return plane.journal_append(id, None, frames[0], **guard)
            return plane.journal_extend(id, frames, **guard)

        ridden_out(append, f"append to {id}", self._gives_up)

    def _gives_up(self) -> str | None:
        reason = self._job.door.reason
        return None if reason in (None, "timeout") else "the body was told to stop"


class Journals:
    """What one running body writes: values at once, log lines and progress at their own pace.

    Parameters
    ----------
    log : bool
        Whether stdout, stderr and displays go to ``{id}.log``.
    guard : Guard or None
        Shields a commit made in the body's thread; None when no body runs in this process.
    """

    def __init__(
        self,
        plane: Plane,
        job: Running,
        flusher: Flusher,
        *,
        log: bool = True,
        guard: Guard | None = None,
        tee: Callable[[str], object] | None = None,
    ) -> None:
        self.id = job.claimed.id
        self._flusher, self._guard, self._tee = flusher, guard, tee
        self._log_on = log
        self._writer = Writer(plane, job)
        self._lock = threading.Lock()  # what waits
        self._commit = threading.Lock()  # the order of commits
        self._pending: list[bytes] = []
        self._flushed_at = 0.0
        self._error: DispatchError | None = None
        self._output: _Output | None = None
        self._progress: dict[str, Any] | None = None
        self._progress_at = 0.0
        self._closed = False

    # -- values

    def values(self, frames: list[bytes]) -> None:
        """Write the frames of one yielded value; called by the body's thread.

        Raises
        ------
        ClaimLost
            When the claim is gone; the body is to end.
        """
        if self._guard is None:
            self._put(frames)
        else:
            with self._guard:
                self._put(frames)

    def _put(self, frames: list[bytes]) -> None:
        self.hold(frames)
        now = time.monotonic()
        if now - self._flushed_at >= GATHER:
            self.flush_values()
        elif len(self._pending) == len(frames):
            self._flusher.at(self, self._flushed_at + GATHER)

    def hold(self, frames: list[bytes]) -> None:
        """Take frames without a commit; `flush_values` follows."""
        if self._error is not None:
            raise self._error
        with self._lock:
            self._pending += frames

    def flush_values(self) -> None:
        """Commit the values that wait, after any commit that is under way."""
        with self._commit:
            with self._lock:
                frames, self._pending = self._pending, []
            if frames:
                try:
                    self._writer.write(frames)
                except DispatchError as exc:
                    self._error = exc
                    raise
                self._flushed_at = time.monotonic()

    # -- log and progress

    def write(self, stream: str, text: str) -> None:
        """Take a piece of the body's stdout or stderr."""
        if self._tee is not None:
            self._tee(text)
        if not self._log_on or self._closed:
            return
        with self._lock:
            output = self._output = self._output or _Output()
            output.add(stream, text)
        self._flusher.at(self, max(output.next_at, time.monotonic() + LOG_GATHER))

    def display(self, bundle: dict[str, Any]) -> None:
        """Take a display: ``{mime: data}``, at most 1 MiB."""
        if not self._log_on or self._closed:
            return
        with self._lock:
            output = self._output = self._output or _Output()
            output.show(bundle)
        self._flusher.at(self, max(output.next_at, time.monotonic() + LOG_GATHER))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Take the newest progress; written at most ten times a second, the last one always."""
        if self._closed:
            return
        self._progress = {"done": done, "total": total, "note": None if note is None else str(note)[:1000]}
        self._flusher.at(self, self._progress_at + PROGRESS_EVERY)

    def flush_due(self) -> None:
        """Commit what is due; called by the flusher."""
        try:
            if self._pending:
                self.flush_values()
            self._flush_side(time.monotonic(), last=False)
        except DispatchError as exc:  # the body's thread learns it at its next yield, or at its end
            self._error = exc

    def _flush_side(self, now: float, *, last: bool) -> None:
        output = self._output
        with self._commit:
            progress = self._progress
            if progress is not None and (last or now >= self._progress_at + PROGRESS_EVERY):
                self._progress, self._progress_at = None, now
                self._writer.write(wire.value_frames(progress), ".progress")
            if output is not None and (last or (output.waits and now >= output.next_at)):
                with self._lock:
                    items = output.take(now, last=last)
                frames = [frame for item in items for frame in wire.value_frames(item)]
                if frames:
                    self._writer.write(frames, ".log")
        if self._progress is not None:
            self._flusher.at(self, self._progress_at + PROGRESS_EVERY)
        if output is not None and output.waits:
            self._flusher.at(self, output.next_at)

    def close(self) -> None:
        """Commit all that waits; called once the body has ended, before its ending.

        Raises
        ------
        ClaimLost
            When the claim was lost on the way.
        """
        self._closed = True
        self._flusher.forget(self)
        if self._flushed_at or self._pending:  # or else no value came
            self.flush_values()
        if self._output is not None or self._progress is not None:
            self._flush_side(time.monotonic(), last=True)
        if self._error is not None:
            raise self._error


class _Output:
    """The output of one body on its way to the log: merged, rated, bounded."""

    __slots__ = (
        "_bytes",
        "_displays",
        "_items",
        "_shown_from",
        "_tokens",
        "dropped",
        "next_at",
        "undisplayed",
    )

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._bytes = 0
        self._tokens = float(LOG_FRAMES_A_SECOND)
        self._shown_from = 0.0
        self._displays = 0
        self.dropped = 0
        self.undisplayed = 0
        self.next_at = 0.0

    @property
    def waits(self) -> bool:
        return bool(self._items)

    def add(self, stream: str, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        room = LOG_LIMIT - self._bytes
        if size > room:
            kept = text.encode("utf-8", "replace")[: max(0, room)].decode("utf-8", "ignore")
            self.dropped += size - len(kept.encode())
            text, size = kept, room
        if not text:
            return
        self._bytes += size
        last = self._items[-1] if self._items else None
        if last is not None and last.get("stream") == stream:
            last["text"].append(text)
        else:
            self._items.append({"stream": stream, "text": [text]})

    def show(self, bundle: dict[str, Any]) -> None:
        size = sum(len(data) for data in bundle.values() if isinstance(data, (str, bytes)))
        if self._displays + size > DISPLAYS_LIMIT:
            self.undisplayed += 1
            return
        self._displays += size
        waiting = [item for item in self._items if "display" in item]
        if len(waiting) >= DISPLAYS_WAITING:  # the newest is what a reader wants to see
            self._items.remove(waiting[0])
            self.undisplayed += 1
        self._items.append({"display": bundle})

    def take(self, now: float, *, last: bool) -> list[dict[str, Any]]:
        """Take what may go now: in order while the rate allows, else merged by stream."""
        self._tokens = min(
            float(LOG_FRAMES_A_SECOND), self._tokens + (now - self._shown_from) * LOG_FRAMES_A_SECOND
        )
        self._shown_from = now
        items, self._items = self._items, []
        if len(items) > self._tokens:
            items = _merged(items)
        if len(items) > self._tokens and not last:  # displays alone outrun the rate: the rest waits
            room = max(1, int(self._tokens))
            items, self._items = items[:room], items[room:]
        self._tokens -= len(items)
        self.next_at = now + (0.02 if self._tokens >= 2 else (2 - self._tokens) / LOG_FRAMES_A_SECOND)
        told = [
            {"stream": item["stream"], "text": "".join(item["text"]).encode("utf-8", "replace").decode()}
            if "stream" in item
            else item
            for item in items
        ]
        if last and self.dropped:
            told.append(_mark(f"{self.dropped:,} more bytes of output dropped; a job's log holds 1 MiB"))
        if last and self.undisplayed:
            told.append(
                _mark(f"{self.undisplayed:,} displays dropped; a log takes 20 a second, 64 MiB in all")
            )
        return told


def _mark(text: str) -> dict[str, Any]:
    return {"stream": "stderr", "text": f"\n[lakeshore: {text}]\n"}


def _merged(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    streams: dict[str, dict[str, Any]] = {}
    merged: list[dict[str, Any]] = []
    for item in items:
        stream = item.get("stream")
        if stream is None:
            merged.append(item)
        elif stream in streams:
            streams[stream]["text"] += item["text"]
        else:
            streams[stream] = item
            merged.append(item)
    return merged
