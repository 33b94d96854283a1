"""What a panel reads of packed results and envelopes, and that it hands it over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, thunk, wire
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_packed import CALL_BYTES, RESULT_BYTES, call_shown, result_shown
from lakeshore.notebook.render_values import Shown
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed, queue_state


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


def finish(plane: Dispatch, id: str, result: Any) -> None:
    claimed = plane.claim("gpu", "host-1")
    assert claimed is not None and claimed.id == id
    plane.ack(id, "host-1", fence=claimed.fence, result=wire.pack(result), frame=wire.end_frame(0))


def envelope_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    return wire.Envelope(
        id="01KPZ4T9Q0V7M2D8R5XW3YHBNC",
        fn={"kind": "ref", "module": fn.__module__, "qualname": fn.__qualname__},
        args=wire.pack(list(args)),
        kwargs=wire.pack(kwargs),
    ).to_bytes()


def train(*args: Any, **kwargs: Any) -> None:
    """Something to call."""


@pytest.mark.parametrize(
    ("value", "text"), [(2, "2"), (0, "0"), ("", ""), ("done", "done"), ([1, 2], "[1, 2]")]
)
def test_a_small_result_is_shown(value: object, text: str) -> None:
    assert result_shown(wire.pack(value)) == Shown(text)


def test_a_table_as_result_is_shown_as_values_are() -> None:
    pandas = pytest.importorskip("pandas")
    shown = result_shown(wire.pack(pandas.DataFrame({"loss": [0.5, 0.25]})))
    assert isinstance(shown, Figure) and "0.25" in shown.html


@pytest.mark.parametrize("data", [None, b"", wire.pack(None), b"\xc1", wire.pack([1, 2, 3])[:-1]])
def test_no_result_and_a_broken_one_are_left_out(data: bytes | None) -> None:
    assert result_shown(data) is None


def test_a_large_result_is_never_unpacked() -> None:
    shown = result_shown(b"\xc1" * (RESULT_BYTES + 1))
    assert isinstance(shown, Shown) and "1.0 MiB" in shown.text


def test_an_envelope_reads_as_its_call() -> None:
    assert call_shown(envelope_of(train, 0.1, rounds=40)) == "train(0.1, rounds=40)"
    assert call_shown(envelope_of(train)) == "train"
    assert len(call_shown(envelope_of(train, "x" * 500))) < 60
    assert call_shown(envelope_of(train, "x" * CALL_BYTES)) == "train(\u2026)"
    assert call_shown(wire.pack({"x": 1})) == call_shown(None) == ""


def test_a_panel_shows_the_result(plane: Dispatch) -> None:
    id = SyncQueue("gpu", dispatch=plane).submit({"x": 1})
    feed = JobFeed(plane, id)
    feed.poll()
    assert feed.panel.result is None
    finish(plane, id, 2)
    assert feed.poll() and feed.ended
    assert feed.panel.result == Shown("2")
    assert "result 2" in feed.text() and "result 2" in feed.line() and "<b>2</b>" in feed.record()


def test_a_result_of_none_is_left_out(plane: Dispatch) -> None:
    id = SyncQueue("gpu", dispatch=plane).submit({"x": 1})
    finish(plane, id, None)
    feed = JobFeed(plane, id)
    feed.poll()
    assert feed.panel.result is None and "result" not in feed.text()


def test_jobs_beside_one_another_are_told_apart_by_their_arguments(plane: Dispatch) -> None:
    q = SyncQueue("gpu", dispatch=plane)
    ids = [q.submit(thunk(divmod, n, 2)) for n in range(3)]
    ids.append(q.submit({"a plain": "payload"}))
    feed = GroupFeed(plane, ids, name="grid")
    assert feed.poll()
    assert [feed.panel.names[id] for id in ids] == ["divmod(0, 2)", "divmod(1, 2)", "divmod(2, 2)", ""]
    assert "divmod(1, 2)" in feed.html() and "divmod(1, 2)" in feed.text()
    assert queue_state(plane, "gpu", 0.0).names == feed.panel.names
