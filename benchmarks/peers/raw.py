"""Raw apsw: the machine's limit, at both levels of durability."""

from __future__ import annotations

import time
from pathlib import Path

from plane import BODY, Raw

from peers.side import timed

ROWS = """
CREATE TABLE IF NOT EXISTS row (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    ns TEXT, id TEXT, queue TEXT, state TEXT, priority REAL, key TEXT, submitted_at REAL, envelope BLOB,
    UNIQUE (ns, id)
);
CREATE INDEX IF NOT EXISTS ready ON row (ns, queue, priority DESC, seq) WHERE state = 'queued';
CREATE UNIQUE INDEX IF NOT EXISTS keyed ON row (ns, queue, key) WHERE key IS NOT NULL;
"""
ROW = """
INSERT INTO row (ns, id, queue, state, priority, submitted_at, envelope)
VALUES ('default', ?, 'gpu', 'queued', 0, 1.5, ?)
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._stores = {
            durable: Raw(folder / f"raw-{durable}.sqlite", "FULL" if durable else "NORMAL")
            for durable in (True, False)
        }

    def submit(self, n: int, durable: bool = True) -> float:
        return timed(lambda: self._stores[durable].insert(1), n)

    def row(self, n: int, durable: bool = True) -> float:
        """A row with what the contract asks of it: a unique id and key, an order, a claim's index."""
        db = self._stores[durable].db
        db.execute(ROWS)
        ids = (f"r{time.monotonic_ns():020d}" for _ in range(n))
        return timed(lambda: db.execute(ROW, (next(ids), BODY)), n)

    def claim_and_ack(self, n: int, durable: bool = True) -> float:
        store = self._stores[durable]
        store.fill(n + 1)
        return timed(lambda: store.two_commits(1), n)

    def fused(self, n: int, durable: bool = True) -> float:
        store = self._stores[durable]
        store.fill(n + 1)
        return timed(lambda: store.fused(1), n)

    def submit_many(self, n: int, durable: bool = True) -> float:
        return timed(lambda: self._stores[durable].fill(n), 1)

    def close(self) -> None:
        for store in self._stores.values():
            store.db.close()
