"""The verbs of journals, as requests and answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes import protocol
from lakeshore.planes.contract import SIBLINGS, check_id, check_name, check_number
from lakeshore.planes.engine import check_bytes, check_whole
from lakeshore.planes.http_asking import Asking
from lakeshore.planes.http_follow import Following
from lakeshore.planes.http_tries import Refused, Reply
from lakeshore.states import State

_SEQ_LIMIT: Final = 2**62
_MOST_TAKEN: Final = 10_000
"""Seqs that are tried before a journal in the field is taken for one that others fill as fast."""


class Looked(NamedTuple):
    """What is new in many journals and rows.

    Attributes
    ----------
    journals : dict
        By id: the frames beyond the cursor, and whether the journal is finished after them.
    rows : dict
        By invocation: its mark, and the row (None where there is none).
    """

    journals: dict[str, tuple[list[tuple[int, bytes]], bool]]
    rows: dict[str, tuple[int, dict[str, Any] | None]]


class Journalling(Asking):
    """Append, read, trim."""

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
        data = check_bytes(frame_bytes, "frame")
        if seq is not None and check_whole(seq, "seq", 0) >= _SEQ_LIMIT:
            raise ValueError(f"seq {seq!r}: wants a whole number below 2**62")
        guard = self._append_guard(inv_id, worker_id, fence)
        if not self._is_ours("journal_append"):
            return self._append_counted(inv_id, seq, data, final=final)
        body = {**guard, "seq": seq, "bytes": data, "final": bool(final)}
        if seq is not None:
            return self._last(self._chunk(body))
        if fence is None:
            return self._append_once(body)
        return self._append_fenced(inv_id, fence, [data], body, lambda seqs: {**body, "seq": seqs[0]})

    def journal_extend(
        self,
        inv_id: str,
        frames: Sequence[bytes],
        *,
        worker_id: str | None = None,
        fence: int | None = None,
    ) -> int:
        """Append many frames in one transaction and return the last seq (-1 for none)."""
        datas = [check_bytes(frame, "frame") for frame in frames]
        guard = self._append_guard(inv_id, worker_id, fence)
        if not datas:
            return -1
        if not self._is_ours("journal_extend"):
            return [self._append_counted(inv_id, None, data, final=False) for data in datas][-1]

        def body(seqs: Sequence[int | None]) -> dict[str, Any]:
            return {**guard, "frames": [[n, data, False] for n, data in zip(seqs, datas, strict=True)]}

        assigned = body([None] * len(datas))
        if fence is None:
            return self._append_once(assigned)
        return self._append_fenced(inv_id, fence, datas, assigned, body)

    def _append_once(self, body: dict[str, Any]) -> int:
        """Append where others do too: a repeat is known by its nonce."""
        first = {**body, "nonce": secrets.token_bytes(protocol.NONCE_BYTES)}
        return self._last(self._chunk(first, {**first, "again": True}))

    def _append_fenced(
        self,
        journal: str,
        fence: int,
        frames: list[bytes],
        body: dict[str, Any],
        numbered: Callable[[Sequence[int]], dict[str, Any]],
    ) -> int:
        """Append under a fence: what is repeated carries the seqs that the first try was given."""
        count = self._journals.of(journal)
        with count.lock:
            count.under(fence)
            seqs = count.numbered(len(frames))
            again = None if seqs is None else numbered(seqs)
            if again is not None and count.lost == tuple(frames):
                body = again
            try:
                last = self._last(self._chunk(body, again))
            except PlaneUnavailable:
                count.lost = tuple(frames)
                raise
            count.landed(last)
            return last

    def _append_counted(self, journal: str, seq: int | None, data: bytes, *, final: bool) -> int:
        """Append in the field, where each frame wants a seq: one that another took is passed over."""
        body = {"invocation_id": journal, "seq": seq, "bytes": data, "final": bool(final)}
        if seq is not None:
            return self._last(self._chunk(body))
        count = self._journals.of(journal)
        with count.lock:
            for taken in range(count.next or 0, (count.next or 0) + _MOST_TAKEN):
                try:
                    reply = self._chunk({**body, "seq": taken})
                except PlaneUnavailable:
                    count.next, count.lost = taken, (data,)
                    raise
                mine = reply.doubt or count.lost == (data,)
                count.landed(taken)
                if mine or not self._read("journal_append", reply.body, "duplicate", bool, False):
                    return taken
        raise DispatchError(
            f"journal_append: the control plane at {self._tries.address.url} has {count.next} frames of "
            f"{journal!r} already, and assigns no seq. Pass seq=."
        )

    def _chunk(self, body: dict[str, Any], again: dict[str, Any] | None = None) -> Reply:
        return self._ask("journal_append", protocol.CHUNK, body, again=again)

    def _last(self, reply: Reply) -> int:
        return self._read("journal_append", reply.body, "seq", int)

    def _append_guard(self, inv_id: str, worker_id: str | None, fence: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {"invocation_id": check_name(inv_id, "journal id"), "namespace": self._ns}
        if worker_id is not None or fence is not None:
            check_id(stem(inv_id))
            body["worker_id"] = None if worker_id is None else check_name(worker_id, "worker_id")
            body["fence"] = check_fence(fence)
        return body

    def journal_read(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 30.0, poll: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield ``(seq, frame)`` after `since` until the journal is finished; see `Plane.journal_read`.

        `poll` is not needed: the control plane sends what comes.
        """
        return self._following(inv_id, since=since, timeout=timeout, poll=poll).rows()

    def _following(
        self, inv_id: str, *, since: int = -1, timeout: float | None = 30.0, poll: float | None = None
    ) -> Following:
        path = self._path(protocol.STREAM, id=check_name(inv_id, "journal id"))
        if timeout is not None:
            timeout = check_number(timeout, "timeout", minimum=0)
        if poll is not None:
            check_number(poll, "poll", minimum=0)
        check_whole(since, "since", -1)
        return Following(
            self._tries, path, lambda: self._row_state(inv_id), since=since, timeout=timeout, what=inv_id
        )

    def look(
        self, journals: Mapping[str, tuple[int, bool]], rows: Mapping[str, int | None], *, hold: float
    ) -> Looked:
        """Ask for what is new in many journals and rows, in one request that is held until something is.

        Parameters
        ----------
        journals : mapping
            By id: the cursor (-1 for the start), and whether it was finished when last looked at.
        rows : mapping
            By invocation: its mark as last told, None where nothing was told.
        hold : float
            Seconds; the answer is empty when nothing came.

        Raises
        ------
        NotSupported
            When the control plane has no such route.
        """
        self._need_ours("look")
        body = {
            "journals": [[id, since, finished] for id, (since, finished) in journals.items()],
            "rows": [[id, mark] for id, mark in rows.items()],
            "timeout_s": hold,
        }
        refused: Refused
        try:
            answer = self._tries.call("look", protocol.LOOK, self._path(protocol.LOOK), body).body
        except Refused as exc:
            refused = exc
        else:
            return self._looked(answer)
        if refused.status in (404, 405):
            raise self._tries.not_supported("look")
        raise refused.error

    def _looked(self, answer: Mapping[str, Any]) -> Looked:
        told = Looked({}, {})
        for id, each in self._read("look", answer, "journals", dict, {}).items():
            frames = self._read("look", each, "frames", list, [])
            told.journals[id] = (
                [(seq, data) for seq, data in frames],
                self._read("look", each, "finished", bool),
            )
        for id, each in self._read("look", answer, "rows", dict, {}).items():
            told.rows[id] = self._read("look", each, "mark", int), self._read("look", each, "row", dict, None)
        return told

    def _row_state(self, journal: str) -> State | None:
        """Return the state of the journal's row; None where it has none, or nobody says."""
        try:
            return protocol.read_state(self._await("journal_read", stem(journal)))
        except (DispatchError, ValueError):
            return None

    def journal_trim(self, inv_id: str, *, keep_last: int = 0) -> int:
        """Drop all but the last `keep_last` frames; returns how many were dropped."""
        check_name(inv_id, "journal id")
        check_whole(keep_last, "keep_last", 0)
        self._need_ours("journal_trim")
        answer = self._ask("journal_trim", protocol.TRIM, {"keep_last": keep_last}, id=inv_id).body
        return self._read("journal_trim", answer, "count", int)


def stem(journal: str) -> str:
    """Return the invocation a journal belongs to: its id without .log or .progress."""
    for suffix in SIBLINGS:
        if journal.endswith(suffix):
            return journal[: -len(suffix)]
    return journal


def check_fence(fence: int | None) -> int | None:
    """Return a fence, or raise `ValueError`."""
    if fence is not None and (isinstance(fence, bool) or not isinstance(fence, int)):
        raise ValueError(f"fence {fence!r}: wants an int or None, got {type(fence).__name__}")
    return fence
