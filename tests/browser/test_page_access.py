"""The web page by keyboard and by what a screen reader is told: axe finds nothing serious, light or dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, run_worker, thunk
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = pytest.mark.browser


def told() -> Iterator[Any]:
    print("a line")
    yield {"loss": 0.5}
    yield "two"
    return {"done": True}


def fail() -> None:
    raise ValueError("no")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str, list[str]]]:
    """A control plane with jobs in it: its URL, a token, and the jobs' ids."""
    with Dispatch(":memory:") as plane, background(create_app(plane, Options())) as url:
        token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0]
        Tokens(plane).create(ns="other", role="admin")
        queue = SyncQueue("gpu", dispatch=plane)
        ids = [queue.submit(thunk(told).with_options(log=True)), queue.submit(thunk(fail), key="k")]
        for _ in ids:
            run_worker(queue, once=True, allow_pickled=True, retries=0)
        ids.append(queue.submit({"x": 1}))
        yield url, token, ids


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, served: tuple[str, str, list[str]], scheme: Any) -> None:
    url, token, ids = served
    context = browser.new_context(
        viewport={"width": 1000, "height": 800}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    found = {}

    def look(view: str) -> None:
        violations = axe.Axe().run(page).response["violations"]
        found[view] = [
            (each["id"], each["nodes"][0]["html"][:120])
            for each in violations
            if each["impact"] in ("serious", "critical")
        ]

    page.goto(url)
    page.locator("#token").wait_for()
    look("sign-in")
    page.locator("#token").fill(token)
    page.keyboard.press("Enter")
    page.locator("caption", has_text="Workers").wait_for()
    look("overview, workers")
    for view, wanted in {
        "?queue=gpu": "table",
        "?jobs=1": "#find",
        "?find=nothing": "main .dim",
        f"?job={ids[0]}": "section[aria-label=Result]",
        f"?job={ids[1]}": "pre[aria-label=Traceback]",
        f"?job={ids[2]}": "#cancel",
        "?job=none": ".problem",
    }.items():
        page.goto(f"{url}/{view}")
        page.locator(wanted).first.wait_for()
        look(view)
    context.close()
    assert not any(found.values()), found


def test_tab_reaches_everything_and_is_seen(browser: Any, served: tuple[str, str, list[str]]) -> None:
    url, token, ids = served
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    page = context.new_page()
    page.goto(url)
    page.locator("#token").wait_for()
    assert page.evaluate("document.activeElement.id") == "token"
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.locator(f"#j-{ids[2]}").wait_for()
    page.reload()
    page.locator(f"#j-{ids[2]}").wait_for()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        now = page.evaluate(
            "() => { const each = document.activeElement, style = getComputedStyle(each);"
            "return [each.id || each.textContent.trim() || each.getAttribute('aria-label') || each.tagName,"
            " style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0] }"
        )
        if page.evaluate("document.activeElement === document.body") or [now[0], True] in seen[:1]:
            break
        seen.append(now)
    names = [name for name, _ in seen]
    assert names[0] == "Skip to the content"
    assert {"pause", "leave", "ns", "queue-1", f"j-{ids[0]}", f"q-{ids[2]}"} <= set(names)
    assert [name for name, visible in seen if not visible] == []
    page.locator(f"#j-{ids[2]}").focus()
    page.keyboard.press("Enter")
    page.locator("#cancel").wait_for()
    assert page.evaluate("document.activeElement.id") == "content"  # what follows is read from its start
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('#said').getAttribute('aria-live')") == "polite"
    assert page.evaluate("getComputedStyle(document.querySelector('#said')).display") != "none"
    context.close()
