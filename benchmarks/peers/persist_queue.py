"""persist-queue's SQLiteAckQueue: payloads only, claimed by hand, no results; for one process."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from persistqueue import Empty, SQLiteAckQueue

from peers.side import drained, each, timed

BODY = "x" * 200
COPIES = """
INSERT INTO ack_queue_default (data, timestamp, status)
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < ?)
SELECT (SELECT data FROM ack_queue_default LIMIT 1), ?, 0 FROM k
"""


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._submitted, self._drained, self._claimed = (
            SQLiteAckQueue(str(folder / name)) for name in ("submitted", "drained", "claimed")
        )

    def submit_payload(self, n: int) -> float:
        return timed(lambda: self._submitted.put(BODY), n)

    def fill(self, n: int) -> None:
        for _ in range(n):
            self._drained.put(BODY)

    def drain(self, n: int) -> list[float]:
        def one() -> bool:
            try:
                item = self._drained.get(block=False)
            except Empty:
                return False
            self._drained.ack(item)
            return True

        return drained(one, n)

    def stock(self, n: int) -> None:
        self._claimed.put(BODY)
        self._claimed.close()
        db = sqlite3.connect(self._folder / "claimed" / "data.db")
        db.execute("PRAGMA synchronous=OFF")
        db.execute(COPIES, (n - 1, time.time()))
        db.commit()
        db.close()
        self._claimed = SQLiteAckQueue(str(self._folder / "claimed"))

    def claim(self, n: int) -> list[float]:
        return each(lambda: self._claimed.get(block=False), n, 1e6, within=3)

    def close(self) -> None:
        for queue in (self._submitted, self._drained, self._claimed):
            queue.close()
