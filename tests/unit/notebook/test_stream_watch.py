"""Panels of a control plane: looked at together, and as true as each for itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import status
from unit.planes_http.ours import OURS, Ours

from lakeshore import HttpDispatch, PlaneUnavailable, SyncQueue, wire
from lakeshore.notebook import stream_watch
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed
from lakeshore.notebook.stream_watch import Watch, looks_at


@pytest.fixture
def ours() -> Iterator[Ours]:
    with Ours() as server:
        assert isinstance(server, Ours)
        yield server


@pytest.fixture
def plane(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpDispatch]:
    monkeypatch.setattr(stream_watch, "FORGET_SECONDS", 1.0)
    monkeypatch.setattr(stream_watch, "HOLD_SECONDS", 0.2)
    with closing(HttpDispatch(ours.url, timeout=5)) as made:
        yield made
        watch = looks_at(made)
        assert isinstance(watch, Watch)
        until(lambda: watch.idle)


def until(condition: Callable[[], object], poll: Callable[[], object] = lambda: None) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        poll()
        time.sleep(0.01)


def jobs(ours: Ours, n: int) -> list[str]:
    q = SyncQueue("gpu", dispatch=ours.plane)
    ids = [q.submit({"x": k}) for k in range(n)]
    assert len(ours.plane.claim_many("gpu", "w", n, lease=600)) == n
    return ids


def emit(ours: Ours, id: str, *values: Any, journal: str = "") -> None:
    frames = [frame for value in values for frame in wire.value_frames(value)]
    ours.plane.journal_extend(f"{id}{journal}", frames)


def polled(feeds: list[JobFeed]) -> Callable[[], object]:
    return lambda: [feed.poll() for feed in feeds if not feed.ended]


def test_many_panels_are_a_few_requests_and_each_shows_its_own(ours: Ours, plane: HttpDispatch) -> None:
    ids = jobs(ours, 12)
    feeds = [JobFeed(plane, id, name="x") for id in ids]
    poll = polled(feeds)
    looks = looks_at(plane)
    assert isinstance(looks, Watch)
    until(lambda: sum(each.live for each in looks._journals.values()) == 36, poll)
    ours.seen.clear()
    began = time.monotonic()
    for n in range(10):
        for k, id in enumerate(ids):
            emit(ours, id, {"job": k, "n": n})
            emit(ours, id, {"stream": "stdout", "text": f"line {n} of {k}\n"}, journal=".log")
        emit(ours, ids[0], {"done": n, "total": 10}, journal=".progress")
        poll()
        time.sleep(0.05)
    until(lambda: all(feed.panel.frames == 10 for feed in feeds), poll)
    others = [each.target for each in ours.seen if not each.path.endswith("/journals/read")]
    assert others == []
    assert len(ours.seen) <= 4 + 12 * (time.monotonic() - began)
    until(lambda: feeds[0].panel.progress is not None and feeds[0].panel.progress.done == 9, poll)
    for k, feed in enumerate(feeds):
        until(lambda feed=feed: len(feed.panel.log) == 10, poll)
        assert feed.panel.tail[-1].text == f"job={k}  n=9"
        assert feed.panel.gap == 0
    for id in ids:
        ours.plane.ack(id, "w", result=wire.pack("done"), frame=wire.end_frame(10))
    until(lambda: all(feed.ended for feed in feeds), poll)
    assert {feed.state for feed in feeds} == {"succeeded"}
    assert all(feed.panel.result for feed in feeds)


def test_two_panels_of_one_job_and_a_late_one_show_the_same(ours: Ours, plane: HttpDispatch) -> None:
    (id,) = jobs(ours, 1)
    feeds = [JobFeed(plane, id, name="x") for _ in range(2)]
    for n in range(20):
        emit(ours, id, n)
        feeds[0].poll()
        if n % 3 == 0:
            feeds[1].poll()
        time.sleep(0.03)
    feeds.append(JobFeed(plane, id, name="x"))
    until(lambda: all(feed.panel.frames == 20 for feed in feeds), polled(feeds))
    assert len({tuple(shown.text for shown in feed.panel.tail) for feed in feeds}) == 1


def test_another_attempt_and_a_requeue_are_seen(ours: Ours, plane: HttpDispatch) -> None:
    (id,) = jobs(ours, 1)
    feed = JobFeed(plane, id, name="x")
    poll = polled([feed])
    emit(ours, id, 1, 2)
    until(lambda: feed.panel.frames == 2, poll)
    ours.plane.nack(id, "w", error="E: x")
    ours.plane.claim("gpu", "w")
    emit(ours, id, 3)
    until(lambda: feed.panel.attempt == 2 and feed.panel.frames == 1, poll)
    feed.requeue()
    until(lambda: feed.state == "queued", poll)
    ours.plane.claim("gpu", "w2")
    emit(ours, id, 4)
    until(lambda: feed.panel.worker == "w2" and feed.panel.frames == 1, poll)
    feed.cancel()
    until(lambda: feed.ended, poll)
    assert feed.state == "cancelled"


def test_a_fan_out_is_looked_at_together(ours: Ours, plane: HttpDispatch) -> None:
    ids = jobs(ours, 30)
    group = GroupFeed(plane, ids)
    until(
        lambda: len(group.panel.rows) == 30 and group.state == "running",
        group.poll,
    )
    for id in ids:
        ours.plane.ack(id, "w")
    until(lambda: group.ended, group.poll)
    assert group.state == "succeeded"


def test_an_outage_is_told_and_over(ours: Ours, plane: HttpDispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = jobs(ours, 1)
    looks = looks_at(plane)
    assert isinstance(looks, Watch)
    monkeypatch.setattr(looks, "_quick", plane.with_timeout(0.2))
    feed = JobFeed(plane, id, name="x")
    poll = polled([feed])
    until(lambda: not looks.idle, poll)
    time.sleep(0.3)
    ours.script["read"] = [status(503)] * 8
    with pytest.raises(PlaneUnavailable, match="503"):
        until(lambda: False, poll)
    emit(ours, id, 1)

    def try_on() -> None:
        try:
            feed.poll()
        except PlaneUnavailable:
            pass

    until(lambda: feed.panel.frames == 1, try_on)


def test_where_there_is_no_such_route_each_looks_for_itself(ours: Ours, plane: HttpDispatch) -> None:
    ours.script["read"] = [
        status(404, b"", **{name.replace("-", "_"): value for name, value in OURS.items()})
    ] * 9
    (id,) = jobs(ours, 1)
    feed = JobFeed(plane, id, name="x")
    poll = polled([feed])
    looks = looks_at(plane)
    assert isinstance(looks, Watch)
    until(lambda: not looks.supported, poll)
    emit(ours, id, 1)
    until(lambda: feed.panel.frames == 1, poll)
    assert len(ours.posts("read")) == 1


def test_so_it_is_in_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as opened:
        field = opened.enter_context(Field())
        plane = opened.enter_context(closing(HttpDispatch(field.url, timeout=5)))
        looks = looks_at(plane)
        assert isinstance(looks, Watch)
        for _ in range(3):
            assert looks.get("a") is None
        until(lambda: not looks.supported)
        assert looks.get("a") is None
        assert field.posts("read") == []
