"""A transaction that somebody holds open while jobs flow: dead rows pile up at the head of every index.

``LONG_TESTS=1 HELD_SECONDS=600 pytest -s tests/integration/test_postgres_held.py`` is the ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import postgres_server
import pytest

psycopg = pytest.importorskip("psycopg", reason="needs the extra lakeshore[postgres]")
from lakeshore.planes.postgres import PostgresDispatch  # noqa: E402 - after the skip

LONG = os.environ.get("LONG_TESTS") == "1"
SECONDS = float(os.environ.get("HELD_SECONDS", "120" if LONG else "4"))
RATE = 500 if LONG else 300
WINDOW = 5.0 if LONG else 2.0

FLOW = """
    import json, sys, threading, time
    from lakeshore import Submission
    from lakeshore.planes.contract import ClaimSpec
    from lakeshore.planes.postgres import PostgresDispatch
    dsn, rate, window = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    dp, stop = PostgresDispatch(dsn), threading.Event()
    sent, done, claims = 0, [], []

    def produce():
        global sent
        due = time.monotonic()
        while not stop.is_set():
            dp.submit_many("q", [Submission(envelope=b"e", id=f"j{sent + n}") for n in range(rate // 20)])
            sent += rate // 20
            due += 0.05
            time.sleep(max(0.0, due - time.monotonic()))

    def work(me):
        while True:
            began = time.monotonic()
            held = dp.claim("q", me)
            claims.append((began, time.monotonic() - began))
            if held is None:
                if stop.is_set():
                    return
                dp.claim("none", me, wait=0.02)
                continue
            dp.ack(held.id, me, fence=held.fence, result=b"r")
            done.append((time.monotonic(), held.id))

    threads = [threading.Thread(target=work, args=(f"w{k}",)) for k in range(3)]
    threads.append(threading.Thread(target=produce))
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        verb = line.strip()
        if verb == "stop":
            stop.set()
            for thread in threads:
                thread.join()
        now = time.monotonic()
        recent = sorted(took for began, took in claims if began > now - window)
        print(json.dumps({
            "rate": sum(1 for at, _ in done if at > now - window) / window,
            "p50": recent[len(recent) // 2] * 1000 if recent else None,
            "p99": recent[int(len(recent) * 0.99)] * 1000 if recent else None,
            "sent": sent, "done": len(done), "twice": len(done) - len({id for _, id in done}),
            "queued": dp.count("q"),
        }), flush=True)
        if verb == "stop":
            break
    dp.close()
"""


@pytest.mark.slow
def test_a_transaction_that_is_held_open_slows_nothing():
    import json

    with postgres_server.own(host="127.0.0.1") as server:
        PostgresDispatch(server.tcp()).close()
        flow = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FLOW), server.tcp(), str(RATE), str(WINDOW)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def look(verb="look"):
            flow.stdin.write(verb + "\n")
            flow.stdin.flush()
            return json.loads(flow.stdout.readline())

        try:
            began = time.monotonic()
            while (base := look())["rate"] < 0.95 * RATE:
                if time.monotonic() > began + 15:
                    pytest.skip(f"this machine is too busy: {base['rate']:g} of {RATE} jobs a second")
                time.sleep(0.25)  # between two looks
            print("base", base)
            with psycopg.connect(server.dsn()) as holder:
                holder.execute("SET idle_in_transaction_session_timeout = 0")
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT pg_current_xact_id(), (SELECT count(*) FROM lakeshore.invocation)")
                end = time.monotonic() + SECONDS
                worst = base
                while time.monotonic() < end:
                    time.sleep(min(WINDOW, SECONDS / 2))
                    worst = look()
                    print(f"held for {SECONDS - end + time.monotonic():.0f} s", worst, flush=True)
                holder.rollback()
            back = time.monotonic()
            while (after := look())["rate"] < 0.9 * RATE and time.monotonic() < back + 30:
                time.sleep(0.5)
            print(f"{time.monotonic() - back:.1f} s after", after)
            assert after["rate"] >= 0.9 * RATE
            ended = look("stop")
            print("ended", ended)
        finally:
            flow.kill()
            flow.communicate()
        assert ended["twice"] == 0
        assert ended["done"] == ended["sent"]
        assert worst["rate"] > 0.8 * RATE, worst
        assert worst["p99"] < 5 * base["p99"], (base, worst)
