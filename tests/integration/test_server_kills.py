"""A server that is killed again and again under load: nothing that was acknowledged is lost.

The long form (``LONG_TESTS=1``) kills it at 50 random points: it takes about 3 minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest
from integration.served import Process

from lakeshore import ClaimLost, Dispatch, HttpDispatch, PlaneUnavailable, wire

LONG = os.environ.get("LONG_TESTS") == "1"
KILLS = 50 if LONG else 3
PATIENCE = 240.0
pytestmark = pytest.mark.timeout(1200 if LONG else 300)
AHEAD = 100
"""Jobs that producers are ahead of workers at most, so that what is left at the end is soon done."""


class Load:
    """Producers and workers at once, over a client each; what was acknowledged to them is written down."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.submitted: list[str] = []
        self.acked: list[str] = []
        self.problems: list[str] = []
        self.stop = threading.Event()
        self.news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._produce, self._produce, self._work, self._work)
        ]

    def _guarded(self, work: Callable[[HttpDispatch], None]) -> None:
        with contextlib.closing(HttpDispatch(self.url, timeout=PATIENCE)) as plane:
            try:
                work(plane)
            except BaseException as exc:  # the test's thread raises it
                self.problems.append(repr(exc))

    def _note(self, where: list[str], id: str) -> None:
        with self.news:
            where.append(id)
            self.news.notify_all()

    def _produce(self, plane: HttpDispatch) -> None:
        n, me = 0, threading.get_ident()
        while not self.stop.is_set():
            with self.news:
                if not self.news.wait_for(lambda: len(self.submitted) < len(self.acked) + AHEAD, 0.2):
                    continue
            self._note(self.submitted, plane.submit("gpu", b"%d" % n, id=f"{me}-{n}", key=f"{me}-{n}"))
            n += 1

    def _work(self, plane: HttpDispatch) -> None:
        me = f"w-{threading.get_ident()}"
        while not self.stop.is_set():
            try:
                claimed = plane.claim("gpu", me, wait=0.5, lease=2.0)
            except PlaneUnavailable:  # a claim that waits gives up soon: a worker may have to stop
                continue
            if claimed is None:
                continue
            try:
                for n in range(3):
                    plane.journal_append(claimed.id, None, b"%d" % n, worker_id=me, fence=claimed.fence)
                plane.ack(
                    claimed.id, me, result=claimed.envelope, fence=claimed.fence, frame=wire.end_frame(3)
                )
            except ClaimLost:
                continue  # its lease lapsed while the server was away, and another worker took the job
            self._note(self.acked, claimed.id)

    def goes_on(self) -> None:
        """Wait until both producers and workers get answers again."""
        with self.news:
            submitted, acked = len(self.submitted) + 5, len(self.acked) + 5
            assert self.news.wait_for(
                lambda: self.problems or (len(self.submitted) >= submitted and len(self.acked) >= acked),
                PATIENCE,
            ), (len(self.submitted), len(self.acked))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)


def drained(url: str) -> None:
    """End what is left. A claim whose answer was lost lapses; whoever asks next gets the job."""
    end = time.monotonic() + PATIENCE
    with contextlib.closing(HttpDispatch(url, timeout=60)) as plane:
        while plane.count("gpu") + plane.count("gpu", "running"):
            assert time.monotonic() < end, plane.queues()
            claimed = plane.claim("gpu", "last", wait=0.5, lease=60.0)
            if claimed is not None:
                plane.ack(claimed.id, "last", result=claimed.envelope, fence=claimed.fence)


def test_a_server_that_is_killed_loses_nothing_acknowledged(tmp_path):
    with Process(tmp_path, "--no-auth", "--log", "off") as server:
        chance = random.Random(5)
        keeper = HttpDispatch(server.url, timeout=PATIENCE)
        keeper.submit("long", b"e", id="long")
        claimed = keeper.claim("long", "keeper", lease=3600)
        assert claimed is not None
        seen: dict[str, object] = {}
        watchers = [
            threading.Thread(
                target=lambda: seen.update(frames=list(keeper.journal_read("long", timeout=None)))
            ),
            threading.Thread(target=lambda: seen.update(result=keeper.result("long", timeout=None))),
        ]
        for watcher in watchers:
            watcher.start()
        with Load(server.url) as load:
            for n in range(KILLS):
                load.goes_on()
                keeper.journal_append("long", None, b"%d" % n, worker_id="keeper", fence=claimed.fence)
                load.stop.wait(chance.uniform(0.0, 0.3))
                server.stop(signal.SIGKILL)
                server.start()
            load.goes_on()
        assert load.problems == []
        drained(server.url)
        # the job that ran through every kill has its claim still, and those who follow it missed nothing
        keeper.ack("long", "keeper", result=b"r", fence=claimed.fence, frame=wire.end_frame(KILLS))
        for watcher in watchers:
            watcher.join(PATIENCE)
        frames = [*(b"%d" % n for n in range(KILLS)), wire.end_frame(KILLS)]
        assert seen == {"frames": list(enumerate(frames)), "result": b"r"}
        keeper.close()
    assert len(set(load.submitted)) == len(load.submitted) > 5 * KILLS
    with Dispatch(tmp_path / "dispatch.sqlite") as store:
        for id in load.submitted:
            row = store.get(id)
            assert row is not None, f"{id} was acknowledged, and is not there"
            assert row["state"] == "succeeded", row
            assert row["result"] == id.rpartition("-")[2].encode()
        assert store.get("long")["attempt"] == 1
        # a submit whose answer never came may have landed as well, once
        assert store.count("gpu", "succeeded") - len(load.submitted) in range(3)
        for id in load.acked:
            told = [data for _, data in store.journal_read(id, timeout=1)]
            assert told[-4:] == [b"0", b"1", b"2", wire.end_frame(3)]
