"""litequeue: payloads only, claimed by hand, no results; NORMAL is its own choice."""

from __future__ import annotations

from pathlib import Path

from litequeue import LiteQueue

from peers.side import drained, each, timed

BODY = "x" * 200


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._submitted = LiteQueue(folder / "submitted.sqlite")
        self._drained = LiteQueue(folder / "drained.sqlite")
        self._claimed = LiteQueue(folder / "claimed.sqlite")

    def submit_payload(self, n: int) -> float:
        return timed(lambda: self._submitted.put(BODY), n)

    def fill(self, n: int) -> None:
        for _ in range(n):
            self._drained.put(BODY)

    def drain(self, n: int) -> list[float]:
        def one() -> bool:
            message = self._drained.pop()
            if message is not None:
                self._drained.done(message.message_id)
            return message is not None

        return drained(one, n)

    def stock(self, n: int) -> None:
        with self._claimed.transaction():
            for _ in range(n):
                self._claimed.put(BODY)

    def claim(self, n: int) -> list[float]:
        return each(self._claimed.pop, n, 1e6, within=3)

    def close(self) -> None:
        for queue in (self._submitted, self._drained, self._claimed):
            queue.close()
