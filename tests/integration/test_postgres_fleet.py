"""Servers and workers of many processes on one database, servers killed again and again: each job once.

``LONG_TESTS=1 pytest -s tests/integration/test_postgres_fleet.py`` is two servers, eight workers and five
minutes, and sixteen claimers of ten thousand jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import postgres_server
import pytest
from integration.served import Process

from lakeshore import HttpDispatch, Submission, SyncQueue, thunk

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

LONG = os.environ.get("LONG_TESTS") == "1"
WORKERS, SECONDS, EVERY = (8, float(os.environ.get("FLEET_SECONDS", "300")), 10.0) if LONG else (3, 4.0, 1.3)
CLAIMERS, JOBS = (16, 10_000) if LONG else (5, 400)

CLAIMER = """
    import sys
    from lakeshore.planes.postgres import PostgresDispatch
    with PostgresDispatch(sys.argv[1]) as dp:
        sys.stdin.readline()
        while jobs := dp.claim_many("q", sys.argv[2], int(sys.argv[3])):
            for job in jobs:
                dp.ack(job.id, sys.argv[2], fence=job.fence, result=job.envelope)
                print(job.id, job.attempt)
"""


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 7])
def test_claimers_of_many_processes_take_each_job_once(n):
    dsn = postgres_server.shared().fresh()
    with PostgresDispatch(dsn) as dp:
        dp.submit_many("q", [Submission(envelope=b"%d" % k, id=f"j{k}") for k in range(JOBS)])
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(CLAIMER), dsn, f"w{k}", str(n)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for k in range(CLAIMERS)
        ]
        took = []
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            took += process.communicate(timeout=280)[0].split("\n")[:-1]
        assert sorted(took) == sorted(f"j{k} 1" for k in range(JOBS))
        assert dp.queues() == {"q": {"succeeded": JOBS}}


@pytest.mark.slow
def test_servers_that_are_killed_lose_nothing_and_do_nothing_twice(tmp_path):
    done = tmp_path / "done"
    done.mkdir()

    def tally(folder, n):
        from lakeshore import run

        with open(f"{folder}/{n}", "a") as file:
            file.write(f"{run.attempt}\n")
        return n

    with postgres_server.own() as server, contextlib.ExitStack() as stack:
        store, home = server.dsn(), tmp_path / "home"
        home.mkdir(mode=0o700)
        servers = [Process(home, "--store", store) for _ in range(2)]
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for each in servers:
                stack.enter_context(each)
            token = next(each.token for each in servers if "lsk_" in each.said)
            secret = home / "worker-token"
            secret.write_text(token)
            secret.chmod(0o600)
            with (tmp_path / "workers.log").open("wb") as log:
                workers += [
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "lakeshore.daemon", "q", "--url", servers[k % 2].url),
                            *("--token-file", str(secret), "--allow-pickled", "--isolation", "inline"),
                            *("--concurrency", "2", "--root", str(tmp_path)),
                        ],
                        stdout=log,
                        stderr=log,
                        env={**os.environ, "LAKESHORE_HOME": str(home)},
                    )
                    for k in range(WORKERS)
                ]
            planes = [HttpDispatch(each.url, token=token) for each in servers]
            queues = [SyncQueue("q", dispatch=plane) for plane in planes]
            ids, kills, end = [], 0, time.monotonic() + SECONDS
            kill_at, victim = time.monotonic() + EVERY, 0
            while time.monotonic() < end:
                ids.append(queues[len(ids) % 2].submit(thunk(tally, str(done), len(ids))))
                if time.monotonic() > kill_at:
                    servers[victim].stop(signal.SIGKILL)
                    kills += 1
                    # the other takes jobs meanwhile, for its own clients
                    ids.append(queues[1 - victim].submit(thunk(tally, str(done), len(ids))))
                    servers[victim].start()
                    kill_at, victim = time.monotonic() + EVERY, 1 - victim
                time.sleep(0.01)  # a steady load rather than all the machine can take
            with PostgresDispatch(store) as dp:
                until = time.monotonic() + 90
                while dp.queues().get("q", {}).get("succeeded", 0) < len(ids):
                    assert time.monotonic() < until and "failed" not in dp.queues()["q"], (
                        [row["error"] for row in dp.invocations("q", state="failed", limit=1)],
                        dp.queues(),
                        (tmp_path / "workers.log").read_text()[-3000:],
                    )
                    time.sleep(0.2)
                assert dp.queues() == {"q": {"succeeded": len(ids)}}
                rows = {row["id"]: row for row in _all(dp)}
            assert set(rows) == set(ids)
            wrote = {int(path.name): path.read_text().split() for path in done.iterdir()}
            assert set(wrote) == set(range(len(ids)))
            assert all(row["losses"] == 0 for row in rows.values()), (
                "a worker lived, and its job was given away"
            )
            twice = {n: attempts for n, attempts in wrote.items() if len(attempts) > 1}
            assert not twice
            for plane in planes:
                plane.close()
            print(f"{len(ids)} jobs, {kills} kills, {WORKERS} workers: lost 0, done twice {len(twice)}")
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)


def _all(dp):
    before = None
    while rows := dp.invocations("q", limit=1000, before=before):
        yield from rows
        before = rows[-1]["id"]
