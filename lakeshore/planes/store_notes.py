"""What a server notes beside the rows: who made a claim, and what a client said that no row holds.

Each is a journal of the store's reserved namespace, so that every server of a store knows it. It is named by
the number of the row, never by the id: an id may be used again, and then it is another job's.
"""

from __future__ import annotations

from typing import Any, Final

from lakeshore.errors import WaitTimeout
from lakeshore.planes import protocol
from lakeshore.planes.engine import Transaction
from lakeshore.planes.store import Store
from lakeshore.planes.store_within import RESERVED, Within, note_name

_KEPT: Final = 10_000


class Notes:
    """The notes of one store.

    Parameters
    ----------
    engine : Store
        The store whose invocations they are about.
    """

    def __init__(self, engine: Store) -> None:
        self._rows = _Noted(engine, RESERVED)
        self._makers: dict[tuple[int, int], str] = {}

    def submission(self, row: int) -> dict[str, Any] | None:
        """Return what `Within.submit_saying` noted beside an envelope, None where nothing was noted."""
        data = self._at(note_name("submit", row), 0)
        return None if data is None else protocol.unpack(data)

    def claimer(self, row: int, fence: int) -> str | None:
        """Return the digest of the token that made a claim, None for one made without."""
        known = self._makers.get((row, fence))
        if known is None:
            data = self._at(note_name("claim", row), 2 * fence)
            if data is None:
                return None
            known = data.decode()
            self._remember(row, fence, known)
        return known

    def hold(self, row: int, fence: int, frame: bytes) -> None:
        """Keep a final ERROR frame until the ending says whether the job is tried again."""
        self._rows.journal_append(note_name("claim", row), 2 * fence + 1, frame)

    def held(self, row: int, fence: int) -> bytes | None:
        """Return the frame kept for a claim."""
        return self._at(note_name("claim", row), 2 * fence + 1)

    def forget(self, *, older_than: float) -> None:
        """Drop what was noted so many seconds ago, and tokens that were revoked then.

        What was noted of a row stays while the row does, however long it waits or runs.
        """
        self._rows.prune(older_than=older_than)

    def _at(self, journal: str, seq: int) -> bytes | None:
        try:
            for found, data in self._rows.journal_read(journal, since=seq - 1, timeout=0):
                return data if found == seq else None
        except WaitTimeout:
            pass  # nothing there
        return None

    def _remember(self, row: int, fence: int, by: str) -> None:
        if len(self._makers) > _KEPT:
            self._makers.clear()
        self._makers[row, fence] = by


class _Noted(Within):
    """The namespace of notes, pruned by the rows that they are about."""

    def _prune_rest(self, older_than: float) -> None:
        super()._prune_rest(older_than)
        asked: dict[str, Any] = {"ns": self._ns, "cut": self._now() - older_than, "after": ""}
        while silent := self._read(lambda tx: tx.rows("silent_notes", asked)):
            self._write(lambda tx, notes=silent: _drop(tx, notes, asked["cut"]))  # type: ignore[misc]
            asked["after"] = silent[-1][1]

    def _prune_topics(self, tx: Transaction, cut: float) -> int:
        return 0  # topics here are notes


def _drop(tx: Transaction, notes: list[tuple[Any, ...]], cut: float) -> None:
    for jid, _ in notes:
        if tx.changed("prune_note", {"jid": jid, "cut": cut}):
            tx.rows("prune_topic_frames", {"jid": jid})
