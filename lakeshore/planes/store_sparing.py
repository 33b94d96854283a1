"""Sparing leases that nobody could extend while no server served: no other worker takes a job that runs.

A lease is spared for some seconds of service, however often servers start meanwhile: a worker that lives is
heard within them, and the job of one that is dead is another's then.
"""

from __future__ import annotations

import json
from typing import Any

from lakeshore.planes import protocol
from lakeshore.planes.engine import Transaction
from lakeshore.planes.store import Store
from lakeshore.planes.store_within import RESERVED, reserved

_NOTE = "spared"


class Sparing:
    """The spared leases of one store, of all its namespaces.

    Parameters
    ----------
    engine : Store
        The store.
    """

    def __init__(self, engine: Store) -> None:
        self._plane = reserved(engine)

    def begin(self, seconds: float) -> None:
        """Let no lease lapse within so many seconds, but those that were spared before and not renewed since.

        Those have what was left to them.
        """

        def work(tx: Transaction) -> None:
            now, boot = self._plane._lease_clock(), self._plane._lease_epoch()
            kept, noted = [], self._noted(tx)
            for spared_at, left in noted:
                until = now + left if left > 0 else spared_at
                rows = tx.rows("spare_again", {"spared_at": spared_at, "until": until, "boot": boot})
                if rows:
                    kept.append([rows[0][0], left])
            marks = json.dumps([spared_at for spared_at, _ in kept])
            rows = tx.rows("spare", {"until": now + seconds, "boot": boot, "marks": marks})
            if rows:
                kept.append([rows[0][0], seconds])
            if kept != noted:
                self._note(tx, kept)

        self._plane._write(work, durable=False)

    def served(self, seconds: float) -> bool:
        """Note that a server served for so long; False once that need not be noted any more."""

        def work(tx: Transaction) -> bool:
            noted = self._noted(tx)
            if not any(left > 0 for _, left in noted):
                return False
            self._note(tx, [[spared_at, max(0.0, left - seconds)] for spared_at, left in noted])
            return True

        return self._plane._write(work, durable=False)

    def _noted(self, tx: Transaction) -> list[list[float]]:
        """Return where the spared leases end, and the seconds of service that are left to each."""
        _, jid, next_seq, *_ = tx.rows("journal_state", {"ns": RESERVED, "id": _NOTE, "stem": _NOTE})[0]
        if jid is None:
            return []
        frames, _ = tx.frames({"jid": jid, "since": next_seq - 2, "last": next_seq - 1}, 1)
        found: list[list[float]] = protocol.unpack(frames[0][1])["leases"] if frames else []
        return found

    def _note(self, tx: Transaction, leases: list[list[float]]) -> None:
        told: dict[str, Any] = {"leases": leases}
        last = self._plane._append(tx, _NOTE, [protocol.pack(told)])
        jid = tx.rows("journal", {"ns": RESERVED, "id": _NOTE})[0][0]
        tx.rows("trim", {"jid": jid, "seq": last})
