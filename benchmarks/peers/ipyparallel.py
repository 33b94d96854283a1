"""ipyparallel with one engine on this machine; nothing is durable, and it has no streams."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ipyparallel as ipp

from peers import bodies
from peers.side import megabyte, rested, timed


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._cluster = ipp.Cluster(n=1, profile_dir=str(folder / "profile"), log_level=30)
        self._client = self._cluster.start_and_connect_sync()
        self._view = self._client.load_balanced_view()
        self._from_a_cell = bodies.from_a_cell()

    def _submit(self, n: int, function: Any, *arguments: Any) -> float:
        kept: list[Any] = []
        taken = timed(lambda: kept.append(self._view.apply_async(function, *arguments)), n)
        for result in kept:
            result.get(timeout=30)
        self._client.purge_everything()
        return taken

    def submit(self, n: int) -> float:
        return self._submit(n, bodies.nothing)

    def submit_value(self, n: int) -> float:
        return self._submit(n, self._from_a_cell, 3)

    def fill(self, n: int) -> None:
        """It works at once: filling is part of `drain`."""

    def drain(self, n: int) -> list[float]:
        began = time.monotonic()
        for result in [self._view.apply_async(bodies.nothing) for _ in range(n)]:
            result.get(timeout=30)
        ended = time.monotonic()
        self._client.purge_everything()
        return [n, began, ended]

    def start(self) -> list[int]:
        pids: list[int] = self._client[:].apply_sync(os.getpid)
        return pids

    def round_trip(self, n: int) -> list[float]:
        return rested(lambda: self._view.apply_sync(bodies.nothing), n)

    def array(self, n: int) -> list[float]:
        array = megabyte()
        return rested(lambda: self._view.apply_sync(bodies.echo, array), n)

    def close(self) -> None:
        self._client.close()
        self._cluster.stop_cluster_sync()
