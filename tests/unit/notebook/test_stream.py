"""Panels without a front end: text at once, waits that end, orders that are obeyed, no thread left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.errors import Detached, PlaneUnavailable, UnknownInvocation, WaitTimeout
from lakeshore.notebook import stream
from lakeshore.notebook.stream import Panel, show_group, show_job, show_queue, show_stream
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_ui import TICK_SECONDS, Feed, Ticker


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


@pytest.fixture
def job(plane: Dispatch) -> str:
    return SyncQueue("gpu", dispatch=plane).submit({"x": 1})


def finish(plane: Dispatch, id: str, *values: Any) -> None:
    plane.claim("gpu", "w")
    plane.journal_extend(id, [frame for value in values for frame in wire.value_frames(value)])
    plane.ack(id, "w", frame=wire.end_frame(0))


def panel_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lakeshore-panels"]


class Recorder:
    """A surface that keeps what it was shown; the test is its front end."""

    live = True

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.records: list[str] = []
        self.labels: list[tuple[str, str]] = []
        self.threads: set[str] = set()
        self.click: Callable[[str], None] = lambda gesture: None

    def open(self, feed: Feed, on_gesture: Callable[[str], None]) -> None:
        self.click = on_gesture

    def update(self, feed: Feed) -> int:
        self.threads.add(threading.current_thread().name)
        self.drawn.append(feed.html())
        return 1

    def label(self, gesture: str, text: str) -> None:
        self.labels.append((gesture, text))

    def settle(self, feed: Feed) -> None:
        self.threads.add(threading.current_thread().name)
        self.records.append(feed.text())


def live(plane: Dispatch, id: str) -> tuple[Panel, Recorder]:
    recorder = Recorder()
    return Panel(JobFeed(plane, id, name="train"), recorder).show(), recorder


def until(condition: Callable[[], Any], timeout: float = 10.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_a_finished_stream_is_its_record_at_once(
    plane: Dispatch, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(plane, job, "alpha-1", "beta-2", "gamma-3")
    reader = SyncQueue("gpu", dispatch=plane).stream(job)
    show_stream(reader)
    out = capsys.readouterr().out
    assert job in out and "succeeded" in out and "gamma-3" in out
    assert list(reader) == ["alpha-1", "beta-2", "gamma-3"], "the caller's iterator is not consumed"
    assert panel_threads() == []


def test_a_stream_shows_itself(plane: Dispatch, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    finish(plane, job, "value")
    q = SyncQueue("gpu", dispatch=plane)
    q.stream(job)._ipython_display_()
    q._ipython_display_()
    assert "value" in capsys.readouterr().out
    show_queue(q)
    assert "gpu · 1 succeeded" in capsys.readouterr().out


def test_without_a_front_end_a_live_job_is_text_and_no_thread(
    plane: Dispatch, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = show_job(plane, job, name="train")
    out = capsys.readouterr().out
    assert "queued" in out and "%lakeshore worker start gpu" in out
    assert panel_threads() == [] and panel.state == "queued" and panel.id == job
    finish(plane, job, "value-7")
    assert panel.wait(5) == "succeeded"
    assert "value-7" in capsys.readouterr().out


def test_an_unknown_id_is_refused(plane: Dispatch) -> None:
    with pytest.raises(UnknownInvocation, match="01NOSUCHID"):
        show_job(plane, "01NOSUCHID")
    with pytest.raises(UnknownInvocation, match="01NOSUCHID"):
        show_group(plane, ["01NOSUCHID"])


def test_a_live_panel_follows_from_the_one_thread(plane: Dispatch, job: str) -> None:
    panel, recorder = live(plane, job)
    plane.claim("gpu", "w")
    plane.journal_extend(job, wire.value_frames({"loss": 0.5}))
    until(lambda: any("0.5" in html for html in recorder.drawn))
    assert panel.state == "running"
    plane.ack(job, "w", frame=wire.end_frame(0))
    assert panel.wait(5) == "succeeded"
    assert "loss=0.5" in recorder.records[-1] and len(recorder.records) == 1
    assert recorder.threads == {"lakeshore-panels"}
    stream.shutdown()
    assert panel_threads() == []


def test_a_flood_is_drawn_at_the_pace_of_the_ticks(plane: Dispatch, job: str) -> None:
    panel, recorder = live(plane, job)
    plane.claim("gpu", "w")
    began = time.monotonic()
    for n in range(100):
        frames = [wire.value_frames({"n": n * 100 + k})[0] for k in range(100)]
        plane.journal_extend(job, frames)
    plane.ack(job, "w", frame=wire.end_frame(0))
    assert panel.wait(10) == "succeeded"
    spent = time.monotonic() - began
    assert len(recorder.drawn) <= spent / TICK_SECONDS + 3
    assert "10,000 frames" in recorder.records[-1] and "n=9999" in recorder.records[-1]


def test_an_idle_panel_is_drawn_by_its_clock_only(plane: Dispatch, job: str) -> None:
    _, recorder = live(plane, job)
    until(lambda: recorder.drawn)
    time.sleep(1.5)
    assert len(recorder.drawn) <= 4
    stream.shutdown()


def test_orders_are_obeyed_by_the_ui_thread(plane: Dispatch, job: str) -> None:
    panel, recorder = live(plane, job)
    recorder.click("requeue")
    until(lambda: recorder.labels == [("requeue", "Cancel and run again?")])
    assert panel.state == "queued"
    plane.claim("gpu", "w")
    until(lambda: panel.state == "running")
    recorder.click("requeue")
    until(lambda: panel.state == "queued")
    recorder.click("cancel")
    assert panel.wait(5) == "cancelled"
    row = plane.get(job)
    assert row is not None and row["state"] == "cancelled"
    assert f"%lakeshore requeue {job}" in recorder.records[-1]


@pytest.mark.parametrize("order", ["freeze", "detach"])
def test_a_panel_stops_following_and_the_job_goes_on(plane: Dispatch, job: str, order: str) -> None:
    panel, recorder = live(plane, job)
    getattr(panel, order)()
    until(lambda: recorder.records)
    assert f"%lakeshore stream {job}" in recorder.records[-1]
    with pytest.raises(WaitTimeout):
        panel.wait(0.2)
    finish(plane, job, "later")
    drawn = len(recorder.drawn)
    time.sleep(0.3)
    assert len(recorder.drawn) == drawn and len(recorder.records) == 1
    assert panel.state == "succeeded" and panel.wait(5) == "succeeded", "the handle still knows"


def test_shutdown_freezes_and_ends_the_thread(plane: Dispatch, job: str) -> None:
    panels = [live(plane, job) for _ in range(3)]
    began = time.monotonic()
    stream.shutdown()
    assert time.monotonic() - began < 1.0
    assert panel_threads() == []
    assert all(recorder.records and "frozen" in recorder.records[0] for _, recorder in panels)
    panel, recorder = live(plane, job)
    plane.cancel(job)
    assert panel.wait(5) == "cancelled", "a later panel starts the thread again"


def test_a_plane_that_cannot_be_used_is_told_of_and_asked_again(
    plane: Dispatch, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = JobFeed(plane, job)
    recorder = Recorder()
    panel = Panel(feed, recorder).show()
    poll, broken = feed.poll, threading.Event()
    broken.set()

    def flaky() -> bool:
        if broken.is_set():
            raise PlaneUnavailable("database is locked by 'x'; try again")
        return poll()

    monkeypatch.setattr(feed, "poll", flaky)
    until(lambda: any("locked by" in html for html in recorder.drawn))
    broken.clear()
    plane.cancel(job)
    assert panel.wait(5) == "cancelled"
    assert "locked by" not in recorder.records[-1]


def test_one_broken_panel_leaves_the_others_alone(
    plane: Dispatch, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = JobFeed(plane, job)
    recorder = Recorder()
    broken = Panel(feed, recorder).show()
    panel, _ = live(plane, job)

    def raises() -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(feed, "poll", raises)
    until(lambda: recorder.records)
    assert "the panel stopped: RuntimeError: a bug" in recorder.records[0]
    plane.cancel(job)
    assert panel.wait(5) == "cancelled"
    assert broken.over is False or recorder.records


def test_a_wait_in_vain_ends_in_time(plane: Dispatch, job: str) -> None:
    panel, _ = live(plane, job)
    with pytest.raises(WaitTimeout, match=f"%lakeshore cancel {job}"):
        panel.wait(0.2)
    with pytest.raises(WaitTimeout):
        show_job(plane, job).wait(0.2)


@pytest.mark.parametrize("show", [lambda plane, id: live(plane, id)[0], show_job], ids=["live", "text"])
@pytest.mark.parametrize("on_interrupt", ["detach", "cancel"])
def test_an_interrupt_ends_a_wait_at_once(
    plane: Dispatch, job: str, show: Callable[[Dispatch, str], Panel], on_interrupt: Any
) -> None:
    panel = show(plane, job)
    interrupted: list[float] = []

    def interrupt() -> None:
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(Detached) as caught:
        panel.wait(on_interrupt=on_interrupt)
    assert time.monotonic() - interrupted[0] < 0.5
    timer.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    row = plane.get(job)
    assert row is not None
    if on_interrupt == "detach":
        assert str(caught.value) == f"detached: {job} still runs; lakeshore cancel {job}"
        assert row["state"] == "queued"
    else:
        assert row["state"] == "cancelled" and "cancelled" in str(caught.value)


def test_messages_of_many_panels_stretch_the_tick() -> None:
    class Busy:
        def __init__(self) -> None:
            self.ticks = 0
            self.over = False

        def tick(self, now: float) -> int:
            self.ticks += 1
            return 10

        def close(self) -> None:
            self.over = True

    ticker = Ticker()
    panels = [Busy() for _ in range(10)]
    for panel in panels:
        ticker.add(panel)
    before = sum(panel.ticks for panel in panels)
    time.sleep(1.5)
    sent = 10 * (sum(panel.ticks for panel in panels) - before)
    ticker.shutdown()
    assert 100 <= sent <= 450
    assert all(panel.over for panel in panels)


class Far:
    """A plane that is elsewhere; it answers when `open` is set, and says which threads asked."""

    def __init__(self, plane: Dispatch) -> None:
        self._plane, self.open, self.threads = plane, threading.Event(), set[str]()
        self.open.set()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._plane, name)

        def ask(*args: Any, **options: Any) -> Any:
            self.threads.add(threading.current_thread().name)
            assert self.open.wait(20)
            return verb(*args, **options)

        return ask


def test_a_plane_elsewhere_is_asked_by_one_thread_and_holds_no_other_panel_up(plane: Dispatch) -> None:
    q, far = SyncQueue("gpu", dispatch=plane), Far(plane)
    ids = [q.submit(n) for n in range(4)]
    shown = [live(far, id) for id in ids[:3]]  # type: ignore[arg-type]
    near, recorder = live(plane, ids[3])
    far.threads.clear()
    far.open.clear()
    until(lambda: far.threads)
    plane.cancel(ids[3])
    assert near.wait(5) == "cancelled", "a plane that does not answer held up the panel of another"
    shown[0][1].click("cancel")
    shown[1][0].freeze()
    until(lambda: shown[1][1].records)
    far.open.set()
    assert shown[0][0].wait(5) == "cancelled"
    plane.cancel(ids[2])
    assert shown[2][0].wait(5) == "cancelled"
    assert len(far.threads) == 1 and not far.threads & {"lakeshore-panels", "MainThread"}
    assert all(each.threads == {"lakeshore-panels"} for _, each in shown)


@pytest.fixture(autouse=True)
def no_panel_left() -> Iterator[None]:
    yield
    stream.shutdown()
    assert panel_threads() == []
