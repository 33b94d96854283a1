"""From envelope to ending: refusals, failures as text, results, retries and their delays."""

from __future__ import annotations

import importlib
import platform
import sys

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore import InvocationFailed, run, thunk, wire
from lakeshore.planes.contract import Claimed
from lakeshore.worker.endings import DELAY_CAP, Ending, Options, ending, read, retry_delay
from lakeshore.worker.outcomes import Done, Failed, Stopped


def altered(plane, q, change, job=lambda: 1):
    """Put a job on the plane whose envelope `change` was let loose on."""
    inv = q.submit(thunk(job))
    fields = msgpack.unpackb(plane.envelope(inv), raw=False, strict_map_key=False)
    plane.cancel(inv)
    change(fields)
    fields["id"] = inv + "x"
    return plane.submit("gpu", msgpack.packb(fields, use_bin_type=True), id=inv + "x")


# -- refusals: at once, without a frame


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xc1\xc1garbage", "neither an envelope nor a payload"),
        (b"", "neither an envelope nor a payload"),
        (wire.pack({"x": 1}), "thunk(f, payload)"),
        (wire.pack([1, 2]), "q.claim()"),
        (wire.pack(None), "q.claim()"),
    ],
)
def test_what_is_no_envelope_fails_at_once_and_the_job_behind_it_runs(plane, q, drain, data, told):
    plane.submit("gpu", data, id="bad")
    good = q.submit(thunk(lambda: 42))
    assert drain(retries=5) == 2
    row = plane.get("bad")
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert told in row["error"]
    assert q.result(good) == 42
    assert list(plane.journal_read("bad", timeout=0)) == []


def test_a_newer_envelope_names_both_versions(plane, q, drain):
    inv = altered(plane, q, lambda fields: fields.update(v=2))
    assert drain() == 1
    assert plane.get(inv)["state"] == "failed"
    assert "2" in plane.get(inv)["error"]
    assert "q.claim" not in plane.get(inv)["error"]


@pytest.mark.parametrize(
    "cfg",
    [{"retries": "many"}, {"retries": -1}, {"timeout": 0}, {"timeout": True}, {"backoff": float("nan")}],
)
def test_an_option_out_of_range_is_named(plane, q, drain, cfg):
    inv = altered(plane, q, lambda fields: fields.update(cfg=cfg))
    assert drain(retries=3) == 1
    assert next(iter(cfg)) in plane.get(inv)["error"]


def test_broken_arguments_fail_at_once(plane, q, drain):
    inv = altered(plane, q, lambda fields: fields.update(args=wire.pack({"no": "list"})))
    assert drain(retries=3) == 1
    assert "UnpackError" in plane.get(inv)["error"]


def test_a_pickle_is_refused_by_both_names_of_the_switch(plane, q, drain):
    inv = q.submit(thunk(lambda: 1))
    assert drain(retries=3, allow_pickled=False) == 1
    assert "allow_pickled=True" in plane.get(inv)["error"]
    assert "--allow-pickled" in plane.get(inv)["error"]


def test_another_python_is_refused_before_the_pickle_is_read(plane, q, drain):
    def change(fields):
        fields["fn"]["blob"] = b"not a pickle"
        fields["fn"]["runtime"]["python"] = "3.7.1"

    inv = altered(plane, q, change)
    assert drain(retries=3) == 1
    error = plane.get(inv)["error"]
    assert "3.7.1" in error
    assert platform.python_version() in error


REFERRED = """
from lakeshore import udf

@udf(transport="ref")
def referred():
    return {value}
"""


def test_a_reference_leads_to_what_its_module_holds_now(q, tmp_path, monkeypatch):
    """Also for a worker that has run it before: loaded anew, replaced, or of another source."""
    file = tmp_path / "lakeshore_referred.py"
    file.write_text(REFERRED.format(value=1))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("lakeshore_referred")
    monkeypatch.setitem(sys.modules, "lakeshore_referred", module)
    with q.worker():
        assert [q.call(thunk(module.referred)) for _ in range(2)] == [1, 1]
        old = q.submit(thunk(module.referred), delay=0.3)
        file.write_text(REFERRED.format(value=22))
        importlib.reload(module)
        assert [q.call(thunk(module.referred)) for _ in range(2)] == [22, 22]
        with pytest.raises(InvocationFailed, match="StaleSource"):
            q.result(old)
        assert q.status(old)["attempt"] == 1  # failed at once


@pytest.mark.parametrize("prefix", ["/etc", "../out", "a/../../b", "a\\b"])
def test_a_prefix_out_of_the_root_fails_and_makes_nothing(plane, q, drain, tmp_path, prefix):
    root = tmp_path / "root"
    root.mkdir()
    inv = altered(plane, q, lambda fields: fields.update(prefix=prefix))
    assert drain(retries=3, root=root) == 1
    assert "KeyContractError" in plane.get(inv)["error"]
    assert list(tmp_path.iterdir()) == [root]


def test_a_job_that_killed_three_workers_is_not_run_again(plane, q, drain):
    inv = q.submit(thunk(lambda: 1))
    for n in range(3):
        assert plane.claim("gpu", f"dead-{n}", lease=0.01, wait=5).attempt == n + 1
    assert plane.claim("gpu", "w", lease=0.01, wait=5).attempt == 4
    while not drain(retries=9):
        pass
    row = plane.get(inv)
    assert row["state"] == "failed"
    assert "workers died" in row["error"]
    kinds = {wire.Frame.from_bytes(data).kind for _, data in plane.journal_read(inv, timeout=0)}
    assert wire.FrameKind.ERROR not in kinds


# -- failures of bodies


def failure(plane, q, drain, job, *args, **options):
    inv = q.submit(thunk(job, *args))
    drain(**{"retries": 0, **options})
    row = plane.get(inv)
    assert row["state"] == "failed"
    with pytest.raises(InvocationFailed) as caught:
        q.result(inv)
    return row, caught.value


def test_a_failure_holds_the_users_frames_and_none_of_ours(plane, q, drain):
    def divide(by):
        return 10 / by

    row, error = failure(plane, q, drain, divide, 0)
    assert row["error"] == "ZeroDivisionError: division by zero"
    assert "in divide" in error.traceback
    assert "lakeshore/" not in error.traceback
    frames = [wire.Frame.from_bytes(data) for _, data in plane.journal_read(row["id"], timeout=0)]
    assert [frame.kind for frame in frames] == [wire.FrameKind.ERROR]
    assert frames[0].meta["type"] == "ZeroDivisionError"


def test_async_failures_hold_the_users_frames_too(plane, q, drain):
    async def fails():
        raise LookupError("gone")

    _, error = failure(plane, q, drain, fails)
    assert "in fails" in error.traceback
    assert "asyncio" not in error.traceback


def test_async_failures_show_no_context_of_ours(plane, q, drain):
    async def fails():
        raise LookupError("gone")

    async def yields():
        yield 1
        raise LookupError("gone")

    for body in (fails, yields):
        _, error = failure(plane, q, drain, body)
        assert "During handling" not in error.traceback
        assert error.traceback.count("Traceback") == 1


def test_an_exception_whose_str_raises_is_told_by_its_type(plane, q, drain):
    def job():
        class Odd(Exception):
            def __init__(self, a, b):
                self.a = a

            def __str__(self):
                raise SystemExit

            __repr__ = __str__

        raise Odd(1, 2)

    row, _ = failure(plane, q, drain, job)
    assert row["error"].startswith("Odd")
    good = q.submit(thunk(lambda: 1))
    drain()
    assert q.result(good) == 1


@pytest.mark.parametrize("leave", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("x")])
def test_whatever_a_body_raises_fails_its_job_only(plane, q, drain, leave):
    def job():
        raise leave

    row, _ = failure(plane, q, drain, job)
    assert row["error"].startswith(type(leave).__name__)


def test_a_deep_recursion_is_told_within_the_limit(plane, q, drain):
    def deep(n):
        return deep(n + 1) + 1

    row, error = failure(plane, q, drain, deep, 0)
    assert row["error"].startswith("RecursionError")
    assert len(error.traceback) <= 64 * 1024


def test_a_huge_message_is_cut(plane, q, drain):
    def job():
        raise ValueError("x" * 10_000_000)

    row, error = failure(plane, q, drain, job)
    assert len(row["error"]) < 20_000
    assert len(error.traceback.encode()) <= 64 * 1024


def test_a_message_that_is_no_text_is_told_all_the_same(plane, q, drain):
    def job():
        raise ValueError("\ud800 and \0")

    row, _ = failure(plane, q, drain, job)
    assert row["error"].startswith("ValueError: \\ud800 and")


def test_a_cause_and_a_group_are_told(plane, q, drain):
    def job():
        try:
            {}["k"]
        except KeyError as exc:
            raise ExceptionGroup("both", [ValueError("one"), OSError("two")]) from exc

    _, error = failure(plane, q, drain, job)
    assert all(word in error.traceback for word in ("KeyError", "one", "two"))


def test_a_result_that_cannot_be_packed_names_the_path(plane, q, drain):
    row, _ = failure(plane, q, drain, lambda: {"model": [object()]})
    assert row["error"].startswith("PackError")
    assert "model" in row["error"]


def test_a_result_over_the_limit_names_size_and_way(plane, q, drain, monkeypatch):
    monkeypatch.setenv("LAKESHORE_MAX_PAYLOAD", "5000")
    row, _ = failure(plane, q, drain, lambda: b"x" * 6000)
    assert "run.write" in row["error"]


def test_a_yield_over_the_limit_fails_the_job_there(plane, q, drain, monkeypatch):
    monkeypatch.setenv("LAKESHORE_MAX_PAYLOAD", "5000")

    def job():
        yield 1
        yield b"x" * 6000

    row, _ = failure(plane, q, drain, job)
    assert "run.write" in row["error"]
    kinds = [wire.Frame.from_bytes(data).kind for _, data in plane.journal_read(row["id"], timeout=0)]
    assert kinds == [wire.FrameKind.VALUE, wire.FrameKind.ERROR]


# -- streams


def test_yields_stream_and_end(plane, q, drain):
    def job():
        yield from ("a", None, 0)
        return "result"

    inv = q.submit(thunk(job))
    drain()
    assert list(q.stream(inv)) == ["a", None, 0]
    assert q.result(inv) == "result"
    frames = [wire.Frame.from_bytes(data) for _, data in plane.journal_read(inv, timeout=0)]
    assert frames[-1].kind == wire.FrameKind.END
    assert [frame.seq for frame in frames] == [0, 1, 2, 3]


def test_a_large_value_travels_in_chunks_and_arrives_whole(q, drain):
    big = bytes(range(256)) * (3 * 4096 + 1)

    def job():
        yield 1
        yield bytes(range(256)) * (3 * 4096 + 1)
        yield 2

    inv = q.submit(thunk(job))
    drain()
    assert list(q.stream(inv)) == [1, big, 2]


def test_a_plain_body_writes_no_frame(plane, q, drain):
    inv = q.submit(thunk(lambda: 1))
    drain()
    assert list(plane.journal_read(inv, timeout=0)) == []


def test_a_retry_supersedes_the_first_attempts_frames(plane, q, drain, tmp_path):
    flag = tmp_path / "flag"

    def job():
        first = not flag.exists()
        flag.touch()
        for n in range(4):
            if first and n == 2:
                raise OSError("half-way")
            yield [n, first]

    inv = q.submit(thunk(job))
    assert drain(retries=1) == 2
    assert list(q.stream(inv)) == [[n, False] for n in range(4)]
    assert plane.get(inv)["attempt"] == 2


def test_an_error_in_mid_stream_is_raised_after_the_values(q, drain):
    inv = q.submit(thunk(lambda: (10 // (3 - n) for n in range(5))))
    drain(retries=0)
    got = []
    with pytest.raises(InvocationFailed, match="ZeroDivisionError"):
        got.extend(q.stream(inv))
    stream = q.stream(inv)
    assert [next(stream), next(stream), next(stream)] == [3, 5, 10]


# -- context


def test_the_context_knows_the_job(q, drain, tmp_path):
    def job():
        path = run.write("out.txt")
        path.write_text("hi")
        return {"key": "out.txt", "id": run.invocation_id, "attempt": run.attempt, "fence": run.fence}

    inv = q.submit(thunk(job))
    drain(root=tmp_path)
    assert q.result(inv) == {"key": "out.txt", "id": inv, "attempt": 1, "fence": 1}
    assert (tmp_path / "out.txt").read_text() == "hi"


def test_progress_comes_at_most_ten_times_a_second_and_the_last_always(plane, q, drain):
    def job():
        for n in range(1000):
            run.progress(n + 1, 1000, "rows")

    inv = q.submit(thunk(job))
    drain()
    told = [wire.Frame.from_bytes(data).body for _, data in plane.journal_read(f"{inv}.progress", timeout=0)]
    assert told[-1] == {"done": 1000.0, "total": 1000.0, "note": "rows"}
    assert len(told) < 30


# -- retries


def test_retries_2_means_three_attempts(plane, q, drain, tmp_path):
    log = tmp_path / "log"

    def flaky():
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size < 3:
            raise OSError("not yet")
        return "third"

    inv, dead = q.submit(thunk(flaky)), q.submit(thunk(lambda: 1 / 0))
    assert drain(retries=2) == 6
    assert q.result(inv) == "third"
    assert plane.get(inv)["attempt"] == plane.get(dead)["attempt"] == 3


def noted(q, inv):
    """Return what a log tells of earlier attempts."""
    texts = [line for item in q.logs(inv) for line in item["text"].splitlines()]
    return [text for text in texts if text.startswith("[lakeshore: ")]


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_the_log_of_a_retry_begins_with_how_the_attempt_before_failed(q, drain, isolation):
    def flaky():
        print("trying")
        if run.attempt < 3:
            raise OSError(f"blink {run.attempt}\nand more")
        return run.attempt

    inv, silent = q.submit(thunk(flaky)), q.submit(thunk(flaky).with_options(log=False))
    drain(retries=2, isolation=isolation)
    assert q.result(inv) == q.result(silent) == 3
    texts = "".join(item["text"] for item in q.logs(inv))
    assert texts == "[lakeshore: attempt 2 failed: OSError: blink 2]\ntrying\n"
    assert list(q.logs(silent)) == []


def test_no_log_of_earlier_attempts_where_the_worker_keeps_none(q, drain):
    inv = q.submit(thunk(lambda: 1 / 0))
    assert drain(retries=1, log=False) == 2
    assert list(q.logs(inv)) == []


def test_the_log_tells_of_attempts_that_were_lost_with_their_worker(plane, q, drain):
    inv = q.submit(thunk(print, "hello"))
    assert plane.claim("gpu", "dead", lease=0.01)
    while not drain():
        pass
    assert noted(q, inv) == ["[lakeshore: attempt 1 was lost with its worker]"]
    inv = q.submit(thunk(print, "hello"))
    assert plane.claim("gpu", "dead", lease=0.01)
    failing = plane.claim("gpu", "w", wait=5)
    plane.nack(failing.id, "w", error="ValueError: no", fence=failing.fence)
    drain()
    (told,) = noted(q, inv)
    assert "of 2 attempts 1 ended with the worker" in told
    assert told.endswith("failed: ValueError: no]")


def test_a_jobs_own_retries_win(plane, q, drain):
    never = q.submit(thunk(lambda: 1 / 0).with_options(retries=0))
    often = q.submit(thunk(lambda: 1 / 0).with_options(retries=3))
    drain(retries=1)
    assert plane.get(never)["attempt"] == 1
    assert plane.get(often)["attempt"] == 4


CLAIMED = Claimed("j", b"", 1, "gpu", 1, 0.0)
FAILED = Failed("ValueError", "x")


def test_lost_workers_use_up_no_retry():
    third = Claimed("j", b"", 3, "gpu", 3, 0.0)
    assert ending(FAILED, third, Options(), retries=1, backoff=0, losses=2).retry
    assert not ending(FAILED, third, Options(), retries=1, backoff=0, losses=1).retry


def test_each_outcome_has_one_ending():
    def of(outcome):
        return ending(outcome, CLAIMED, Options(timeout=2.0), retries=0, backoff=0)

    assert of(Done(b"r")) == Ending("ack", b"r")
    assert of(Done(b"r", 2)).frame == wire.end_frame(2)
    assert of(Stopped("lost")) == of(Stopped("cancelled")) == Ending("drop")
    assert of(Stopped("release")) == Ending("release")
    timed_out = of(Stopped("timeout"))
    assert timed_out.error["type"] == "TimeoutError"
    assert "2 s" in timed_out.error["message"]
    assert of(Failed("A", "b", refused=True)).frame is None


@given(st.integers(1, 10_000), st.floats(0, 86400))
def test_delays_are_bounded(attempt, base):
    delay = retry_delay(attempt, base)
    assert 0 <= delay <= DELAY_CAP
    if attempt <= 2 or base == 0:
        assert delay == 0
    else:
        assert delay <= base * 2.0 ** min(attempt - 3, 60)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    job = read(data)
    assert isinstance(job, tuple) or (job.refused and job.message)


def test_options_are_capped():
    envelope = wire.Envelope(
        id="j",
        fn={},
        args=wire.pack([]),
        kwargs=wire.pack({}),
        cfg={"retries": 10**9, "backoff": 1e9, "log": False},
    )
    _, options = read(envelope.to_bytes())
    assert options == Options(retries=100, backoff=86400.0, timeout=None, log=False)
