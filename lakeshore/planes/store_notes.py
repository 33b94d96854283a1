"""What a server notes beside the rows: who made a claim, and what a client said that no row holds.

Each is a journal of the store's reserved namespace, so that every server of a store knows it.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from lakeshore.errors import WaitTimeout
from lakeshore.planes import protocol
from lakeshore.planes.store import Store
from lakeshore.planes.store_within import reserved

_KEPT: Final = 10_000


class Notes:
    """The notes of one store.

    Parameters
    ----------
    engine : Store
        The store whose invocations they are about.
    """

    def __init__(self, engine: Store) -> None:
        self._rows = reserved(engine)
        self._makers: dict[tuple[str, int], str] = {}

    def submitted(self, ns: str, inv_id: str, said: dict[str, Any]) -> None:
        """Note what a submit said beside its envelope; the first note of an id stays."""
        self._rows.journal_append(_journal("submit", ns, inv_id), 0, protocol.pack(said))

    def submission(self, ns: str, inv_id: str) -> dict[str, Any] | None:
        """Return what a submit said beside its envelope, None where nothing was noted."""
        data = self._at(_journal("submit", ns, inv_id), 0)
        return None if data is None else protocol.unpack(data)

    def claimed(self, ns: str, inv_id: str, fence: int, by: str) -> None:
        """Note the digest of the token that made a claim."""
        journal = _journal("claim", ns, inv_id)
        self._rows.journal_append(journal, 2 * fence, by.encode())
        self._remember(journal, fence, by)

    def claimer(self, ns: str, inv_id: str, fence: int) -> str | None:
        """Return the digest of the token that made a claim, None for one made without."""
        journal = _journal("claim", ns, inv_id)
        known = self._makers.get((journal, fence))
        if known is None:
            data = self._at(journal, 2 * fence)
            if data is None:
                return None
            known = data.decode()
            self._remember(journal, fence, known)
        return known

    def hold(self, ns: str, inv_id: str, fence: int, frame: bytes) -> None:
        """Keep a final ERROR frame until the ending says whether the job is tried again."""
        self._rows.journal_append(_journal("claim", ns, inv_id), 2 * fence + 1, frame)

    def held(self, ns: str, inv_id: str, fence: int) -> bytes | None:
        """Return the frame kept for a claim."""
        return self._at(_journal("claim", ns, inv_id), 2 * fence + 1)

    def forget(self, *, older_than: float) -> None:
        """Drop what was noted so many seconds ago, and tokens that were revoked then."""
        self._rows.prune(older_than=older_than)

    def _at(self, journal: str, seq: int) -> bytes | None:
        try:
            for found, data in self._rows.journal_read(journal, since=seq - 1, timeout=0):
                return data if found == seq else None
        except WaitTimeout:
            pass  # nothing there
        return None

    def _remember(self, journal: str, fence: int, by: str) -> None:
        if len(self._makers) > _KEPT:
            self._makers.clear()
        self._makers[journal, fence] = by


def _journal(kind: str, ns: str, inv_id: str) -> str:
    told = hashlib.sha256(f"{ns}\0{inv_id}".encode("utf-8", "surrogatepass"))
    return f"{kind}-{told.hexdigest()}"
