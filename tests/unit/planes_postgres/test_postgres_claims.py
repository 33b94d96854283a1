"""Many who claim at once: each job to one of them, and none passed over."""

from __future__ import annotations

import os
import threading
import uuid

from lakeshore import ClaimLost, Submission
from lakeshore.planes.contract import ClaimSpec
from lakeshore.planes.postgres import PostgresDispatch

LONG = bool(os.environ.get("LONG_TESTS"))


def test_sixteen_claimers_take_each_job_once(dsn):
    jobs, taken, lock = (10_000 if LONG else 600), [], threading.Lock()
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        dp.submit_many("q", [Submission(envelope=b"e", id=f"j{n}") for n in range(jobs)])

        def drain(worker):
            mine = []
            held = dp.claim("q", worker)
            while held is not None:
                mine.append((held.id, held.fence))
                held = dp.ack(held.id, worker, fence=held.fence, next=ClaimSpec("q"))
            with lock:
                taken.extend(mine)

        threads = [threading.Thread(target=drain, args=(f"w{n}",)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == sorted((f"j{n}", 1) for n in range(jobs))
        assert dp.queues() == {"q": {"succeeded": jobs}}


def test_claim_many_never_takes_more_than_asked_and_in_order(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        dp.submit_many("q", [Submission(envelope=b"", id=f"j{n}", priority=float(n % 3)) for n in range(9)])
        assert [held.id for held in dp.claim_many("q", "w", 4)] == ["j2", "j5", "j8", "j1"]
        assert dp.count("q", "running") == 4
        assert [held.id for held in dp.claim_many("q", "w", 2, kind="filo")] == ["j7", "j4"]
        assert len(dp.claim_many("q", "w", 100)) == 3


def test_ready_delayed_and_lapsed_rows_are_one_list(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        dp.submit("q", b"", id="lapsed", priority=1.0)
        dp.claim("q", "gone", lease=0)
        dp.submit("q", b"", id="delayed", priority=2.0, delay=0.001)
        dp.submit("q", b"", id="ready", priority=0.0)
        dp.claim("q", "w", wait=1)
        assert [held.id for held in dp.claim_many("q", "w", 5)] == ["lapsed", "ready"]
        assert dp.get("lapsed")["losses"] == 1
        assert dp.claim("q", "w") is None


def test_an_old_worker_cannot_write_into_the_next_attempt(dsn):
    """Appends for a claim race with the claim that ends it: no frame of the old one follows BEGIN."""
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        for round in range(10):
            id = f"j{round}"
            dp.submit("q", b"", id=id)
            held = dp.claim("q", "old", lease=0)
            dp.journal_append(id, None, b"old", worker_id="old", fence=held.fence)
            gate = threading.Barrier(2)

            def append(id=id, fence=held.fence, gate=gate):
                gate.wait()
                try:
                    for _ in range(20):
                        dp.journal_append(id, None, b"old", worker_id="old", fence=fence)
                except ClaimLost:
                    pass

            thread = threading.Thread(target=append)
            thread.start()
            gate.wait()
            taken = dp.claim("q", "new", wait=5)
            thread.join()
            dp.ack(id, "new", fence=taken.fence)
            frames = [body for _, body in dp.journal_read(id, since=-1, timeout=5)]
            assert frames[0] != b"old"
            assert b"old" not in frames[1:]


def test_many_writers_of_one_journal_get_every_seq_once(dsn):
    with PostgresDispatch(dsn, ns=uuid.uuid4().hex) as dp:
        seqs, lock = [], threading.Lock()

        def write():
            mine = [dp.journal_append("topic", None, b"x") for _ in range(25)]
            with lock:
                seqs.extend(mine)

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(200))
