"""Producers and workers on a PostgreSQL plane that note what they were told, to be held against its rows."""

from __future__ import annotations

import threading
import uuid

from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch


class Load:
    """Producers and workers that note what they were told."""

    def __init__(self, dsn, *, producers=2, workers=3):
        self.ns = uuid.uuid4().hex
        self.dp = PostgresDispatch(dsn, ns=self.ns)
        self.submitted, self.acked, self.appended, self.failures = [], [], [], []
        self.stop = threading.Event()
        self.threads = [
            *(threading.Thread(target=self.guarded, args=(self.produce, f"p{n}")) for n in range(producers)),
            *(threading.Thread(target=self.guarded, args=(self.work, f"w{n}")) for n in range(workers)),
            threading.Thread(target=self.guarded, args=(self.append, "t")),
        ]
        for thread in self.threads:
            thread.start()

    def guarded(self, body, name):
        try:
            body(name)
        except BaseException as error:
            self.failures.append(error)

    def produce(self, name):
        n = 0
        while not self.stop.is_set():
            self.submitted.append(self.dp.submit("q", b"e", id=f"{name}-{n}"))
            n += 1

    def work(self, name):
        held = None
        while not (self.stop.is_set() and held is None):
            if held is None:
                held = self.dp.claim("q", name, wait=0.2)
                continue
            id, fence = held.id, held.fence
            spec = None if self.stop.is_set() else ClaimSpec("q")
            held = self.dp.ack(id, name, fence=fence, result=id.encode(), next=spec)
            self.acked.append(id)

    def append(self, name):
        while not self.stop.is_set():
            self.appended.append(self.dp.journal_append("topic", None, b"%d" % len(self.appended)))

    def check(self, *, crashed=False):
        """End the load; every acknowledged submit is there, every ack was one, every frame stands once.

        A crash of the server may leave a claim that nobody knows of, until it lapses, and a frame twice.
        """
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        try:
            assert not self.failures, self.failures
            assert len(set(self.acked)) == len(self.acked)
            for id in self.acked:
                assert self.dp.result(id, timeout=0) == id.encode()
            counts = self.dp.queues()["q"]
            assert sum(counts.values()) == len(self.submitted)
            assert counts.get("succeeded", 0) == len(self.acked)
            assert crashed or counts.get("running", 0) == 0  # no claim was made that nobody knows of
            self.dp.journal_append("topic", None, b"end", final=True)
            frames = [body for _, body in self.dp.journal_read("topic", timeout=5)]
            assert crashed or len(frames) == len(set(frames))
            assert list(dict.fromkeys(frames)) == [*(b"%d" % n for n in range(len(self.appended))), b"end"]
            assert sorted(set(self.appended)) == self.appended
        finally:
            self.dp.close()
