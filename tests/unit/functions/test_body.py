"""Driving bodies of every kind to their end."""

import asyncio
import ctypes
import functools
import threading
import timeit

import pytest

from lakeshore import JobCancelled, KeyContractError, run, scope, udf
from lakeshore.context import job_context
from lakeshore.functions.body import kind_of, run_body


def drive(fn, *args, **kwargs):
    out = []
    return run_body(fn, args, kwargs, emit=out.append), out


def plain(n=3):
    return n


def gen(n=3):
    yield from range(n)
    return "end"


async def coro(n=3):
    await asyncio.sleep(0)
    return n


async def agen(n=3):
    for i in range(n):
        await asyncio.sleep(0)
        yield i


class Calls:
    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args):
        return self.fn(*args)


class Methods:
    async def coro(self):
        return 3

    def gen(self):
        yield 1

    async def __call__(self):
        return 4


EXPECTED = [(plain, 3, [], "sync"), (gen, "end", [0, 1, 2], "generator"), (coro, 3, [], "async"),
            (agen, None, [0, 1, 2], "asyncgen")]  # fmt: skip
WRAPS = {
    "bare": lambda fn: fn,
    "partial": lambda fn: functools.partial(fn, 3),
    "nested partial": lambda fn: functools.partial(functools.partial(fn), n=3),
    "udf": udf,
    "bound udf": udf(queue="nowhere"),
    "lru_cache": functools.lru_cache,
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize(
    ("fn", "result", "yields", "kind"), EXPECTED, ids=lambda v: getattr(v, "__name__", None)
)
def test_every_kind_through_every_wrapper(fn, result, yields, kind, wrap):
    wrapped = wrap(fn)
    assert kind_of(wrapped) == kind
    assert drive(wrapped) == (result, yields)


@pytest.mark.parametrize(("fn", "result", "yields", "kind"), EXPECTED)
def test_a_body_that_returns_one_is_driven_as_one(fn, result, yields, kind):
    assert drive(lambda: fn()) == (result, yields)
    assert drive(Calls(fn)) == (result, yields)

    async def outer():
        return fn()

    assert drive(outer) == (result, yields)


def test_methods_and_callable_objects():
    assert drive(Methods().coro) == (3, [])
    assert drive(Methods().gen) == ([1], [1]) or drive(Methods().gen) == (None, [1])
    assert drive(Methods()) == (4, [])
    assert [kind_of(f) for f in (Methods().coro, Methods().gen, Methods())] == ["async", "generator", "async"]
    assert kind_of(len) == kind_of(int) == "sync"


@pytest.mark.parametrize("fn", [coro, agen])
def test_async_bodies_run_where_a_loop_runs_already(fn):
    async def main():
        with scope("s", root="/"):
            return drive(fn), drive(where)

    async def where():
        return run.prefix

    got, prefix = asyncio.run(main())
    assert got == drive(fn)
    assert prefix == ("s", [])


@pytest.mark.parametrize(
    ("yields", "result"),
    [
        (["a", "b"], ["a", "b"]),
        ([["a"], ["b", "c"]], ["a", "b", "c"]),
        ([{"x": "a"}, {"y": "b"}], {"x": "a", "y": "b"}),
        (["a", ["b"]], ["a", ["b"]]),
        ([1, "a"], None),
        (["a", {"x": 1}], None),
        ([], None),
        (["x" * 100] * 20_000, None),
    ],
    ids=["str", "lists", "dicts", "mixed", "number", "dict of numbers", "none", "a stream, no manifest"],
)
def test_the_result_of_a_generator_is_its_manifest_or_none(yields, result):
    def body():
        yield from yields

    async def abody():
        for y in yields:
            yield y

    assert drive(body)[0] == result
    assert drive(abody)[0] == result


def test_errors_come_through_as_they_are():
    def bad():
        yield 1
        raise LookupError("here")

    for fn in (bad, lambda: 1 / 0, coro_raising, lambda: (_ for _ in ()).throw(SystemExit(3))):
        with pytest.raises((LookupError, ZeroDivisionError, SystemExit)):
            drive(fn)


async def coro_raising():
    await asyncio.sleep(0)
    raise LookupError("here")


def test_a_generator_is_closed_when_emit_raises():
    closed = []

    def body():
        try:
            while True:
                yield 1
        finally:
            closed.append("sync")

    async def abody():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("async")

    def emit(_):
        raise JobCancelled

    for fn in (body, abody):
        with pytest.raises(JobCancelled):
            run_body(fn, (), {}, emit=emit)
    assert closed == ["sync", "async"]


def test_the_first_error_stays_when_closing_fails_too():
    def body():
        try:
            yield 1
        finally:
            raise ValueError("second")

    def emit(_):
        raise LookupError("first")

    with pytest.raises(LookupError, match="first") as caught:
        run_body(body, (), {}, emit=emit)
    assert "second" in caught.value.__notes__[0]


def _set_cancelled(thread):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(JobCancelled))


@pytest.mark.parametrize("loop_runs", [False, True])
def test_an_async_exception_ends_a_waiting_async_body_and_its_cleanup_runs(loop_runs):
    started, log = threading.Event(), []

    async def body():
        try:
            started.set()
            await asyncio.sleep(3600)
        except Exception:  # noqa: BLE001 - a body that eats errors
            log.append("eaten")
        finally:
            log.append("cleaned")

    def work():
        try:
            asyncio.run(within()) if loop_runs else drive(body)
        except JobCancelled:
            log.append("cancelled")

    async def within():
        drive(body)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(5)
    _set_cancelled(thread)
    thread.join(5)
    assert not thread.is_alive()
    assert log == ["cleaned", "cancelled"]


def test_run_cancelled_ends_a_waiting_async_body():
    stop = threading.Event()

    async def body():
        stop.set()
        await asyncio.sleep(3600)

    with (
        job_context(prefix="", root="/", invocation_id="i", cancelled=stop.is_set),
        pytest.raises(JobCancelled),
    ):
        drive(body)


def test_a_body_that_cancels_itself_is_an_error_and_no_cancelled_job():
    async def body():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        drive(body)


def test_keys_are_held_for_every_kind(tmp_path):
    def write(key):
        run.write(key).write_text("x")

    def body():
        write("a")

    def generator(keys):
        for key in ("a", "b"):
            write(key)
            if key in keys:
                yield key

    async def async_body():
        write("a")
        return {"out": "a"}

    with (
        job_context(prefix="", root=tmp_path, invocation_id="i"),
        pytest.raises(KeyContractError, match="'a'"),
    ):
        drive(body)
    with (
        job_context(prefix="", root=tmp_path, invocation_id="i"),
        pytest.raises(KeyContractError, match="'b'"),
    ):
        drive(generator, ["a"])
    for fn, args, result in ((generator, (["a", "b"],), ["a", "b"]), (async_body, (), {"out": "a"})):
        with job_context(prefix="", root=tmp_path, invocation_id="i"):
            assert drive(fn, *args)[0] == result


def test_a_check_of_the_callers_own_sees_result_and_yields():
    seen = []
    run_body(gen_of_keys, (), {}, emit=lambda v: None, check=lambda *a: seen.append(a))
    assert seen == [(["k"], ["k"])]


def gen_of_keys():
    yield "k"


def test_a_plain_body_costs_microseconds():
    def noop():
        return None

    best = min(timeit.repeat(lambda: run_body(noop, (), {}, emit=print), number=2000, repeat=5)) / 2000
    assert best < 50e-6
