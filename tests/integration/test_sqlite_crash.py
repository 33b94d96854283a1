"""The file plane when it dies between two statements, or any one I/O fails: nothing acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LONG = os.environ.get("LONG_TESTS") == "1"

WORKLOAD = """
    import os, signal, sys
    import apsw
    from lakeshore import Dispatch, PlaneUnavailable
    from lakeshore.planes.contract import ClaimSpec, Submission

    def workload(path, said):
        \"\"\"Every verb that writes; what `said` was told has been acknowledged.\"\"\"
        plane = Dispatch(path)
        spec = ClaimSpec("gpu", lease=60.0)
        for i in range(4):
            said("queued", plane.submit("gpu", b"e" * (100 if i % 2 else 3000), id=f"j{i}"))
        plane.submit_many("gpu", [Submission(envelope=b"e", id=f"m{i}") for i in range(3)])
        for i in range(3):
            said("queued", f"m{i}")
        job = plane.claim("gpu", "w", lease=60.0)
        said("running", job.id)
        plane.heartbeat(job.id, "w", fence=job.fence)
        plane.journal_append(job.id, None, b"f", worker_id="w", fence=job.fence)
        following = plane.ack(job.id, "w", result=b"r" * 3000, fence=job.fence, frame=b"end", next=spec)
        said("succeeded", job.id)
        said("running", following.id)
        plane.journal_extend(following.id, [b"f"] * 3)
        plane.nack(following.id, "w", error="E", fence=following.fence)
        said("queued", following.id)
        job = plane.claim("gpu", "w", lease=60.0)
        said("running", job.id)
        plane.nack(job.id, "w", error="E", retry=False, fence=job.fence, frame=b"err")
        said("failed", job.id)
        plane.requeue(job.id)
        said("queued", job.id)
        job = plane.claim("gpu", "w", lease=60.0)
        plane.release(job.id, "w", fence=job.fence)
        plane.submit("other", b"e" * 3000, id="gone", key="k", delay=0.001)
        plane.journal_append("gone.log", 7, b"f")
        plane.cancel("gone")
        plane.prune(older_than=0, states=["cancelled"])
        plane.cancel("m2")
        said("cancelled", "m2")
        pair = plane.claim_many("gpu", "w", 2, lease=60.0)
        for job in pair:
            said("running", job.id)
        following = plane.nack(pair[0].id, "w", error="E", retry=False, fence=pair[0].fence, next=spec)
        said("failed", pair[0].id)
        said("running", following.id)
        plane.journal_trim("j1", keep_last=1)
        plane.journal_append("topic", None, b"f", final=True)
        plane.close()

    NEXT = {  # what a state may have become by the verb that died
        "queued": {"queued", "running", "cancelled"},
        "running": {"running", "succeeded", "failed", "queued"},
        "succeeded": {"succeeded"},
        "failed": {"failed", "queued"},
        "cancelled": {"cancelled"},
    }

    def check_parts(path):
        \"\"\"No part of a row stands without it, and no frame without its journal.\"\"\"
        db = apsw.Connection(path)
        for orphans in (
            "payload WHERE seq NOT IN (SELECT seq FROM invocation)",
            "frame WHERE jid NOT IN (SELECT jid FROM journal)",
            "journal j WHERE next_seq <= coalesce((SELECT max(seq) FROM frame f WHERE f.jid = j.jid), -1)",
            "invocation WHERE (state = 'running') <> (lease_until IS NOT NULL)",
            "invocation WHERE state = 'running' AND fence = 0",
            "invocation WHERE (state IN ('succeeded', 'failed', 'cancelled')) <> (finished_at IS NOT NULL)",
            "invocation i WHERE envelope IS NULL AND NOT EXISTS ("
            "SELECT 1 FROM payload p WHERE p.seq = i.seq AND part = 'envelope')",
        ):
            assert db.execute(f"SELECT count(*) FROM {orphans}").fetchall() == [(0,)], orphans
        db.close()

    def inspect(path, told):
        \"\"\"Check the file against what was acknowledged.\"\"\"
        db = apsw.Connection(path)
        assert db.pragma("integrity_check") == "ok"
        db.close()
        plane = Dispatch(path)
        last = {}
        for state, id in told:
            last[id] = state
        for id, state in last.items():
            row = plane.get(id)
            assert row is not None, f"{id} was acknowledged as {state} and is lost"
            assert row["state"] in NEXT[state], f"{id} was {state} and is {row['state']}"
            assert plane.envelope(id) in (b"e", b"e" * 100, b"e" * 3000)
            if row["state"] == "running":
                assert (row["worker_id"], row["fence"] >= row["attempt"] >= 1) == ("w", True), row
            if row["state"] == "succeeded":
                assert row["result"] == b"r" * 3000
                assert [b for _, b in plane.journal_read(id, timeout=0)] == [b"f", b"end"]
        assert sum(sum(states.values()) for states in plane.queues().values()) >= len(last)
        gone = plane.get("gone")
        ended = gone is not None and gone["state"] == "cancelled"
        left = list(plane.journal_read("gone.log", timeout=0)) if ended else []
        assert left in ([], [(7, b"f")]) and (gone is None or plane.envelope("gone") == b"e" * 3000)
        check_parts(path)
        plane.submit("gpu", b"e", id="after")
        plane.close()
"""

KILLED = (
    WORKLOAD
    + """
    from lakeshore.planes.sqlite_connection import Connection

    def child(path, at, pipe):
        \"\"\"Run the workload and die before the statement number `at`.\"\"\"
        left = [at]
        opened = Connection.__init__

        def counting(self, *arguments):
            opened(self, *arguments)
            run = self.raw.execute

            def execute(*a):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return run(*a)

            self.execute = execute

        Connection.__init__ = counting
        workload(path, lambda state, id: os.write(pipe, f"{state} {id}\\n".encode()))

    folder, step = sys.argv[1], int(sys.argv[2])
    for at in range(1, 10_000, step):
        path = f"{folder}/k{at}.sqlite"
        out, pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(path, at, pipe)
            os._exit(0)
        os.close(pipe)
        told = [line.split() for line in os.fdopen(out).read().splitlines()]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        inspect(path, told)
        for name in os.listdir(folder):
            if name.startswith(f"k{at}.") and not name.endswith("-bells"):
                os.unlink(f"{folder}/{name}")
        if code == 0:
            break
    print(at)
"""
)

FAULTY = (
    WORKLOAD
    + """
    class File(apsw.VFSFile):
        def __init__(self, filename, flags):
            super().__init__("unix", filename, flags)

        def xWrite(self, data, offset):
            fault(lambda: super(File, self).xWrite(data[: len(data) // 2], offset))
            return super().xWrite(data, offset)

        def xSync(self, flags):
            fault()
            return super().xSync(flags)

        def xTruncate(self, size):
            fault()
            return super().xTruncate(size)

        def xFileSize(self):
            fault()
            return super().xFileSize()

    class Disk(apsw.VFS):
        def __init__(self):
            super().__init__("faulty", "unix", makedefault=True)

        def xOpen(self, name, flags):
            fault()
            return File(name, flags)

    left, kind = [0], ""

    def fault(half=None):
        left[0] -= 1
        if left[0] == 0:
            if kind == "short" and half is not None:
                half()
            raise (apsw.FullError if kind == "full" else apsw.IOError)("injected")

    disk = Disk()
    folder, step = sys.argv[1], int(sys.argv[2])
    for kind in ("io", "full", "short"):
        for at in range(1, 10_000, step):
            path, told = f"{folder}/{kind}{at}.sqlite", []
            left[0] = at
            try:
                workload(path, lambda state, id: told.append((state, id)))
                failed = False
            except PlaneUnavailable as error:
                failed = True
                assert path in str(error), error
            hit = left[0] <= 0
            left[0] = 0
            import gc; gc.collect()
            inspect(path, told)
            if not hit:
                break
        print(kind, at)
"""
)


POWER_CUT = (
    WORKLOAD
    + """
    import random

    synced, loose = {}, {}  # by file: the bytes on the platter, the writes since the last sync

    def name_of(filename):
        return filename if isinstance(filename, str) else filename.filename()

    def put(image, write):
        offset, data = write
        if data is None:
            del image[offset:]
            return
        image.extend(bytes(max(0, offset + len(data) - len(image))))
        image[offset : offset + len(data)] = data

    class File(apsw.VFSFile):
        def __init__(self, filename, flags):
            super().__init__("unix", filename, flags)
            self.name = name_of(filename)
            synced.setdefault(self.name, bytearray()), loose.setdefault(self.name, [])

        def xWrite(self, data, offset):
            loose[self.name].append((offset, bytes(data)))
            return super().xWrite(data, offset)

        def xTruncate(self, size):
            loose[self.name].append((size, None))
            return super().xTruncate(size)

        def xSync(self, flags):
            for write in loose[self.name]:
                put(synced[self.name], write)
            loose[self.name].clear()
            return super().xSync(flags)

    class Disk(apsw.VFS):
        def __init__(self):
            super().__init__("recording", "unix", makedefault=True)

        def xOpen(self, name, flags):
            return File(name, flags)

        def xDelete(self, name, sync):
            synced.pop(name, None), loose.pop(name, None)
            return super().xDelete(name, sync)

    cuts = []

    def cut(told):
        \"\"\"Keep what a power cut now would leave: all that was synced, and any part of the rest.\"\"\"
        images = {}
        for name, image in synced.items():
            left = bytearray(image)
            for write in loose[name]:
                if random.random() < 0.5:
                    put(left, write)
            images[name] = left
        cuts.append((images, list(told)))

    disk = Disk()
    folder, runs = sys.argv[1], int(sys.argv[2])
    import lakeshore.planes.sqlite_connection as connection
    for run in range(runs):
        random.seed(run)
        connection.CHECKPOINT_PAGES = random.choice((4, 40, 4000))
        synced.clear(), loose.clear(), cuts.clear()
        path, told = f"{folder}/run{run}.sqlite", []

        def said(state, id):
            told.append((state, id))
            if random.random() < 0.5:
                cut(told)

        workload(path, said)
        for k, (images, then) in enumerate(cuts):
            where = f"{folder}/cut{run}-{k}.sqlite"
            for name, image in images.items():
                if not name.endswith("-shm"):
                    with open(where + name.removeprefix(path), "wb") as file:
                        file.write(image)
            inspect(where, then)
    print(runs)
"""
)


def python(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_kill_between_any_two_statements_loses_nothing(tmp_path: Path) -> None:
    assert int(python(KILLED, tmp_path, 1 if LONG else 5)) > 50


@pytest.mark.slow
def test_a_failed_write_anywhere_loses_nothing(tmp_path: Path) -> None:
    out = python(FAULTY, tmp_path, 1 if LONG else 23)
    assert [line.split()[0] for line in out.splitlines()] == ["io", "full", "short"]
    assert all(int(line.split()[1]) > 30 for line in out.splitlines()), out


@pytest.mark.slow
def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path) -> None:
    assert python(POWER_CUT, tmp_path, 100 if LONG else 6) == ("100\n" if LONG else "6\n")
