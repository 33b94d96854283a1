"""The verbs of a journal: append, extend, read, trim. A journal is derived; truth stays on the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lakeshore.planes import waiting
from lakeshore.planes.contract import SIBLINGS, check_name, check_number
from lakeshore.planes.engine import Engine, Transaction, check_bytes, check_whole
from lakeshore.states import TERMINAL, State

_SEQ_LIMIT = 2**62
_READ_BYTES = 8 * 1024 * 1024
"""What a reader takes at a time, so that a journal of any size is read in bounded memory."""


class Journals(Engine):
    """Append frames, and follow them."""

    def journal_append(
        self,
        inv_id: str,
        seq: int | None,
        frame_bytes: bytes,
        *,
        final: bool = False,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append one frame and return its seq; see `Plane.journal_append`."""
        body = check_bytes(frame_bytes, "frame")
        if seq is not None and check_whole(seq, "seq", 0) >= _SEQ_LIMIT:
            raise ValueError(f"seq {seq!r}: wants None or a whole number below 2**62")
        guard = self._append_guard(inv_id, worker_id, fence)

        def work(tx: Transaction) -> int:
            if guard is not None:
                self._check_claim(tx, guard)
            if seq is None:
                return self._append(tx, inv_id, [body], final=final)
            return self._append_at(tx, inv_id, seq, body, final=final)

        return self._write(work, durable=False)

    def journal_extend(
        self,
        inv_id: str,
        frames: Sequence[bytes],
        *,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append many frames in one transaction and return the last seq (-1 for none)."""
        bodies = [check_bytes(frame, "frame") for frame in frames]
        guard = self._append_guard(inv_id, worker_id, fence)
        if not bodies:
            return -1

        def work(tx: Transaction) -> int:
            if guard is not None:
                self._check_claim(tx, guard)
            return self._append(tx, inv_id, bodies)

        return self._write(work, durable=False)

    def _append_guard(self, inv_id: str, worker_id: str | None, fence: int | None) -> dict[str, Any] | None:
        check_name(inv_id, "journal id")
        if worker_id is None and fence is None:
            return None
        return self._guard(_stem(inv_id), worker_id or "-", fence) | {"any_worker": worker_id is None}

    def _check_claim(self, tx: Transaction, guard: dict[str, Any]) -> None:
        held = tx.rows("holder", guard)
        if held:
            state, worker, fence, _ = held[0]
            mine = guard["any_worker"] or worker == guard["worker"]
            if state == State.RUNNING and mine and guard["fence"] in (None, fence):
                return
        raise self._lost(tx, "journal_append", guard)

    def _append(self, tx: Transaction, journal: str, frames: list[bytes], *, final: bool = False) -> int:
        """Append at the next seqs; `final` closes the journal after the last, unless it was closed."""
        n = len(frames)
        params = {"ns": self._ns, "id": journal, "n": n, "now": self._now()}
        found = tx.rows("journal_end", params)
        if found:
            jid, first = found[0]
            tx.rows("reach_seq", {"jid": jid, "seq": first + n - 1, "now": params["now"]})
        else:
            jid, first = self._open_journal(tx, params), 0
        if n == 1:
            tx.rows("put_frame", {"jid": jid, "seq": first, "body": frames[0]})
        else:
            tx.run_many(
                "put_frame", ({"jid": jid, "seq": first + i, "body": body} for i, body in enumerate(frames))
            )
        if final:
            tx.rows("close_journal", {"jid": jid, "seq": first + n - 1})
        tx.ring(self._journal_topic(journal))
        return int(first + n - 1)

    def _open_journal(self, tx: Transaction, params: dict[str, Any]) -> int | None:
        return tx.added("open_journal", {**params, "stem": _stem(params["id"])})

    def _append_at(self, tx: Transaction, journal: str, seq: int, body: bytes, *, final: bool) -> int:
        """Append at a seq of the caller's; one that exists or was trimmed is absorbed, `final` with it."""
        params = {"ns": self._ns, "id": journal, "n": 0, "now": self._now()}
        found = tx.rows("journal", params)
        if found:
            jid, trimmed_to = found[0]
        else:
            jid, trimmed_to = self._open_journal(tx, params), 0
        if seq < trimmed_to or not tx.changed("put_frame_at", {"jid": jid, "seq": seq, "body": body}):
            return seq
        tx.rows("reach_seq", {"jid": jid, "seq": seq, "now": params["now"]})
        if final:
            tx.rows("close_journal", {"jid": jid, "seq": seq})
        tx.ring(self._journal_topic(journal))
        return seq

    def journal_read(
        self,
        inv_id: str,
        *,
        since: int = -1,
        timeout: float | None = 30.0,
        poll: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield ``(seq, frame)`` after `since` until the journal is finished; see `Plane.journal_read`."""
        check_name(inv_id, "journal id")
        if timeout is not None:
            check_number(timeout, "timeout", minimum=0)
        if poll is not None:
            check_number(poll, "poll", minimum=0)
        check_whole(since, "since", -1)
        return waiting.follow(
            lambda cursor: self._read(lambda tx: self._batch(tx, inv_id, cursor)),
            lambda: self._bells.hang(self._journal_topic(inv_id)),
            since=since,
            timeout=timeout,
            poll=poll,
            what=inv_id,
        )

    def _batch(self, tx: Transaction, journal: str, cursor: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the next frames, and whether the journal is finished after them.

        One statement reads row and journal together, and no frame past what it saw is handed out: a row
        that had ended is read to its last frame, and a job that is queued again in between adds none.
        """
        params = {"ns": self._ns, "id": journal, "stem": _stem(journal)}
        state, jid, next_seq, attempt_seq, closed = tx.rows("journal_state", params)[0]
        ended = state in TERMINAL
        if jid is None:
            return [], ended
        since = attempt_seq - 1 if cursor == -1 else cursor
        last = next_seq - 1 if closed is None else min(closed, next_seq - 1)
        ended = ended or closed is not None
        if since >= last:
            return [], ended
        frames, all_out = tx.frames({"jid": jid, "since": since, "last": last}, _READ_BYTES)
        return frames, ended and all_out

    def journal_trim(self, inv_id: str, *, keep_last: int = 0) -> int:
        """Drop all but the last `keep_last` frames; returns how many were dropped."""
        params = {"ns": self._ns, "id": check_name(inv_id, "journal id")}
        check_whole(keep_last, "keep_last", 0)

        def work(tx: Transaction) -> int:
            bounds = tx.rows("trim_bound", {**params, "keep": min(keep_last, _SEQ_LIMIT)})
            if not bounds:
                return 0
            jid, bound, dropped = bounds[0]
            tx.rows("trim", {"jid": jid, "seq": bound})
            tx.rows("trimmed", {"jid": jid, "seq": bound})
            return int(dropped)

        return self._write(work, durable=False)


def _stem(journal: str) -> str:
    """Return the invocation a journal belongs to: its id without .log or .progress."""
    for suffix in SIBLINGS:
        if journal.endswith(suffix):
            return journal[: -len(suffix)]
    return journal
