"""One held request for many journals and rows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgpack
import pytest

from lakeshore import Submission
from lakeshore.server import looking

LOOK = "/v1/namespaces/default/journals/read"


def look(
    served: Any, journals: Any = (), rows: Any = (), hold: float = 0.0, **options: Any
) -> dict[str, Any]:
    body = {"journals": list(journals), "rows": list(rows), "timeout_s": hold}
    answer = served.post(LOOK, body, **options)
    assert answer.status_code == 200, answer.told
    return answer.told


def test_it_tells_what_is_new_and_no_more(served):
    served.submit("a")
    told = look(served, [["a", -1, False], ["t", -1, False]], [["a", None], ["none", None]])
    assert told["journals"] == {}
    assert told["rows"]["none"] == {"mark": 0, "row": None}
    row, mark = told["rows"]["a"]["row"], told["rows"]["a"]["mark"]
    assert (row["state"], row["attempt"]) == ("queued", 0)
    assert look(served, [], [["a", mark], ["none", 0]]) == {"journals": {}, "rows": {}}
    claimed = served.plane.claim("gpu", "w")
    for n in range(3):
        served.plane.journal_append("a", None, b"%d" % n)
    told = look(served, [["a", 0, False]], [["a", mark]])
    assert told["journals"]["a"] == {"frames": [[1, b"1"], [2, b"2"]], "finished": False}
    assert told["rows"]["a"]["row"]["state"] == "running"
    served.plane.heartbeat("a", "w", lease=99)  # a lease that moves is no news
    assert look(served, [["a", 2, False]], [["a", told["rows"]["a"]["mark"]]]) == {"journals": {}, "rows": {}}
    served.plane.ack("a", "w", fence=claimed.fence, result=b"r")
    told = look(served, [["a", 2, False], ["a.log", -1, False]], [["a", mark]])
    assert told["journals"] == {name: {"frames": [], "finished": True} for name in ("a", "a.log")}
    assert told["rows"]["a"]["row"]["result"] == b"r"
    assert look(served, [["a", 2, True]]) == {"journals": {}, "rows": {}}


def test_what_was_finished_and_goes_on_is_told(served):
    served.submit("a")
    served.plane.cancel("a")
    assert look(served, [["a", -1, False]])["journals"]["a"]["finished"] is True
    served.plane.requeue("a")
    assert look(served, [["a", -1, True]])["journals"]["a"] == {"frames": [], "finished": False}


@pytest.mark.parametrize("what", ["frame", "end", "claim", "log"])
def test_it_is_held_until_there_is_something(served, what):
    served.submit("a")
    mark = look(served, [], [["a", None]])["rows"]["a"]["mark"]
    if what == "end":
        served.plane.claim("gpu", "w")
        mark = look(served, [], [["a", None]])["rows"]["a"]["mark"]
    change = {
        "frame": lambda: served.plane.journal_append("a", None, b"x"),
        "log": lambda: served.plane.journal_append("a.log", None, b"x"),
        "claim": lambda: served.plane.claim("gpu", "w"),
        "end": lambda: served.plane.ack("a", "w"),
    }[what]
    timer = threading.Timer(0.2, change)
    timer.start()
    began = time.monotonic()
    told = look(served, [["a", -1, False], ["a.log", -1, False]], [["a", mark]], hold=20)
    assert told["journals"] or told["rows"]
    assert time.monotonic() - began < 3
    timer.join()
    assert served.app.serving.hearing.waiting == 0


def test_nothing_new_is_told_when_the_hold_is_over(served):
    began = time.monotonic()
    assert look(served, [["t", -1, False]], hold=0.3) == {"journals": {}, "rows": {}}
    assert 0.25 < time.monotonic() - began < 3


def test_many_frames_come_in_parts(served):
    for _ in range(12):
        served.plane.journal_append("big", None, b"x" * 1_000_000)
    cursor, seen = -1, 0
    while frames := look(served, [["big", cursor, False]])["journals"].get("big", {}).get("frames"):
        assert sum(len(data) for _, data in frames) <= 4_000_000
        cursor, seen = frames[-1][0], seen + len(frames)
    assert seen == 12


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"journals": [["a", -2, False]]}, "journals[0].since"),
        ({"journals": [["a", 2**62, False]]}, "journals[0].since"),
        ({"journals": [["a", 0, False], ["b", 0, None]]}, "journals[1].finished"),
        ({"journals": [["", 0, False]]}, "journals[0]"),
        ({"journals": [["a", 0]]}, "journals[0]"),
        ({"journals": {}}, "journals"),
        ({"journals": [["a", 0, False]] * 1001}, "journals"),
        ({"rows": [["no good", None]]}, "rows[0]"),
        ({"rows": [["a", "x"]]}, "rows[0].mark"),
        ({"rows": [["a", None]] * 1001}, "rows"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_what_cannot_be_looked_at_names_the_field(served, body, named):
    answer = served.post(LOOK, body)
    assert answer.status_code == 400
    assert answer.told["error"]["message"].startswith(named)


def test_it_shows_its_namespace_alone_and_ends_with_its_token(guarded):
    mine, others = guarded.token("producer"), guarded.token("producer", ns="other")
    guarded.submit("a", token=mine)
    assert look(guarded, [], [["a", None]], token=mine)["rows"]["a"]["row"]["id"] == "a"
    assert guarded.post(LOOK, {}, token=others).status_code == 404
    assert guarded.post(LOOK, {}).status_code == 401
    path = LOOK.replace("default", "other")
    assert guarded.post(path, {"rows": [["a", None]]}, token=others).told["rows"]["a"]["row"] is None


def test_many_are_looked_at_by_one_statement_each(served, monkeypatch):
    ids = [f"j{n}" for n in range(300)]
    served.plane.submit_many("gpu", [Submission(envelope=b"e", id=id) for id in ids])
    known = look(served, [], [[id, None] for id in ids])["rows"]
    read, asked = served.plane._read, []

    def noted(work: Any) -> Any:
        asked.append(work)
        return read(work)

    monkeypatch.setattr(served.plane, "_read", noted)
    quiet = look(served, [[f"{id}.log", -1, False] for id in ids], [[id, known[id]["mark"]] for id in ids])
    assert quiet == {"journals": {}, "rows": {}}
    assert len(asked) == 2


def test_looks_wait_for_what_they_cost_and_keep_no_reader(served, monkeypatch):
    asked: list[float] = []

    def slow(*_: Any) -> dict[str, Any]:
        asked.append(time.monotonic())
        time.sleep(0.1)
        return {"journals": {}, "rows": {}}

    monkeypatch.setattr(looking, "looked", slow)
    bodies = [{"journals": [["t", -1, False]], "timeout_s": 3.0}] * 4
    with ThreadPoolExecutor(4) as threads:
        held = [threads.submit(httpx.post, served.url + LOOK, content=msgpack.packb(b)) for b in bodies]
        end = time.monotonic() + 5
        while len(asked) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        began = time.monotonic()
        for _ in range(5):
            assert served.get("/v1/namespaces/default/queues").status_code == 200
        assert time.monotonic() - began < 1
        for _ in range(50):  # each wakes them all
            served.plane.journal_append("t", None, b"x")
        assert [each.result().status_code for each in held] == [200] * 4
    assert len(asked) <= 4 * 4  # a second is rested after each, woken or not


def test_a_token_looks_at_so_much_and_no_more(guarded, monkeypatch):
    monkeypatch.setattr(looking, "MOST_OF_A_TOKEN", 5)
    mine, theirs = guarded.token("producer"), guarded.token("producer")
    three = {"journals": [[f"t{n}", -1, False] for n in range(3)], "timeout_s": 20}
    with ThreadPoolExecutor(1) as threads:
        headers = {"authorization": f"Bearer {mine}"}
        held = threads.submit(
            httpx.post, guarded.url + LOOK, content=msgpack.packb(three), headers=headers, timeout=30
        )
        end = time.monotonic() + 10
        while not guarded.app.serving.hearing.waiting and time.monotonic() < end:
            time.sleep(0.01)
        answer = guarded.post(LOOK, {**three, "timeout_s": 0}, token=mine)
        assert (answer.status_code, answer.told["error"]["code"]) == (429, "too_many")
        assert "retry-after" in answer.headers
        assert look(guarded, [["t", -1, False]], token=mine) == {"journals": {}, "rows": {}}
        assert look(guarded, three["journals"], token=theirs) == {"journals": {}, "rows": {}}
        guarded.plane.journal_append("t1", None, b"x")
        assert held.result().status_code == 200
    assert list(look(guarded, three["journals"], token=mine)["journals"]) == ["t1"]


def test_names_of_all_kinds_are_found(served):
    names = ["é.log", "\U0001f30a", "quo'te\"[1]", "a b", "a\\u0000", "x" * 255]
    for name in names:
        served.plane.journal_append(name, None, b"x")
    told = look(served, [[name, -1, False] for name in [*names, "none", *names]])
    assert {name: each["frames"] for name, each in told["journals"].items()} == {
        name: [[0, b"x"]] for name in names
    }
