"""A queue on a plane in memory, and the worker run on it a job at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, run_worker


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


@pytest.fixture
def q(plane: Dispatch) -> SyncQueue:
    return SyncQueue("gpu", dispatch=plane)


@pytest.fixture
def drain(q: SyncQueue) -> Callable[..., int]:
    """Run jobs one at a time until nothing is due; returns how many claims were taken on."""

    def run(limit: int = 20, **options: Any) -> int:
        executed = 0
        while executed < limit and (ran := run_worker(q, once=True, **options)):
            executed += ran
        return executed

    return run
