"""A server whose store `lakeshore migrate` closed says so, instead of showing what was."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakeshore import HttpDispatch, PlaneUnavailable
from lakeshore.planes import moving
from lakeshore.planes.moving_side import Gate
from lakeshore.planes.sqlite_moving import SqliteSide
from lakeshore.server import probes, serving

NS = "/v1/namespaces/default"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(serving, "_MOVED_SECONDS", 0.05)


def noted(served, *, moved: bool) -> None:
    end = time.monotonic() + 10
    while (served.app.serving.moved is not None) is not moved and time.monotonic() < end:
        time.sleep(0.01)
    assert (served.app.serving.moved is not None) is moved


def test_whoever_asks_is_told_where_it_is(guarded, tmp_path):
    producer = guarded.token("producer")
    guarded.submit("a", token=producer)
    wait = {"invocation_id": "a", "timeout_s": 25}
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as sides:
        held = threads.submit(guarded.post, f"{NS}/producer/await", wait, token=producer)
        end = time.monotonic() + 10
        while not guarded.app.serving.hearing.waiting and time.monotonic() < end:
            time.sleep(0.01)
        assert guarded.get("/readyz").status_code == 200
        here, there = SqliteSide(guarded.plane.path), SqliteSide(tmp_path / "b.sqlite", is_target=True)
        sides.callback(here.close)
        sides.callback(there.close)
        moving.move(here, there)
        noted(guarded, moved=True)
        assert held.result(timeout=10).status_code == 200  # nobody waits for what will not come
    for answer in (
        guarded.get(f"{NS}/queues", token=producer),
        guarded.submit("b", token=producer),
        guarded.post(f"{NS}/producer/await", wait, token=producer),
    ):
        assert (answer.status_code, answer.told["error"]["code"]) == (503, "plane_moved")
        assert f"was moved to {tmp_path / 'b.sqlite'}" in answer.told["error"]["message"]
        assert "retry-after" not in answer.headers
    with contextlib.closing(HttpDispatch(guarded.url, token=producer, timeout=30)) as plane:
        for verb in (
            plane.queues,
            lambda: plane.submit("gpu", b"e", id="c"),
            lambda: plane.result("a", timeout=30),
        ):
            began = time.monotonic()
            with pytest.raises(PlaneUnavailable, match=r"was moved to .* Go on there"):
                verb()
            assert time.monotonic() - began < 5
    ready = guarded.get("/readyz")
    assert ready.status_code == 503
    assert str(tmp_path) not in ready.text  # whoever has no token is not told where
    assert guarded.get(f"{NS}/queues").status_code == 401
    assert guarded.get("/healthz").status_code == 200


def test_a_store_that_is_opened_again_is_served_again(served, monkeypatch):
    plane = type(served.app.serving.plane("default"))
    said = Gate("from", "elsewhere", None, time.time()).said
    with monkeypatch.context() as closed:
        closed.setattr(plane, "moved", lambda self: said)
        noted(served, moved=True)
        assert "is being filled" in served.get(f"{NS}/queues").text
    noted(served, moved=False)
    assert served.get("/readyz").status_code == 200
    assert served.submit().status_code == 200
    wait = served.post(f"{NS}/producer/await", {"invocation_id": "a", "timeout_s": 0.2})
    assert wait.status_code == 200
    assert served.plane.claim("gpu", "w") is not None


def test_a_probe_waits_a_moment_for_the_store_and_looks_once(served, monkeypatch):
    monkeypatch.setattr(probes, "PATIENCE", 0.1)
    looks: list[float] = []

    def slow(*_):
        looks.append(time.monotonic())
        time.sleep(1)

    monkeypatch.setattr(type(served.app.serving.plane("default")), "holder", slow)
    for _ in range(4):
        answer = served.get("/readyz")
        assert (answer.status_code, answer.told["error"]["code"]) == (503, "plane_unavailable")
    assert len(looks) == 1
