"""The decorator: local calls of every kind, scopes that do not leak, submits, map."""

import asyncio
import contextvars
import gc
import inspect
import pickle
import subprocess
import sys
import timeit

import pytest

from lakeshore import (
    UDF,
    Dispatch,
    InvocationCancelled,
    InvocationFailed,
    KeyContractError,
    SyncQueue,
    UnknownInvocation,
    run,
    run_worker,
    scope,
    thunk,
    udf,
)


@pytest.fixture
def plane():
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


@pytest.fixture
def q(plane):
    return SyncQueue("gpu", dispatch=plane)


def drain(q):
    n = 0
    while run_worker(q, once=True, retries=0):
        n += 1
    return n


# ---- local


def test_it_is_the_function_to_the_eye():
    @udf
    def double(x: int, y: int = 2) -> int:
        """Twice."""
        return x * y

    assert (double.__name__, double.__doc__, double.__wrapped__) == ("double", "Twice.", double.fn)
    assert str(inspect.signature(double)) == "(x: int, y: int = 2) -> int"
    assert double(3) == double.local(3) == 6
    assert "double" in repr(double)
    assert isinstance(double, UDF)


def test_every_kind_runs_locally_as_itself(tmp_path):
    @udf
    def g():
        got = yield 1
        yield got
        return "end"

    @udf
    async def c():
        await asyncio.sleep(0)
        return run.prefix

    @udf
    async def a():
        for i in range(2):
            await asyncio.sleep(0)
            yield i

    body = g()
    assert [next(body), body.send("sent")] == [1, "sent"]
    with pytest.raises(StopIteration, match="end"):
        next(body)

    async def main():
        with scope("s", root=tmp_path):
            return await c(), [v async for v in a()], await asyncio.gather(c(), c())

    assert asyncio.run(main()) == ("s", [0, 1], ["s", "s"])


def test_a_thrown_error_reaches_the_body():
    @udf
    def g():
        try:
            yield 1
        except LookupError:
            yield "caught"

    body = g()
    next(body)
    assert body.throw(LookupError) == "caught"

    @udf
    async def a():
        try:
            yield 1
        except LookupError:
            yield "caught"

    async def main():
        body = a()
        await anext(body)
        return await body.athrow(LookupError())

    assert asyncio.run(main()) == "caught"


def test_a_scope_opened_inside_does_not_leak_into_the_consumer(tmp_path):
    @udf
    def g():
        with scope("inner"):
            yield run.prefix
            yield run.prefix

    @udf
    async def a():
        with scope("inner"):
            yield run.prefix
            await asyncio.sleep(0)
            yield run.prefix

    async def consume():
        with scope("outer", root=tmp_path):
            return [(seen, run.prefix) async for seen in a()]

    with scope("outer", root=tmp_path):
        assert [(seen, run.prefix) for seen in g()] == [("outer/inner", "outer")] * 2
    assert asyncio.run(consume()) == [("outer/inner", "outer")] * 2


@pytest.mark.parametrize("how", ["break", "aclose", "shutdown", "task cancelled"])
def test_an_abandoned_async_generator_raises_nothing(tmp_path, monkeypatch, how):
    problems, closed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: problems.append(str(u.exc_value)))

    @udf
    async def feed():
        try:
            with scope("inner"):
                for i in range(5):
                    yield i
        finally:
            await asyncio.sleep(0)
            closed.append(run.prefix)

    async def reader(body):
        async for _ in body:
            await asyncio.sleep(3600)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, about: problems.append(str(about)))
        with scope("outer", root=tmp_path):
            body = feed()
            if how == "task cancelled":
                task = asyncio.create_task(reader(body))
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                async for x in body:
                    if x == 1:
                        break
            if how == "aclose":
                await body.aclose()
            assert run.prefix == "outer"
        if how != "shutdown":
            del body
            gc.collect()
            await asyncio.sleep(0.01)
        else:
            keep.append(body)

    keep = []
    asyncio.run(main())
    assert not problems
    assert len(closed) == 1


def test_an_abandoned_generator_raises_nothing_and_is_closed(tmp_path):
    closed = []

    @udf
    def feed():
        try:
            with scope("inner"):
                yield 1
                yield 2
        finally:
            closed.append(1)

    with scope("outer", root=tmp_path):
        for _ in feed():
            break
        gc.collect()
        assert run.prefix == "outer"
    body = feed()
    next(body)
    contextvars.copy_context().run(body.close)
    assert closed == [1, 1]


def test_return_your_keys_in_every_kind(tmp_path):
    def write(key):
        run.write(key).write_text("x")

    @udf
    def plain(keys):
        write("kept.txt"), write("forgotten.txt")
        return keys

    @udf
    def generator(keys):
        write("kept.txt"), write("forgotten.txt")
        yield from keys

    @udf
    async def coroutine(keys):
        return plain.fn(keys)

    @udf
    async def agen(keys):
        write("kept.txt"), write("forgotten.txt")
        for key in keys:
            yield key

    async def collect(keys):
        return [v async for v in agen(keys)]

    calls = (
        plain,
        lambda k: list(generator(k)),
        lambda k: asyncio.run(coroutine(k)),
        lambda k: asyncio.run(collect(k)),
    )
    with scope("s", root=tmp_path):
        for call in calls:
            with pytest.raises(KeyContractError, match="forgotten"):
                call(["kept.txt"])
            assert call(["kept.txt", "forgotten.txt"]) == ["kept.txt", "forgotten.txt"]


def test_a_local_call_has_keys_of_its_own(tmp_path):
    @udf
    def inner():
        run.write("inner.txt").write_text("x")
        return "inner.txt"

    @udf
    def outer():
        inner()
        run.write("outer.txt").write_text("x")
        return ["outer.txt"]

    with scope("s", root=tmp_path):
        assert outer() == ["outer.txt"]


def test_methods():
    class Model:
        k = 4

        @udf
        def predict(self, x):
            return self.k * x

        @staticmethod
        @udf
        def static(x):
            return x

        @classmethod
        def made(cls):
            return cls()

    assert Model().predict(2) == 8
    assert Model.predict(Model(), 2) == 8
    assert Model.static(3) == 3
    with pytest.raises(TypeError, match="above @udf"):
        udf(staticmethod(len))
    with pytest.raises(TypeError, match="queue='gpu'"):
        udf("gpu")
    with pytest.raises(TypeError, match="not callable"):
        udf(3)


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"timeout": 0}, {"transport": "x"}, {"queue": ""}, {"name": "a\nb"}]
)
def test_an_impossible_option_is_refused_at_the_decoration(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        udf(**bad)


@udf(queue="somewhere", retries=2)
def at_module_level(x):
    return x + 1


def test_pickles_by_reference_and_by_value():
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    cloudpickle = pytest.importorskip("cloudpickle")

    @udf(queue="elsewhere", retries=2)
    def local_one(x):
        return local_one.fn(x - 1) if x else "end"

    copy = pickle.loads(cloudpickle.dumps(local_one))
    assert (copy.queue, copy.options.retries, copy.local(2)) == ("elsewhere", 2, "end")


SCRIPT = """
import multiprocessing, pickle, sys
from lakeshore import udf

@udf(queue="elsewhere")
def half(x):
    return x / 2

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(half.local, [8]), pool.apply(type(half).local, (half, 6)))
    import cloudpickle
    sys.stdout.flush()
    sys.stdout.buffer.write(cloudpickle.dumps(half).hex().encode())
"""


def test_a_scripts_udf_pickles_for_its_children_and_for_strangers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown, blob = done.stdout.splitlines()
    assert shown == "[4.0] 3.0"
    assert pickle.loads(bytes.fromhex(blob)).local(3) == 1.5


def test_a_local_call_costs_microseconds():
    noop = udf(lambda: None)
    assert min(timeit.repeat(noop, number=2000, repeat=5)) / 2000 < 50e-6


# ---- submits


def test_submit_stores_nothing_that_does_not_fit(q):
    f = udf(queue=q)(lambda x: x)
    for bad, error in (
        (lambda: f.submit(), TypeError),
        (lambda: f.submit(1, 2), TypeError),
        (lambda: f.submit(1, _prority=3), TypeError),
        (lambda: f.submit(1, _retries=-1), ValueError),
        (lambda: f.submit(1, _priority="high"), ValueError),
        (lambda: list(f.map([1], _key="k")), TypeError),
        (lambda: f.map([1], y=2), TypeError),
        (lambda: f.map([1], _max_in_flight=0), ValueError),
        (lambda: udf(lambda: 1).submit(), ValueError),
    ):
        with pytest.raises(error):
            bad()
    assert q.count() == 0


def test_submit_options_reach_row_and_envelope(q):
    f = udf(queue="other", retries=1, name="base")(lambda x: x)
    inv = f.submit(1, _queue=q, _key="k", _priority=2.0, _parent="p", _retries=5, _timeout=9.0, _backoff=0.1)
    assert f.submit(1, _queue=q, _key="k") == inv
    row = q.status(inv)
    assert (row["queue"], row["key"], row["priority"], row["parent"]) == ("gpu", "k", 2.0, "p")
    from lakeshore import wire

    cfg = wire.Envelope.from_bytes(q.plane.envelope(inv)).cfg
    assert cfg == {"retries": 5, "timeout": 9.0, "backoff": 0.1, "name": "base"}


def test_submit_by_queue_name_and_plane(plane):
    f = udf(queue="gpu")(lambda x: x + 1)
    inv = f.submit(1, _dispatch=plane)
    assert plane.get(inv)["queue"] == "gpu"
    assert plane.get(f.submit(1, _dispatch=plane, _queue="cpu"))["queue"] == "cpu"


def test_a_bound_udf_waits_for_the_worker_in_its_own_shape(q):
    @udf(queue=q)
    def plain(x):
        return [x, run.invocation_id is not None]

    @udf(queue=q)
    def generator(n):
        yield from range(n)

    @udf(queue=q)
    async def coroutine(x):
        return x + 1

    @udf(queue=q)
    async def agen(n):
        for i in range(n):
            yield i

    async def asynchronous():
        return await coroutine(1), await coroutine.remote(2), [v async for v in agen(2)]

    with q.worker(poll=0.01):
        assert plain(3) == [3, True]
        assert list(generator(3)) == [0, 1, 2]
        assert asyncio.run(asynchronous()) == (2, 3, [0, 1])
    assert plain.local(3) == [3, False]


def test_a_bound_udf_in_a_job_runs_there(q):
    @udf(queue="nobody")
    def far(x):
        return [x, run.invocation_id]

    inv = q.submit(thunk(lambda: far(1)))
    drain(q)
    assert q.result(inv) == [1, inv]


def test_the_job_of_a_bound_udf_never_submits_itself(q):
    @udf(queue=q)
    def once(x):
        return x + 1

    inv = once.submit(1)
    assert drain(q) == 1
    assert q.result(inv) == 2


def test_local_and_remote_fail_with_the_same_words(q, tmp_path):
    @udf(queue=q)
    def body():
        from lakeshore import run

        run.write("forgotten.txt").write_text("x")

    with scope("", root=tmp_path), pytest.raises(KeyContractError) as here:
        body.local()
    inv = body.submit()
    run_worker(q, once=True, retries=0, root=tmp_path)
    with pytest.raises(InvocationFailed) as there:
        q.result(inv)
    assert (there.value.type, there.value.message) == ("KeyContractError", str(here.value))


# ---- map


def test_map_submits_all_in_one_go_and_keeps_the_order(q):
    results = udf(queue=q)(lambda x: x * x).map(range(20))
    assert q.count() == 20
    drain(q)
    assert list(results) == [x * x for x in range(20)]


def test_map_as_they_finish(q):
    def work(x):
        import time

        time.sleep(0.05 if x == 0 else 0)
        return x

    with q.worker(poll=0.01, concurrency=2):
        assert sorted(udf(queue=q)(work).map(range(6), _ordered=False)) == list(range(6))


@pytest.mark.parametrize("ordered", [True, False])
def test_map_holds_to_its_number_in_flight(q, ordered):
    results = udf(queue=q)(lambda x: x).map(iter(range(7)), _max_in_flight=2, _ordered=ordered)
    taken, most = [], q.count()
    while True:
        most = max(most, q.count())
        drain(q)
        try:
            taken.append(next(results))
        except StopIteration:
            break
    assert sorted(taken) == list(range(7))
    assert most <= 2


def test_map_raises_in_the_turn_of_what_failed(q):
    results = udf(queue=q)(lambda x: 1 / x).map([1, 0, 2])
    drain(q)
    assert next(results) == 1.0
    with pytest.raises(InvocationFailed, match="ZeroDivisionError"):
        next(results)


@pytest.mark.parametrize("ordered", [True, False])
def test_map_goes_on_after_a_failure_and_knows_its_ids(q, ordered):
    results = udf(queue=q)(lambda x: 1 / x).map([1, 0, 2], _ordered=ordered)
    assert [q.status(inv)["state"] for inv in results.ids] == ["queued"] * 3
    drain(q)
    got = []
    while True:
        try:
            got.append(next(results))
        except InvocationFailed as error:
            got.append(error.id)
        except StopIteration:
            break
    assert sorted(got, key=str) == sorted([1.0, results.ids[1], 0.5], key=str)
    assert list(results) == []


@pytest.mark.parametrize("ordered", [True, False])
def test_map_gives_errors_in_place_where_asked_to(q, ordered):
    results = udf(queue=q)(lambda x: 1 / x).map([1, 0, 2], _ordered=ordered, _return_exceptions=True)
    drain(q)
    first, error, last = sorted(results, key=lambda got: got if isinstance(got, float) else 0.7)[::-1]
    assert (first, last, error.type, error.id) == (1.0, 0.5, "ZeroDivisionError", results.ids[1])


def test_map_gives_a_cancelled_and_a_deleted_job_in_place(q):
    results = udf(queue=q)(lambda x: x).map(range(3), _return_exceptions=True)
    q.cancel(results.ids[0])
    q.plane.prune(older_than=0, states={"cancelled"})
    q.cancel(results.ids[1])
    drain(q)
    gone, cancelled, two = results
    assert (type(gone), type(cancelled), two) == (UnknownInvocation, InvocationCancelled, 2)


def test_map_loses_no_result_to_items_that_break(q):
    def items():
        yield 1
        yield 2
        raise OSError("the file ended")

    results = udf(queue=q)(lambda x: x).map(items(), _max_in_flight=2)
    drain(q)
    assert next(results) == 1
    with pytest.raises(OSError, match="the file ended"):
        next(results)
    assert list(results) == [2]


def test_map_interrupted_takes_up_where_it_was(q, monkeypatch):
    results = udf(queue=q)(lambda x: x).map([5])
    drain(q)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(q, "result", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt()))
        next(results)
    assert next(results) == 5
    assert "0 of them not taken" in repr(results)


def test_map_of_nothing(q):
    assert list(udf(queue=q)(lambda x: x).map([])) == []
