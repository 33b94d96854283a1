"""The run context in the threads and pools that a body starts."""

import ctypes
import os
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from lakeshore import run, udf
from lakeshore.context import job_context
from lakeshore.errors import JobCancelled
from lakeshore.functions import threads
from lakeshore.functions.body import run_body
from lakeshore.functions.threads import carrying

START, SUBMIT = threading.Thread.start, ThreadPoolExecutor.submit


def in_job(body, id="job"):
    with job_context(prefix=id, root="/", invocation_id=id):
        return run_body(body, (), {}, emit=lambda v: None)


def who():
    return run.invocation_id


def in_thread(cls=threading.Thread, *args):
    seen = []
    thread = cls(*args, target=None) if cls is threading.Thread else cls(*args)
    thread.run = lambda: seen.append(who())
    thread.start()
    thread.join()
    return seen[0]


class Sub(threading.Thread):
    def run(self):
        self.seen = who()

    def start(self):
        super().start()


def test_threads_pools_and_timers_have_the_context():
    def body():
        sub = Sub()
        sub.start(), sub.join()
        timer_saw = []
        timer = threading.Timer(0, lambda: timer_saw.append(who()))
        timer.start(), timer.join()
        with ThreadPoolExecutor(2) as pool, ThreadPool(1) as old_pool:
            return [sub.seen, *timer_saw, pool.submit(who).result(), *pool.map(lambda _: who(), "ab"),
                    old_pool.apply(who), in_thread()]  # fmt: skip

    assert in_job(body) == ["job"] * 7


def test_nested_threads_have_it_too():
    def body():
        seen = []

        def outer():
            inner = threading.Thread(target=lambda: seen.append(who()))
            inner.start(), inner.join()

        thread = threading.Thread(target=outer)
        thread.start(), thread.join()
        return seen

    assert in_job(body) == ["job"]


def test_a_shared_pool_keeps_no_jobs_context():
    with ThreadPoolExecutor(1) as pool:
        assert in_job(lambda: pool.submit(who).result(), "one") == "one"
        assert in_job(lambda: pool.submit(who).result(), "two") == "two"
        assert pool.submit(who).result() is None


def test_patches_stand_while_a_body_runs_and_no_longer():
    def body():
        assert threading.Thread.start is not START
        assert ThreadPoolExecutor.submit is not SUBMIT

    in_job(body)
    assert threading.Thread.start is START
    assert ThreadPoolExecutor.submit is SUBMIT
    try:
        in_job(lambda: 1 / 0)
    except ZeroDivisionError:
        pass
    assert threading.Thread.start is START


def test_bodies_that_overlap_share_the_patches():
    first, second = threading.Event(), threading.Event()

    def waits(own, other):
        own.set()
        assert other.wait(5)
        return in_thread()

    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(in_job, lambda: waits(first, second), "a")
        b = pool.submit(in_job, lambda: waits(second, first), "b")
        assert (a.result(5), b.result(5)) == ("a", "b")
    assert threading.Thread.start is START


def test_other_threads_are_left_alone_while_a_body_runs():
    with carrying():
        assert in_thread() is None


def test_who_patches_over_ours_keeps_a_chain_that_only_passes_on():
    def body():
        ours = threading.Thread.start

        def theirs(thread):
            ours(thread)

        threading.Thread.start = theirs
        return theirs

    try:
        theirs = in_job(body)
        assert threading.Thread.start is theirs
        assert in_thread() is None
        assert in_job(in_thread) == "job"
        assert threading.Thread.start is theirs
    finally:
        threading.Thread.start = START


def test_a_local_udf_carries_too():
    @udf
    def body():
        with ThreadPoolExecutor(1) as pool:
            future: Future = pool.submit(lambda: run.prefix)
            return future.result()

    with job_context(prefix="p", root="/", invocation_id=None):
        assert body() == "p"


def test_a_body_whose_end_was_cut_off_counts_no_longer_than_its_frame():
    def cut_off():
        carrying().__enter__()  # an exception from outside came before the way out
        assert threading.Thread.start is not START

    cut_off()
    assert in_thread() is None
    assert in_job(in_thread) == "job"
    assert threading.Thread.start is START
    assert ThreadPoolExecutor.submit is SUBMIT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_from_outside_at_any_moment_leaves_no_body_behind():
    stop_at = ctypes.pythonapi.PyThreadState_SetAsyncExc
    going, stopped, ended = threading.Semaphore(0), threading.Semaphore(0), False

    def body_after_body():
        going.release()
        while not ended:
            with carrying():
                pass

    def bodies():
        while not ended:
            try:
                body_after_body()
            except JobCancelled:
                stopped.release()

    def stop() -> bool:
        # a finaliser may swallow it, so a worker says it again until the body has stopped
        for _ in range(50):
            stop_at(ctypes.c_ulong(thread.ident), ctypes.py_object(JobCancelled))
            if stopped.acquire(timeout=0.1):
                return True
        return False

    thread = threading.Thread(target=bodies, daemon=True)
    thread.start()
    try:
        for _ in range(200):
            assert going.acquire(timeout=5)
            assert stop()
    finally:
        ended = True
    thread.join(5)
    assert in_job(in_thread) == "job"  # the next body carries
    assert threading.Thread.start is START
    assert ThreadPoolExecutor.submit is SUBMIT


def test_a_finaliser_within_these_lines_does_not_hang():
    patches = threads._patches
    with patches._lock:
        patches._holder = threading.get_ident()
        with carrying():  # what the garbage collector may do in any line
            pass
    assert in_job(in_thread) == "job"
    assert threading.Thread.start is START


def test_a_fork_while_another_thread_enters_does_not_hang():
    with threads._patches._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            try:
                with carrying():
                    os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
