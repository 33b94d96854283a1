"""The web page shows what others named as text: no script of theirs runs, and nothing freezes the page."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgpack
import pytest

from lakeshore import Dispatch, wire
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

pytestmark = pytest.mark.browser

EVIL = (
    "\"'><img src=x onerror=window.evil=1><script>window.evil=2</script><svg onload=window.evil=3>"
    "</textarea></title>`{{7*7}}${7*7}javascript:window.evil=4"
)
MARKUP = {
    "text/html": EVIL,
    "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload='window.evil=5'>{EVIL}</svg>",
    "application/javascript": "window.evil=6",
    "text/markdown": f"[x](javascript:window.evil=7) {EVIL}",
}
SPIES = """
window.violations = []; window.long = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI));
new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.long.push(entry.duration)))
  .observe({entryTypes: ["longtask"]});
"""


def frame(body: Any, kind: int = 0, meta: Any = None) -> bytes:
    return bytes(msgpack.packb([kind, 0, body, meta]))


class Planted:
    """A control plane and one hostile job in it, made as any worker may."""

    def __init__(self, url: str, ns: str = "default") -> None:
        self.url, self.ns = url, ns

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}{path}", content=msgpack.packb(body), timeout=30)
        assert answer.status_code == 200, answer.text
        return dict(msgpack.unpackb(answer.content))

    def job(
        self, queue: str, *, frames: dict[str, list[bytes]], key: str | None = None, **ending: Any
    ) -> str:
        id, worker = secrets.token_hex(8), EVIL[:200]
        named = wire.Envelope(
            id="x",
            fn={"kind": "ref", "module": EVIL, "qualname": EVIL},
            args=b"",
            kwargs=b"",
            cfg={"name": EVIL},
        )
        submitted = {"invocation_id": id, "queue": queue, "args_blob": named.to_bytes()}
        config = {"queue": queue, "key": key}
        self.post(
            f"/v1/namespaces/{quote(self.ns, safe='')}/producer/submit", {**submitted, "run_config": config}
        )
        told = {"worker_id": worker, "timeout_s": 1, "queue": queue, "lease": 300.0, "namespace": self.ns}
        told["worker"] = {"host": EVIL, "version": EVIL, "pid": 1}
        claim = self.post("/v1/daemon/poll", told)["commands"][0]["body"]
        held = {"worker_id": worker, "fence": claim["fence"], "namespace": self.ns}
        for suffix, each in frames.items():
            for n in range(0, len(each), 2000):
                part = [[None, data, False] for data in each[n : n + 2000]]
                self.post("/v1/daemon/result-chunk", {"invocation_id": id + suffix, "frames": part, **held})
        if ending:
            self.post("/v1/daemon/ack", {"invocation_id": id, **held, **ending})
        return id


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Dispatch(":memory:") as plane, background(create_app(plane, Options(auth=False))) as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    page = context.new_page()
    page.add_init_script(SPIES)
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("dialog", lambda dialog: (page.faults.append(dialog.message), dialog.accept()))
    yield page
    assert page.evaluate("[window.evil, ({}).evil, window.violations]") == [None, None, []]
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert page.evaluate("document.querySelectorAll('[onerror], [onload], svg, iframe').length") == 0
    assert page.faults == []
    context.close()


def test_what_a_job_names_yields_and_draws_is_text(url: str, page: Any) -> None:
    values = [
        frame(EVIL),
        frame({EVIL: EVIL, "__proto__": {"evil": 1}, "constructor": {"prototype": {"evil": 1}}}),
        frame(msgpack.ExtType(6, EVIL.encode())),
        frame(msgpack.ExtType(99, EVIL.encode())),
        frame("after"),
    ]
    log = [
        frame({"text": EVIL + "\x1b]8;;javascript:window.evil=8\x07link\n"}),
        frame({"display": {**MARKUP, "text/plain": EVIL}}),
        frame({"display": {"image/png": '"onerror="window.evil=9', "text/plain": EVIL}}),
        frame({"display": {"image/png": "AAAA", "text/plain": EVIL}}),
        frame({"display": {"image/svg+xml;base64,": EVIL, "image/jpeg": b"\xff\xd8" + EVIL.encode()}}),
    ]
    progress = [
        frame({"done": EVIL, "total": EVIL, "note": EVIL}),
        frame({"done": float("nan"), "total": 1e308}),
    ]
    frames = {"": values, ".log": log, ".progress": progress}
    result = {"state": "succeeded", "result_blob": msgpack.packb({EVIL: [EVIL, {"out/f": EVIL}]})}
    made = Planted(url)
    id = made.job(EVIL[:200], key=EVIL[:250], frames=frames, **result)
    page.goto(f"{url}/?job={id}#{quote(EVIL)}")
    page.locator(".values li").get_by_text("after").wait_for()
    page.locator(".log").get_by_text("window.evil=2").wait_for()
    page.locator(".pictures pre").first.wait_for()
    page.locator("section[aria-label=Result] pre").get_by_text("out/f").wait_for()
    assert EVIL in page.locator(".values li").first.inner_text()


def test_errors_queues_keys_and_workers_are_text(url: str, page: Any) -> None:
    made = Planted(url, EVIL[:240])
    error = {"type": EVIL, "message": f"{EVIL}\u202e", "traceback": f"{EVIL}\n{EVIL}", "retry": False}
    id = made.job(EVIL[:200], key=EVIL[:250], frames={}, state="failed", error=error)
    where = urlencode({"ns": made.ns}, quote_via=quote)
    page.goto(f"{url}/?{where}&job={id}")
    page.locator("pre[aria-label=Traceback]").wait_for()
    assert EVIL in page.locator(".error").inner_text()
    page.goto(f"{url}/?{where}")
    page.locator("caption", has_text="Workers").wait_for()
    page.goto(f"{url}/?{where}&" + urlencode({"jobs": 1, "queue": EVIL[:200], "find": EVIL[:250]}))
    page.locator(f"#j-{id}").wait_for()
    assert page.locator("#find").input_value() == EVIL[:250]


@pytest.mark.parametrize("field", ["ns", "queue", "find", "state", "before", "job", "jobs", "else"])
def test_an_address_is_text(url: str, page: Any, field: str) -> None:
    page.goto(f"{url}/?{urlencode({field: EVIL})}#{quote(EVIL)}")
    page.locator("main h1, main .problem").first.wait_for()


def test_what_is_typed_is_text(page: Any) -> None:
    with Dispatch(":memory:") as plane, background(create_app(plane, Options())) as url:
        token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0]
        page.goto(url)
        for typed in (EVIL, token):
            page.locator("#token").fill(typed)
            page.keyboard.press("Enter")
            page.locator("#said", has_text="unknown" if typed == EVIL else "").wait_for(state="attached")
        page.locator("main h1").wait_for()
        page.goto(f"{url}/?jobs=1")
        page.locator("#find").fill(EVIL)
        page.keyboard.press("Enter")
        page.wait_for_url("**find=**")
        page.locator("main .problem, main .dim").first.wait_for()


def test_a_long_log_and_a_frame_of_many_values_leave_the_page_awake(url: str, page: Any) -> None:
    line = "x" * 1000 + "\n"
    bomb = b"\x94\x00\x00\xdd" + (4_000_000).to_bytes(4, "big") + b"\x80" * 4_000_000 + b"\xc0"
    frames = {"": [bomb, frame("after")], ".log": [*[frame({"text": f"{n} {line}"}) for n in range(10_000)]]}
    id = Planted(url).job("long", frames=frames, state="succeeded", result_blob=b"\xc0")
    page.goto(f"{url}/?job={id}")
    page.locator(".values li").get_by_text("after").wait_for()
    assert "a value of 3.8 MiB" in page.locator(".values li").all_inner_texts()
    page.locator(".log").get_by_text("9999 xxx").wait_for()
    assert page.evaluate("document.querySelector('.log').textContent.length") <= 400_000
    assert max(page.evaluate("window.long"), default=0) < 1000
