"""The web page as a browser is sent it: who sees what, what is found, and that every text stays a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from unit.server.conftest import Served

from lakeshore import SyncQueue, run_worker, thunk
from lakeshore.server.page import views

EVIL = "<script>x</script>\u202e"


def view(served: Served, query: str = "", *, token: str | None = None, **headers: str) -> httpx.Response:
    return served.ask("GET", f"/page/view?{query}", token=token, **headers)


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve(memory=True)


def test_the_page_without_tokens_comes_with_its_content(served: Served) -> None:
    SyncQueue("gpu", dispatch=served.plane).submit({"x": 1})
    answer = served.get("/")
    assert answer.status_code == 200
    assert "gpu" in answer.text
    assert 'data-auth="no"' in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_with_tokens_holds_nothing_until_one_is_sent(serve: Callable[..., Served]) -> None:
    served = serve(memory=True, auth=True)
    SyncQueue("secretqueue", dispatch=served.plane).submit({"x": 1})
    shell = served.get("/?queue=secretqueue")
    assert shell.status_code == 200
    assert "secretqueue" not in shell.text
    assert view(served).status_code == 401
    seen = view(served, token=served.token("producer"))
    assert seen.status_code == 200
    assert "secretqueue" in seen.text


def test_another_namespace_is_not_there(serve: Callable[..., Served]) -> None:
    served = serve(memory=True, auth=True)
    token = served.token("producer", ns="mine")
    assert view(served, "ns=default", token=token).status_code == 404
    mine = view(served, token=token)
    assert "namespace mine" in mine.text
    assert "<select" not in mine.text
    admin = view(served, "ns=mine", token=served.token("admin"))
    assert admin.text.count("<option") == 2


def test_every_text_of_a_job_stays_a_text(served: Served) -> None:
    queue = SyncQueue("<b>q</b>", dispatch=served.plane)
    id = queue.submit(thunk(fail, EVIL).with_options(retries=0, name=EVIL), key="<i>k</i>")
    run_worker(queue, once=True, allow_pickled=True)
    for query in ("", "jobs=1", f"job={id}", "jobs=1&queue=%3Cb%3Eq%3C%2Fb%3E"):
        text = view(served, query).text
        assert "<script" not in text
        assert "<b>q" not in text
        assert "<i>k" not in text
        assert "\u202e" not in text
    assert "ValueError: &lt;script&gt;" in view(served, f"job={id}").text


@pytest.mark.parametrize("state", ["queued", "cancelled"])
def test_jobs_are_found_by_id_beginning_key_queue_and_state(served: Served, state: str) -> None:
    gpu, cpu = SyncQueue("gpu", dispatch=served.plane), SyncQueue("cpu", dispatch=served.plane)
    ids = [gpu.submit({"x": 1}, key="a/b"), cpu.submit({"x": 2}, key="a/b"), cpu.submit({"x": 3}, id="other")]
    if state == "cancelled":
        served.plane.cancel(ids[0])

    def found(query: str) -> set[str]:
        text = view(served, query).text
        return {id for id in ids if f"<code>{id}</code>" in text}

    assert found(f"find={ids[0]}") == {ids[0]}
    assert found("find=othe") == {ids[2]}
    assert found("find=a/b") == set(ids[:2])
    assert found("find=a/b&queue=cpu") == {ids[1]}
    assert found("find=nothing") == set()
    assert found("queue=cpu") == set(ids[1:])
    assert found(f"state={state}") == ({ids[0]} if state == "cancelled" else set(ids))
    assert found(f"find=a/b&state={state}") == ({ids[0]} if state == "cancelled" else set(ids[:2]))


def test_more_jobs_than_a_page_holds_go_on(served: Served) -> None:
    queue = SyncQueue("gpu", dispatch=served.plane)
    ids = queue.submit_many([{"n": n} for n in range(60)])
    first = view(served, "jobs=1").text
    assert "Older" in first
    older = first.split("before=")[1].split('"')[0]
    second = view(served, f"jobs=1&before={older}").text
    shown = [id for id in ids if f"<code>{id}</code>" in first] + [
        id for id in ids if f"<code>{id}</code>" in second
    ]
    assert sorted(shown) == sorted(ids)
    assert "Older" not in second


def test_what_has_not_changed_is_not_sent_again(served: Served) -> None:
    queue = SyncQueue("gpu", dispatch=served.plane)
    id = queue.submit({"x": 1})
    first = view(served, f"job={id}")
    again = view(served, f"job={id}", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    queue.cancel(id)
    assert view(served, f"job={id}", if_none_match=first.headers["etag"]).status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("job=nothere", 404, "no job"),
        ("job=a%20b", 400, "id"),
        ("state=odd", 400, "state"),
        ("before=a%20b", 400, "before"),
        ("ns=%00", 400, "namespace"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    served: Served, query: str, status: int, said: str
) -> None:
    answer: Any = view(served, query, accept="application/json")
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert served.get(f"/?{query}").status_code == 200  # the same, within the page


def test_the_page_has_its_files_and_no_others(served: Served) -> None:
    for name, kind in (
        ("page.css", "text/css"),
        ("page.js", "text/javascript"),
        ("msgpack.js", "text/javascript"),
    ):
        answer = served.get(f"/page/{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/page/shell.html", "/page/../page.css", "/page/%2e%2e/views.py"):
        assert served.get(path).status_code == 404


def test_a_job_is_looked_at_without_its_result(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for id in ("before", "a", "after"):
        served.plane.submit("gpu", b"e", id=id)
    claimed = served.plane.claim_many("gpu", "w", 2)[1]
    served.plane.ack(claimed.id, "w", result=b"r" * 1000, fence=claimed.fence)
    within = served.app.serving.plane("default")
    row = served.plane.get("a")
    assert row is not None
    assert row.pop("result") == b"r" * 1000
    assert within.look("a") == row
    assert within.look("nobody") is None
    assert served.app.serving.plane("other").look("a") is None
    monkeypatch.setattr(type(within), "get", None)
    assert "after" in view(served, "job=after").text
    assert "before" in view(served, "find=before").text


@pytest.mark.parametrize("at", [1e300, -1e300])
def test_a_moment_beyond_the_calendar_is_shown(at: float) -> None:
    year = "9999-12-31" if at > 0 else "1970-01-01"
    assert views.moment(at).startswith(year)
    assert views.iso(at).startswith(year)
