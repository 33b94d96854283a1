"""`Within`: one namespace of a store that a server shares out, with the few looks that only a server needs.

It speaks through the primitives of another engine, so it opens nothing and costs nothing; any engine will do.
What a server keeps for itself (tokens, who made a claim) are rows and journals of `RESERVED`, a namespace
that no client can name, so they travel with the store, its backups and its locks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lakeshore.planes import protocol
from lakeshore.planes.contract import (
    SIBLINGS,
    Claimed,
    ClaimSpec,
    Submission,
    check_id,
    check_name,
    check_spec,
)
from lakeshore.planes.engine import Transaction, check_bytes, check_whole
from lakeshore.planes.moving_side import CLOSED
from lakeshore.planes.store import Store
from lakeshore.planes.store_journals import _SEQ_LIMIT, _stem

T = TypeVar("T")
RESERVED: Final = "\x01lakeshore"
_REPEATS: Final = 500
"""Calls about one journal, or of one worker, after which a repeat is no longer known for one."""
_LEASE_UNTIL: Final = 16
"""The place of lease_until in the statement ``row``."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who claims, as its row among the workers shows it."""

    host: str
    pid: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds an invocation now: its state, the worker, fence and attempt of the last claim, its row.

    An id may be used again once its row is pruned; `row` never is.
    """

    state: str
    worker_id: str | None
    fence: int
    attempt: int
    row: int


@dataclass(frozen=True, slots=True)
class Once:
    """Which call it is, for one that is to land once although its answer may be lost.

    Attributes
    ----------
    nonce : bytes
        Sixteen bytes, the same in every try of the call.
    again : bool
        Whether an earlier try may have landed.
    """

    nonce: bytes
    again: bool = False


class Within(Store):
    """A namespace of `engine`.

    Parameters
    ----------
    engine : Store
        The store; it stays open until whoever opened it closes it.
    ns : str
        The namespace; not checked here, since `RESERVED` must pass.
    presence : Presence, optional
        For whom this one claims; without it, this process.
    maker : str, optional
        The digest of the token that claims here; noted in the transaction of each claim.
    """

    def __init__(
        self, engine: Store, ns: str, presence: Presence | None = None, maker: str | None = None
    ) -> None:
        self._engine, self._ns, self._presence, self._maker = engine, ns, presence, maker
        self._seen: dict[tuple[str, str], float] = {}
        self._bells = engine._bells

    def __repr__(self) -> str:
        return f"Within({self._engine!r}, ns={self._ns!r})"

    @property
    def trusted(self) -> bool:
        """As the engine is."""
        return self._engine.trusted

    def close(self) -> None:
        """Nothing is held: the engine's owner closes it."""

    def _write(self, work: Callable[[Transaction], T], *, durable: bool = True) -> T:
        return self._engine._write(work, durable=durable)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return self._engine._read(work)

    def _now(self) -> float:
        return self._engine._now()

    def _lease_clock(self) -> float:
        return self._engine._lease_clock()

    def _lease_epoch(self) -> str:
        return self._engine._lease_epoch()

    def _note_presence(self, tx: Transaction, worker_id: str, queue: str) -> None:
        if self._presence is None:
            super()._note_presence(tx, worker_id, queue)
            return
        now = self._now()
        who = {"host": self._presence.host, "pid": self._presence.pid, "version": self._presence.version}
        tx.rows("seen", {"ns": self._ns, "worker": worker_id, "queue": queue, "now": now, **who})

    # -- what a server looks at -------------------------------------------------

    def seconds_until_due(self, queue: str) -> float:
        """Return seconds until `queue` has a job to take, 0 or less when there is one, 1 at most."""
        return self._due_in(queue)

    def moved(self) -> str | None:
        """Return what `lakeshore migrate` says of a store that it closed, None for one that is open."""

        def look(tx: Transaction) -> list[tuple[Any, ...]]:
            return tx.rows("moved_where", {}) if tx.rows("shown_version", {})[0][0] == CLOSED else []

        said = self._read(look)
        return str(said[0][0]) if said else None

    def holder(self, inv_id: str) -> Holder | None:
        """Return who holds an invocation, None when there is none of this id."""
        rows = self._read(lambda tx: tx.rows("holder", {"ns": self._ns, "id": inv_id}))
        row = self.row_of(inv_id)  # read last: of a row that is replaced meanwhile nobody is the maker
        if not rows or row is None:
            return None
        state, worker, fence, attempt = rows[0]
        return Holder(state, worker, fence, attempt, row)

    def row_of(self, inv_id: str) -> int | None:
        """Return the number of an invocation's row, which no other row ever has; None where there is none."""
        rows = self._read(lambda tx: tx.rows("place", {"ns": self._ns, "id": inv_id}))
        return int(rows[0][0]) if rows else None

    def look(self, inv_id: str) -> dict[str, Any] | None:
        """Return the row as `invocations` lists it, without its result; None where there is none."""
        params = {"ns": self._ns, "id": check_id(inv_id)}

        def work(tx: Transaction) -> list[tuple[Any, ...]]:
            place = tx.rows("place", params)
            if not place:
                return []
            newest = {"queue": None, "state": None, "limit": 1, "window": 2, "before": place[0][0] + 1}
            return tx.rows("list", {**params, **newest})

        rows = self._read(work)
        if not rows or rows[0][0] != inv_id:
            return None
        shown = self._shown(rows[0])
        del shown["result"]
        return shown

    def is_ended(self, inv_id: str) -> bool:
        """Whether an invocation has ended, or does not exist; its result is not read."""
        found = self.holder(inv_id)
        return found is None or found.state not in ("queued", "running")

    def has_news(self, journal: str, since: int) -> bool:
        """Whether a journal holds frames after `since`, or is finished."""
        params = {"ns": self._ns, "id": journal, "stem": _stem(journal)}
        state, jid, next_seq, attempt_seq, closed = self._read(lambda tx: tx.rows("journal_state", params))[0]
        if state in ("succeeded", "failed", "cancelled") or closed is not None:
            return True
        return jid is not None and next_seq - 1 > (attempt_seq - 1 if since == -1 else since)

    def keyed(self, key: str, queues: Sequence[str]) -> list[str]:
        """Return the ids of the jobs submitted to these queues under a key."""
        asked = [{"ns": self._ns, "queue": queue, "key": key} for queue in queues]
        return self._read(lambda tx: [row[0] for each in asked for row in tx.rows("find_key", each)])

    def queue_topic(self, queue: str) -> str:
        """Name the bells of who waits for a job of `queue`."""
        return self._queue_topic(queue)

    def end_topic(self, inv_id: str) -> str:
        """Name the bells of who waits for an invocation's end."""
        return self._end_topic(inv_id)

    def journal_topic(self, journal: str) -> str:
        """Name the bells of who reads a journal."""
        return self._journal_topic(journal)

    # -- what a server appends --------------------------------------------------

    def journal_put(
        self,
        journal: str,
        frames: Sequence[tuple[int | None, bytes, bool]],
        *,
        worker_id: str | None = None,
        fence: int | None = None,
        in_attempt: bool = False,
        lease: float | None = None,
        once: Once | None = None,
    ) -> tuple[int, bool]:
        """Append ``(seq, bytes, final)`` in one transaction; return the last seq, and whether all were known.

        Parameters
        ----------
        worker_id, fence
            The claim that must be current, as for `journal_append`.
        in_attempt : bool
            The seqs count from 0 within the current attempt, and so does the one returned.
        lease : float, optional
            Seconds for which the claim is kept from now on.
        once : Once, optional
            Which call this is: a repeat of one that landed appends nothing.
        """
        items = []
        for seq, data, final in frames:
            if seq is not None and check_whole(seq, "seq", 0) >= _SEQ_LIMIT:
                raise ValueError(f"seq {seq!r}: wants nil or a whole number below 2**62")
            items.append((seq, check_bytes(data, "bytes"), final))
        guard = self._append_guard(journal, worker_id, fence)

        def work(tx: Transaction) -> tuple[int, bool]:
            if guard is not None:
                self._check_claim(tx, guard)
                if lease is not None:
                    until = self._lease_clock() + lease
                    tx.rows("heartbeat", {**guard, "until": until, "boot": self._lease_epoch()})
            landed = None if once is None else self._landed(tx, "frames", journal, once)
            if landed is not None:
                return int(landed), True
            base = self._attempt_base(tx, journal) if in_attempt else 0
            last, fresh = -1, 0
            for seq, data, final in items:
                if seq is None:
                    last = self._append(tx, journal, [data], final=final)
                    fresh += 1
                    continue
                fresh += not self._is_known(tx, journal, base + seq)
                last = self._append_at(tx, journal, base + seq, data, final=final)
            if once is not None:
                self._note(tx, "frames", journal, once, last)
            return last - base, not fresh

        return self._write(work, durable=False)

    def next_seqs(self, inv_id: str) -> list[int]:
        """Return the next seq of an invocation's journal and of its siblings', in the order of `SIBLINGS`."""

        def look(tx: Transaction) -> list[int]:
            journals = [inv_id + suffix for suffix in ("", *SIBLINGS)]
            params = [{"ns": self._ns, "id": each, "stem": inv_id} for each in journals]
            return [int(tx.rows("journal_state", each)[0][2] or 0) for each in params]

        return self._read(look)

    def _attempt_base(self, tx: Transaction, journal: str) -> int:
        params = {"ns": self._ns, "id": journal, "stem": _stem(journal)}
        opened = tx.rows("journal_state", params)[0][3]
        return int(opened) + 1 if opened else 0  # the attempt's BEGIN stands before it

    def _is_known(self, tx: Transaction, journal: str, seq: int) -> bool:
        found = tx.rows("journal", {"ns": self._ns, "id": journal})
        if not found:
            return False
        jid, trimmed_to = found[0]
        return seq < trimmed_to or bool(tx.frames({"jid": jid, "since": seq - 1, "last": seq}, 1)[0])

    # -- what a server notes in the same transaction ------------------------------

    def submit_saying(self, queue: str, item: Submission, said: Mapping[str, Any]) -> str:
        """Queue a job as `submit` does, and note what was said beside its envelope, the first time only."""
        params = self._submission(
            check_name(queue, "queue"),
            item.envelope,
            item.id,
            item.key,
            item.priority,
            item.parent,
            item.delay,
        )
        noted = protocol.pack(said)

        def work(tx: Transaction) -> str:
            id = self._submit(tx, params)
            if id == params["id"]:
                row = tx.rows("place", params)[0][0]
                reserved(self._engine)._append_at(tx, note_name("submit", row), 0, noted, final=False)
            return id

        return self._write(work)

    def _handed(self, tx: Transaction, row: tuple[Any, ...], until: float) -> Claimed:
        claimed = super()._handed(tx, row, until)
        if self._maker is not None:
            name, seq = note_name("claim", row[0]), 2 * claimed.fence
            reserved(self._engine)._append_at(tx, name, seq, self._maker.encode(), final=False)
        return claimed

    # -- calls that may be repeated ---------------------------------------------

    def claim_once(self, spec: ClaimSpec, worker_id: str, n: int, once: Once) -> list[Claimed]:
        """Claim as `claim_many` does, without waiting; a repeat of a call that landed returns its claims."""
        check_spec(spec)
        about = f"{worker_id}\0{spec.queue}\0{n}"
        sampled = self._sample(spec)

        def work(tx: Transaction) -> list[Claimed]:
            landed = self._landed(tx, "claims", about, once)
            if landed is not None:
                return [claimed for id, fence in landed if (claimed := self._again(tx, id, worker_id, fence))]
            taken = self._take(tx, spec, worker_id, n, sampled)
            if taken:
                self._note(tx, "claims", about, once, [[each.id, each.fence] for each in taken])
            return taken

        return self._write(work)

    def _again(self, tx: Transaction, id: str, worker_id: str, fence: int) -> Claimed | None:
        """Return a claim that was made, if it still is one."""
        params = {"ns": self._ns, "id": id}
        held = tx.rows("holder", params)
        if not held or held[0][:3] != ("running", worker_id, fence):
            return None
        if self._maker is not None:
            name, seq = note_name("claim", tx.rows("place", params)[0][0]), 2 * fence
            found = tx.rows("journal", {"ns": RESERVED, "id": name})
            bounds = {"jid": found[0][0] if found else None, "since": seq - 1, "last": seq}
            if not found or tx.frames(bounds, 1)[0] != [(seq, self._maker.encode())]:
                return None  # another row of the same id, which another token claimed
        queue, envelope = tx.rows("find_id", params)[0]
        until = tx.rows("row", params)[0][_LEASE_UNTIL]
        lease = self._now() + until - self._lease_clock()
        return Claimed(id, bytes(envelope or b""), held[0][3], queue, fence, lease)

    def _note(self, tx: Transaction, what: str, about: str, once: Once, answer: Any) -> None:
        """Write down, in the call's own transaction, what it was answered."""
        keeper = reserved(self._engine)
        journal = _name(what, self._ns, about)
        seq = keeper._append(tx, journal, [once.nonce + protocol.pack({"answer": answer})])
        if seq % _REPEATS == 0 and seq:
            jid = tx.rows("journal", {"ns": RESERVED, "id": journal})[0][0]
            tx.rows("trim", {"jid": jid, "seq": seq - _REPEATS})

    def _landed(self, tx: Transaction, what: str, about: str, once: Once) -> Any:
        """Return what the first try of a repeated call was answered, None where it did not land."""
        if not once.again:
            return None
        journal = _name(what, self._ns, about)
        _, jid, next_seq, *_ = tx.rows("journal_state", {"ns": RESERVED, "id": journal, "stem": journal})[0]
        if jid is None:
            return None
        bounds = {"jid": jid, "since": next_seq - _REPEATS, "last": next_seq - 1}
        for _, data in reversed(tx.frames(bounds, _REPEATS * 1024)[0]):
            if data.startswith(once.nonce):
                return protocol.unpack(data[len(once.nonce) :])["answer"]
        return None


def _name(what: str, ns: str, about: str) -> str:
    told = hashlib.sha256(f"{ns}\0{about}".encode("utf-8", "surrogatepass"))
    return f"{what}-{told.hexdigest()}"


def note_name(kind: str, row: int) -> str:
    """Return the journal, among those servers keep for themselves, that holds notes about one row."""
    return f"{kind}-row-{row}"


def name_of(engine: Store) -> str:
    """Return the namespace that `engine` was opened for."""
    return engine._ns


def check_namespace(value: object) -> str:
    """Return a namespace that a client may name, or raise `ValueError`."""
    return check_name(value, "namespace")


def check_journal(value: object) -> str:
    """Return a journal's or invocation's id that a client may name, or raise `ValueError`."""
    return check_name(value, "invocation_id")


def stem_of(journal: str) -> str | None:
    """Return the invocation that a journal may belong to, None for a name that no invocation has."""
    stem = _stem(journal)
    try:
        return check_id(stem)
    except ValueError:
        return None


def reserved(engine: Store) -> Within:
    """Return the part of the store that servers keep for themselves."""
    return Within(engine, RESERVED)
