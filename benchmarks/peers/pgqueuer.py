"""pgqueuer on PostgreSQL, over asyncpg; all its tables are logged, as they come.

It keeps no results, so round trips are not asked of it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from pgqueuer.core.qm import QueueManager
from pgqueuer.models import Job
from pgqueuer.queries import EntrypointExecutionParameter, Queries
from pgqueuer.types import QueueExecutionMode

from peers import bodies
from peers.pgserver import server
from peers.side import each, timed

ended: list[float] = []


class Adapter:
    def __init__(self, folder: Path) -> None:
        shared = folder / "pgqueuer-address"  # a second one in this folder uses the first one's server
        self._server: Any = None
        if shared.exists():
            self._address = shared.read_text()
        else:
            self._address, self._server = server(folder)
        self._ask = asyncio.new_event_loop().run_until_complete
        self._connection = self._ask(asyncpg.connect(self._address))
        self._queries = Queries.from_asyncpg_connection(self._connection)
        if not shared.exists():
            if not self._ask(self._queries.schema_is_installed()):
                self._ask(self._queries.install())
            shared.write_text(self._address)

    def _put(self, entrypoint: str, n: int) -> None:
        self._ask(self._queries.enqueue([entrypoint] * n, [None] * n, [0] * n))

    def submit(self, n: int) -> float:
        return timed(lambda: self._ask(self._queries.enqueue("submitted", None)), n)

    def submit_many(self, n: int) -> float:
        return timed(lambda: self._put("submitted", n), 1)

    def fill(self, n: int) -> None:
        self._put("drained", n)

    def drain(self, n: int, batch: int = 10) -> list[float]:
        """It works until none is left: `n` is what was filled in.

        Endings are written once `batch` have gathered, or every tenth of a second: with 1 each by itself.
        """
        ended.clear()
        self._ask(self._work(batch))
        return [len(ended), ended[0], ended[-1]] if ended else [0, 0.0, 0.0]

    async def _work(self, batch: int) -> None:
        manager = QueueManager(Queries.from_asyncpg_connection(await asyncpg.connect(self._address)))

        @manager.entrypoint("drained")
        async def drained(job: Job) -> None:
            bodies.nothing()
            ended.append(time.monotonic())

        soon = timedelta(seconds=0.1)
        await manager.run(mode=QueueExecutionMode.drain, batch_size=batch, dequeue_timeout=soon)

    def stock(self, n: int) -> None:
        while n > 0:
            self._put("claimed", min(n, 10_000))
            n -= 10_000

    def claim(self, n: int) -> list[float]:
        def one() -> None:
            taking = self._queries.dequeue(
                batch_size=1,
                entrypoints={"claimed": EntrypointExecutionParameter(concurrency_limit=0)},
                queue_manager_id=manager,
                global_concurrency_limit=None,
                heartbeat_timeout=timedelta(seconds=30),
            )
            assert self._ask(taking)

        manager = uuid.uuid4()
        return each(one, n, 1e6, within=3)

    def close(self) -> None:
        self._ask(self._connection.close())
        if self._server is not None:
            self._server.cleanup()
