"""Raw apsw: the machine's limit, at both levels of durability."""

from __future__ import annotations

from pathlib import Path

from plane import Raw

from peers.side import timed


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._stores = {
            durable: Raw(folder / f"raw-{durable}.sqlite", "FULL" if durable else "NORMAL")
            for durable in (True, False)
        }

    def submit(self, n: int, durable: bool = True) -> float:
        return timed(lambda: self._stores[durable].insert(1), n)

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
