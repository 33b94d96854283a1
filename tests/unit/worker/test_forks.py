"""Processes that a body forks: they end where the body would, and touch neither its job nor the next."""

from __future__ import annotations

import pytest

from lakeshore import InvocationFailed, SyncQueue, run_worker, thunk

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fork_and_return(then):
    import os
    import sys

    child = os.fork()
    if child == 0:
        if then == "exit":
            sys.exit(3)
        if then == "raise":
            raise ValueError("in the forked process")
        return "a ghost"
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_and_yield(then):
    yield "before"
    code = fork_and_return(then)
    if code == "a ghost":
        yield code  # a forked process has nobody to give it to: the yield raises
    yield code


async def fork_and_await(then):
    import asyncio

    await asyncio.sleep(0)
    code = fork_and_return(then)
    await asyncio.sleep(0)
    return code


async def fork_and_yield_async(then):
    yield "before"
    yield fork_and_return(then)


class Forks:
    """Forks while a worker unpickles it, before any body runs (`flag`: the submit has looked at it too)."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return fork_where, (self.flag,)


def fork_where(flag):
    import os

    return fork_and_return("exit") if os.path.exists(flag) else None


def drain(q: SyncQueue, isolation: str) -> None:
    run_worker(q, isolation=isolation, stop=lambda: q.count("queued") + q.count("running") == 0)


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_forked_process_never_carries_on_the_worker(q, plane, tmp_path, isolation):
    ways = {"exit": 3, "raise": 1, "return": 0}
    plain = {code: q.submit(thunk(fork_and_return, then)) for then, code in ways.items()}
    waits = {code: q.submit(thunk(fork_and_await, then)) for then, code in ways.items()}
    yields = [
        q.submit(thunk(fork_and_yield, "exit")),
        q.submit(thunk(fork_and_yield, "return")),
        q.submit(thunk(fork_and_yield_async, "raise")),
    ]
    given = q.submit(thunk(lambda value: value, Forks(str(tmp_path / "flag"))))
    (tmp_path / "flag").touch()
    after = [q.submit(thunk(max, n, 0)) for n in range(5)]
    drain(q, isolation)
    for inv in (*plain.values(), *waits.values(), *yields, given, *after):
        row = plane.get(inv)
        assert (row["state"], row["attempt"], row["error"]) == ("succeeded", 1, None)
    assert {code: q.result(inv) for code, inv in plain.items()} == {3: 3, 1: 1, 0: 0}
    assert {code: q.result(inv) for code, inv in waits.items()} == {3: 3, 1: 1, 0: 0}
    assert [list(q.stream(inv)) for inv in yields] == [["before", 3], ["before", 1], ["before", 1]]
    assert q.result(given) == 3
    assert [q.result(inv) for inv in after] == list(range(5))


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_what_a_forked_process_reports_is_no_report_of_the_job(q, plane, isolation):
    def body():
        import os

        from lakeshore import run

        if os.fork() == 0:
            for n in range(50):
                run.display("x" * 100_000)
                run.progress(n)
            os._exit(0)
        for n in range(20):
            yield n
        run.progress(7)
        return os.WEXITSTATUS(os.wait()[1])

    inv, after = q.submit(thunk(body)), q.submit(thunk(max, 1, 2))
    drain(q, isolation)
    assert (q.result(inv), q.result(after)) == (0, 2)
    assert list(q.stream(inv)) == list(range(20))
    assert [item for item in q.logs(inv) if "display" in item] == []


def test_a_fork_in_the_users_own_callbacks_is_no_second_worker(q, plane):
    def stop():
        import os

        if not asked and q.count("succeeded"):
            asked.append(os.fork())
            if asked[0] == 0:
                return False  # it would go on to claim
            codes.append(os.waitstatus_to_exitcode(os.waitpid(asked[0], 0)[1]))
        return bool(asked) and q.count("queued") == 0

    asked: list[int] = []
    codes: list[int] = []
    ids = [q.submit(thunk(max, n, 0)) for n in range(3)]
    run_worker(q, stop=stop)
    assert codes == [0]
    assert [q.result(inv) for inv in ids] == [0, 1, 2]


def test_a_worker_thread_is_left_alone_by_what_its_body_forks(q, plane):
    with q.worker() as worker:
        assert q.result(q.submit(thunk(fork_and_return, "return")), timeout=10) == 0
        assert q.result(q.submit(thunk(max, 1, 2)), timeout=10) == 2
        assert worker.running


def test_a_yield_in_a_forked_process_says_what_to_do(q, plane):
    def body():
        import os

        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                yield "a ghost"
            except GeneratorExit:
                os.write(writing, b"closed")
                raise
        os.waitpid(child, 0)
        yield os.read(reading, 100)

    inv = q.submit(thunk(body).with_options(retries=0))
    drain(q, "inline")
    assert list(q.stream(inv)) == [b"closed"]
    with pytest.raises(InvocationFailed):  # and a failing body is told as ever
        q.submit(thunk(divmod, 1, 0).with_options(retries=0), id="zero")
        drain(q, "inline")
        q.result("zero")
