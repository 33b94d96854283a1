"""Ctrl-C in every kind of wait, in a real kernel: the cell ends at once and says what still runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lakeshore import Dispatch
from tests.notebook.conftest import Kernel

SECONDS = 0.5
JOB = """
import asyncio, time
from lakeshore import Queue, SyncQueue, run, thunk, udf
q, aq = SyncQueue("gpu"), Queue("gpu")

def silent():
    end = time.monotonic() + 60
    while time.monotonic() < end: time.sleep(0.02)
def silent_too(n): silent()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for all, whose own worker runs a job that says nothing for a minute."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    made = Kernel(home, tmp_path_factory.mktemp("work"))
    for cell in (
        "%load_ext lakeshore",
        JOB,
        "%lakeshore worker start gpu",
        "%lakeshore worker start other",
        "%%lakeshore submit gpu -q -o slow\nsilent()",
    ):
        assert made.run(cell).status == "ok"
    yield made
    made.run("%lakeshore cancel --queue gpu --all")
    made.close()


@pytest.fixture(scope="module")
def plane(kernel: Kernel) -> Iterator[Dispatch]:
    opened = Dispatch(kernel.home / "dispatch.sqlite")
    yield opened
    opened.close()


def rest() -> None:
    """Give a cell that has begun the time to get into its wait."""
    time.sleep(0.3)


@pytest.mark.parametrize(
    "cell",
    [
        "%%lakeshore submit gpu --wait\nsilent()",
        "%%lakeshore submit gpu --wait --text\nsilent()",
        "%%lakeshore submit gpu -q --wait 60\nsilent()",
        "%%lakeshore submit gpu --wait\n[silent() for _ in range(3)]",
        "%lakeshore wait slow",
        "%lakeshore result slow --timeout 60",
        "%lakeshore stream slow --wait",
    ],
)
def test_a_magic_lets_go_at_once_and_says_what_still_runs(kernel: Kernel, plane: Dispatch, cell: str) -> None:
    before = {row["id"] for row in plane.invocations(limit=100)}
    seconds, reply = kernel.interrupt(kernel.begin(cell), after=rest)
    assert (reply.status, reply.ename) == ("error", "Detached")
    assert seconds < SECONDS
    new = [row["id"] for row in plane.invocations(limit=100) if row["id"] not in before]
    for id in new or [kernel.value("slow")]:
        assert id in reply.text
        assert (plane.get(id) or {})["state"] in ("queued", "running")
    assert "still run" in reply.text
    assert "%lakeshore cancel" in reply.text
    for id in new:
        plane.cancel(id)
    the_next_is_clean(kernel)


@pytest.mark.parametrize(
    ("cell", "ename"),
    [
        ("for frame in q.stream(slow): pass", "Detached"),
        ("for frame in q.stream(slow, timeout=None).frames(): pass", "Detached"),
        ("for line in q.logs(slow): pass", "Detached"),
        ("async for frame in aq.stream(slow): pass", "CancelledError"),
        ("await aq.result(slow, timeout=None)", "CancelledError"),
        ("await aq.call(thunk(silent))", "CancelledError"),
        ("q.result(slow, timeout=None)", "Detached"),
        ("q.call(thunk(silent))", "Detached"),
        ("list(udf(silent_too).map([1, 2], _queue=q))", "Detached"),
        ("next(q.topic('none').listen(timeout=60))", "Detached"),
        ("with SyncQueue('none').working(wait=60) as job: pass", "KeyboardInterrupt"),
        ("async with Queue('none').working(wait=60) as job: pass", "CancelledError"),
    ],
)
def test_a_wait_of_the_library_ends_at_once_and_says_what_still_runs(
    kernel: Kernel, plane: Dispatch, cell: str, ename: str
) -> None:
    before = {row["id"] for row in plane.invocations(limit=100)}
    took, reply = kernel.interrupt(kernel.begin(cell), after=rest)
    assert (reply.status, reply.ename) == ("error", ename)
    assert took < SECONDS
    new = [row["id"] for row in plane.invocations(limit=100) if row["id"] not in before]
    if "none" not in cell:
        for id in new or [kernel.value("slow")]:
            assert id in reply.text
        assert "still run" in reply.text
        assert "%lakeshore cancel" in reply.text
        assert reply.text.count("\n") < 3
    elif "topic" in cell:
        assert "topic 'none' goes on; read on with since=-1" in reply.text
    for id in new:
        plane.cancel(id)
    assert (plane.get(kernel.value("slow")) or {})["state"] == "running"
    the_next_is_clean(kernel)


def the_next_is_clean(kernel: Kernel) -> None:
    """No lock stays held, no signal waits: a job goes through."""
    reply = kernel.run("%%lakeshore submit other -q -r value --wait 20\n21 * 2")
    assert reply.status == "ok", reply.text
    assert kernel.value("value") == 42


def test_on_interrupt_cancel(kernel: Kernel, plane: Dispatch) -> None:
    message = kernel.begin("%%lakeshore submit gpu --wait --on-interrupt cancel\nsilent()")
    _, reply = kernel.interrupt(message, after=rest)
    assert (reply.status, reply.ename) == ("error", "Detached")
    id = kernel.value("_lakeshore")
    assert f"cancelled: {id}" in reply.text
    assert (plane.get(id) or {})["state"] == "cancelled"


def test_a_run_all_stops_there(kernel: Kernel) -> None:
    first = kernel.begin("%lakeshore wait slow")
    later = kernel.client.execute("ran = True", allow_stdin=False)
    kernel.interrupt(first, after=rest)
    while (answer := kernel.client.get_shell_msg(timeout=20))["parent_header"].get("msg_id") != later:
        pass
    assert answer["content"]["status"] in ("aborted", "error")
    assert kernel.value("'ran' in globals()") is False
