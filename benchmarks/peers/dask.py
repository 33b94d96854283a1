"""dask.distributed with one worker process on this machine; nothing is durable."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, get_worker

from peers import bodies
from peers.side import megabyte, rested, timed


def send_ticks(n: int, topic: str) -> None:
    """Yield over the worker's event log, the nearest that it has to a stream."""
    worker = get_worker()
    for value in bodies.ticks(n):
        worker.log_event(topic, value)


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(folder),
        )
        self._client = Client(self._cluster)
        self._from_a_cell = bodies.from_a_cell()
        self._kept: list[Any] = []

    def _submit(self, n: int, function: Any, *arguments: Any) -> float:
        taken = timed(lambda: self._kept.append(self._client.submit(function, *arguments, pure=False)), n)
        self._client.gather(self._kept)
        self._kept.clear()
        return taken

    def submit(self, n: int) -> float:
        return self._submit(n, bodies.nothing)

    def submit_value(self, n: int) -> float:
        return self._submit(n, self._from_a_cell, 3)

    def submit_many(self, n: int) -> float:
        began = time.perf_counter()
        self._kept = self._client.map(bodies.echo, range(n), pure=False)
        taken = time.perf_counter() - began
        self._client.gather(self._kept)
        self._kept.clear()
        return taken

    def fill(self, n: int) -> None:
        """It works at once: filling is part of `drain`."""

    def drain(self, n: int) -> list[float]:
        began = time.monotonic()
        self._client.gather([self._client.submit(bodies.nothing, pure=False) for _ in range(n)])
        return [n, began, time.monotonic()]

    def start(self) -> list[int]:
        scheduler_is_here = self._client.run_on_scheduler(lambda: 0) == 0
        assert scheduler_is_here
        return list(self._client.run(lambda: __import__("os").getpid()).values())

    def round_trip(self, n: int) -> list[float]:
        return rested(lambda: self._client.submit(bodies.nothing, pure=False).result(), n)

    def array(self, n: int) -> list[float]:
        array = megabyte()
        return rested(lambda: self._client.submit(bodies.echo, array, pure=False).result(), n)

    def _listen(self) -> tuple[str, queue.SimpleQueue[tuple[float, Any]]]:
        topic, seen = f"t{time.monotonic_ns()}", queue.SimpleQueue[tuple[float, Any]]()
        self._client.subscribe_topic(topic, lambda event: seen.put((time.monotonic(), event[1])))
        self._client.run_on_scheduler(lambda: None)
        return topic, seen

    def first_frame(self, n: int) -> list[float]:
        topic, seen = self._listen()

        def once() -> None:
            future = self._client.submit(send_ticks, 1, topic, pure=False)
            seen.get(timeout=10)
            future.result()

        return rested(once, n)

    def frames(self, n: int) -> tuple[float, list[float]]:
        topic, events = self._listen()
        future = self._client.submit(send_ticks, n, topic, pure=False)
        seen = [events.get(timeout=20) for _ in range(n)]
        future.result()
        return seen[-1][0] - seen[0][0], [(here - value["at"]) * 1e3 for here, value in seen]

    def close(self) -> None:
        self._client.close()
        self._cluster.close()
