"""The talk with the child process: whose word counts, when it is the last, and when the child is dead."""

from __future__ import annotations

import os
import sys
import time

import pytest

from lakeshore import SyncQueue, run_worker, thunk, wire
from lakeshore.planes.contract import Claimed
from lakeshore.worker import inline
from lakeshore.worker.journals import Flusher, Journals
from lakeshore.worker.keeper import Running
from lakeshore.worker.outcomes import Done, Failed, Stopped
from lakeshore.worker.process import ChildDoor, _Conversation

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Script:
    """A line on which batches of messages wait."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.stopped = []

    def listen(self, printed):
        return self.batches.pop(0)

    def drain(self, printed):
        pass

    def terminate(self):
        self.stopped.append("terminate")

    def kill(self):
        self.stopped.append("kill")


@pytest.fixture
def talk(plane):
    """Returns ``follow(*batches, reason=None) -> (outcome, frames in the journal)`` for job "j", fence 1."""

    def follow(*batches, reason=None):
        plane.submit("gpu", b"x", id="j")
        claimed = plane.claim("gpu", "w")
        child = Script(*batches)
        door = ChildDoor(child, lambda: False)
        journals = Journals(plane, Running(claimed, "w", door, 30.0, None), Flusher())
        if reason is not None:
            door.stop(reason)
        assert claimed == Claimed("j", b"x", 1, "gpu", 1, claimed.lease_expires_at)
        outcome = _Conversation(child, door, journals, claimed).follow()
        journals.close()
        return outcome, plane.journal_extend("j", [b"end"])

    return follow


def values(*given, name=("j", 1)):
    return [["values", *name, wire.value_frames(value, seq)] for seq, value in enumerate(given)]


def test_nothing_after_the_last_word_counts(talk):
    late = [["display", "j", 1, wire.pack({"text/plain": "x"})], ["progress", "j", 1, 1.0, None, None]]
    outcome, frames = talk(
        [*values("a"), ["done", "j", 1, b"r", 1], *late, ["failed", "j", 1, "E", "", None]]
    )
    assert (outcome, frames) == (Done(b"r", 1), 1)


@pytest.mark.parametrize("name", [("other", 1), ("j", 0), ("", 0)])
def test_what_another_job_says_is_dropped(talk, name):
    foreign = [
        *values("ghost", name=name),
        ["done", *name, b"ghost", 1],
        ["failed", *name, "E", "ghost", None],
    ]
    outcome, frames = talk(foreign, [*foreign, ["done", "j", 1, b"mine", 0]])
    assert (outcome, frames) == (Done(b"mine", 0), 0)


@pytest.mark.parametrize("reason", ["timeout", "release", "cancelled", "lost"])
def test_a_stop_wins_over_a_success_and_no_value_is_missing(talk, reason):
    outcome, frames = talk(values("a", "b"), [["done", "j", 1, b"r", 2]], reason=reason)
    assert (outcome, frames) == (Stopped(reason, None, 2), 2)


def test_a_refusal_stays_one(talk):
    refusal = Failed("PickleRefused", "no", None, True, 0)
    outcome, _ = talk([["failed", "j", 1, "PickleRefused", "no", None, True, 0]], reason="timeout")
    assert outcome == refusal


def test_no_signal_of_one_body_reaches_the_next():
    child = Script()
    door = ChildDoor(child, lambda: False)
    door.close()
    door.stop("timeout")
    assert (door.reason, child.stopped) == (None, [])


# -- with a child


def drain(q: SyncQueue, **options) -> None:
    run_worker(q, isolation="process", stop=lambda: q.count("queued") + q.count("running") == 0, **options)


def test_what_a_body_leaves_running_in_the_child_says_nothing_in_the_next_log(q):
    def leaves():
        import sys
        import threading
        import time

        from lakeshore import run

        until = time.monotonic() + 20

        def go_on():
            while time.monotonic() < until:
                run.display("leftover")
                run.progress(1)
                print("leftover")
                sys.stderr.write("leftover\n")

        threading.Thread(target=go_on, daemon=True).start()
        print("mine")
        yield from range(3)

    def quiet():
        import time

        time.sleep(0.1)
        print("quiet")

    first, second = q.submit(thunk(leaves)), [q.submit(thunk(quiet)) for _ in range(3)]
    drain(q)
    assert list(q.stream(first)) == [0, 1, 2]
    assert "mine" in "".join(item.get("text", "") for item in q.logs(first))
    for inv in second:
        assert q.result(inv) is None
        assert "".join(item["text"] for item in q.logs(inv)) == "quiet\n"
        assert list(q.plane.journal_read(f"{inv}.progress", timeout=0)) == []


def test_a_flood_that_outlives_its_body_holds_up_no_job(q):
    def floods():
        import subprocess

        for _ in range(3):
            subprocess.Popen(["timeout", "30", "yes"])
        return "flooding"

    ids = [q.submit(thunk(floods)), q.submit(thunk(max, 1, 2))]
    began = time.monotonic()
    drain(q)
    assert [q.result(inv) for inv in ids] == ["flooding", 2]
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("how", ["os", "C"])
def test_a_dead_child_is_seen_while_what_it_forked_prints(q, how):
    def dies(how):
        import ctypes
        import os
        import time

        # C code forks without Python's hooks, so that process keeps the line to the worker open
        fork = os.fork if how == "os" else ctypes.CDLL(None).fork
        if fork() == 0:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                os.write(1, b"still here\n")
                time.sleep(0.02)
            os._exit(0)
        time.sleep(0.1)
        os.kill(os.getpid(), 9)

    inv = q.submit(thunk(dies, how).with_options(retries=0))
    began = time.monotonic()
    drain(q)
    assert q.status(inv)["error"].startswith("ProcessDied: the body's process was killed by SIGKILL")
    assert time.monotonic() - began < 10


def closes_all():
    import os
    import time

    os.closerange(0, 300)
    time.sleep(30)


def test_a_body_that_closes_the_line_is_not_said_to_be_out_of_memory(q):
    one = q.submit(thunk(closes_all))
    run_worker(q, isolation="process", allow_pickled=True, once=True, retries=0)
    error = q.status(one)["error"]
    assert "closed the worker's line to it" in error and "memory" not in error


def changes():
    import os
    import sys

    os.environ.update(LEFT="1", HOME="/nowhere")
    del os.environ["PATH"]
    os.umask(0o777)
    sys.setrecursionlimit(200)


def looks():
    import os
    import sys

    umask = os.umask(0o22)
    return [os.environ.get("LEFT"), os.environ["HOME"], "PATH" in os.environ, umask, sys.getrecursionlimit()]


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_what_a_body_changes_of_its_process_is_put_back(q, monkeypatch, isolation):
    monkeypatch.setenv("HOME", "/home/of/mine")
    if isolation == "inline":  # there the environment is the program's own, and stays as it is
        monkeypatch.setenv("LEFT", "0")
        monkeypatch.setattr(inline, "owns_the_process", lambda: True)
    umask = os.umask(0o027)
    try:
        ids = [
            q.submit(thunk(changes if isolation == "process" else lambda: os.umask(0o777))),
            q.submit(thunk(looks)),
        ]
        run_worker(q, isolation=isolation, allow_pickled=True, stop=lambda: q.count() == 0)
    finally:
        os.umask(umask)
    left = None if isolation == "process" else "0"
    assert q.result(ids[1]) == [left, "/home/of/mine", True, 0o027, sys.getrecursionlimit()]
