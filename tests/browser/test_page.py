"""The control plane's web page in a real browser: the token, a job as it streams, its buttons, the keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, WorkerThread, run, thunk
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=alert(1)>"


class Steps:
    """Lets a job go on when the test has seen what it yielded."""

    go = threading.Event()


def told(evil: str) -> Iterator[Any]:
    run.progress(1, 4, evil)
    print("\x1b[31mred\x1b[0m", "bar 1\rbar 2", evil)
    yield {"loss": 0.5, "pair": (1, 2), "big": 2**60, "note": evil}
    Steps.go.wait(30)
    yield "the last"
    return {"done": True}


def flood(count: int) -> Iterator[Any]:
    for n in range(count):
        yield {"n": n}
    yield bytes(3_000_000)


def fail() -> None:
    raise ValueError(EVIL)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Dispatch]:
    Steps.go.clear()
    with Dispatch(tmp_path / "plane.sqlite") as plane:
        yield plane


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("dialog", lambda dialog: (page.faults.append(dialog.message), dialog.accept()))
    yield page
    context.close()


def test_a_job_is_watched_from_its_first_value_to_its_result(plane: Dispatch, page: Any) -> None:
    token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0]
    queue = SyncQueue("gpu", dispatch=plane)
    with background(create_app(plane, Options())) as url, WorkerThread(queue, allow_pickled=True):
        page.goto(url)
        page.locator("#token").fill("wrong")
        page.keyboard.press("Enter")
        page.locator("#said").get_by_text("unknown").wait_for()
        page.locator("#token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_text("Nothing was submitted yet").wait_for()
        id = queue.submit(thunk(told, EVIL).with_options(log=True))
        page.locator(f"#j-{id}").click()  # the page found it by itself
        values = page.locator(".values li")
        values.first.wait_for()
        assert values.all_inner_texts() == [f'{{loss: 0.5, pair: (1, 2), big: {2**60}, note: "{EVIL}"}}']
        page.locator(".log").get_by_text(f"bar 2 {EVIL}").wait_for()
        assert "red" not in page.locator(".log").inner_text()  # the carriage return wrote over it
        page.get_by_text(f"1 of 4 · {EVIL}").wait_for()
        focused = page.locator("#to-queue")
        focused.focus()
        Steps.go.set()
        page.locator("section[aria-label=Result] pre").wait_for()
        assert page.locator("section[aria-label=Result] pre").inner_text() == "{done: True}"
        assert values.all_inner_texts()[-1] == "the last"
        assert page.evaluate("document.activeElement.id") == "to-queue"  # what changed left the focus alone
        assert token not in page.content() + page.url
        page.reload()
        values.nth(1).wait_for()  # the tab keeps its token
        assert page.locator("img").count() == 0
        assert page.faults == []


def test_buttons_and_the_search_work_by_keyboard(plane: Dispatch, page: Any) -> None:
    queue = SyncQueue("gpu", dispatch=plane)
    with background(create_app(plane, Options(auth=False))) as url:
        id = queue.submit(thunk(fail), key="the/key")
        page.goto(f"{url}/?jobs=1")
        page.locator("#find").focus()
        page.keyboard.type("the/key")
        page.keyboard.press("Enter")
        page.wait_for_url("**find=the%2Fkey**")
        page.locator(f"#j-{id}").focus()
        page.keyboard.press("Enter")
        page.locator("#cancel").focus()
        page.keyboard.press("Enter")
        page.locator("h1 .cancelled").wait_for()
        assert page.locator("#said").inner_text() == "Cancelled."
        page.locator("#requeue").focus()
        page.keyboard.press("Enter")
        page.locator("h1 .queued").wait_for()
        assert plane.get(id)["state"] == "queued"
        assert page.faults == ["Cancel this job?"]
        page.go_back()
        page.locator("#find").wait_for()
        assert page.locator("#find").input_value() == "the/key"


def test_a_flood_is_shown_by_its_end(plane: Dispatch, page: Any) -> None:
    page.add_init_script(
        "window.long = []; new PerformanceObserver(list => list.getEntries().forEach(entry => "
        "window.long.push(entry.duration))).observe({entryTypes: ['longtask']})"
    )
    queue = SyncQueue("gpu", dispatch=plane)
    with background(create_app(plane, Options(auth=False))) as url, WorkerThread(queue, allow_pickled=True):
        page.goto(f"{url}/?job={queue.submit(thunk(flood, 20_000))}")
        values = page.locator(".values li")
        values.get_by_text("a value of 2.9 MiB").wait_for()
        assert values.all_inner_texts()[-2] == "{n: 19999}"
        assert values.count() <= 300
        assert max(page.evaluate("window.long"), default=0) < 500
        assert page.faults == []
