"""The panel where people see it: JupyterLab in a real browser."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SETUP = """
import threading, time
from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.notebook.stream import show_job
plane = Dispatch(":memory:")
q = SyncQueue("gpu", dispatch=plane)
id = q.submit({"x": 1})

def work(total, pause=0.05, values=None):
    plane.claim("gpu", "w")
    for n in range(total):
        value = {"step": n + 1, "total": total, "loss": 1 / (n + 1)} if values is None else values[n]
        plane.journal_append(id, None, wire.value_frames(value)[0])
        text = {"stream": "stdout", "text": f"line {n}\\n"}
        plane.journal_append(id + ".log", None, wire.value_frames(text)[0])
        time.sleep(pause)
    plane.ack(id, "w", frame=wire.end_frame(0))
"""
SHOW = """
panel = show_job(plane, id, name='train')
threading.Thread(target=work, args=(%s,), daemon=True).start()
"""
STEP = re.compile(r"(\d+) of (\d+), \d+%")


def step(output: Any) -> int:
    """The step that a live panel shows; -1 before the first."""
    found = STEP.search(output.inner_text())
    return int(found[1]) if found else -1


def busy(lab: Lab) -> bool:
    """Whether the kernel runs a cell."""
    return bool(
        lab.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
        )
    )


def mimes(notebook: dict[str, Any], index: int) -> list[set[str]]:
    """The mime types of one cell's saved outputs."""
    return [set(output.get("data", {})) for output in notebook["cells"][index]["outputs"]]


def test_the_training_notebook_streams_and_keeps_its_record(lab: Lab) -> None:
    name = lab.copy(NOTEBOOKS / "01_training_stream.ipynb")
    lab.open(name)
    lab.run_all()
    panel = lab.page.locator(".lakeshore-view .lakeshore-panel")
    panel.first.wait_for(timeout=30_000)
    seen: set[int] = set()
    end = time.monotonic() + 60
    while len(seen) < 4 and time.monotonic() < end:
        if panel.count() and busy(lab):
            seen.add(step(panel.first))
        lab.page.wait_for_timeout(50)
    assert len(seen - {-1}) >= 3, "the panel did not advance while another cell was running"
    record = lab.page.locator(".lk-record[data-state=succeeded]")
    record.first.wait_for(timeout=60_000)
    lab.wait_idle()
    assert "digits" in record.first.inner_text() and "valid_loss" in record.first.inner_text()

    saved = lab.save()
    outputs = [o for c in saved["cells"] if c["cell_type"] == "code" for o in c["outputs"]]
    errors = [o for o in outputs if o["output_type"] == "error"]
    assert not errors, errors
    records = [o for o in outputs if "lk-record" in "".join(o.get("data", {}).get("text/html", ""))]
    assert any("succeeded" in "".join(o["data"]["text/plain"]) for o in records)
    lab.open(name)
    record.first.wait_for()
    assert "succeeded" in record.first.inner_text()
    assert "model not found" not in lab.page.locator("body").inner_text()


def test_a_page_reload_in_mid_run_shows_the_full_state(lab: Lab) -> None:
    lab.write("reload.ipynb", SETUP, SHOW % 120)
    lab.open("reload.ipynb")
    lab.run(0, 1)
    output = lab.output(1)
    output.get_by_text(STEP).first.wait_for()
    lab.save()
    lab.open("reload.ipynb")
    output.get_by_text(STEP).first.wait_for(timeout=20_000)
    before = step(output)
    assert before > 0 and "train" in output.inner_text()
    lab.page.wait_for_function(
        f"() => !document.querySelector('.lk-live') || !document.body.innerText.includes('{before} of 120')"
    )
    output.locator(".lk-record[data-state=succeeded]").wait_for(timeout=30_000)
    assert "120 frames" in output.inner_text()


def test_a_reopened_notebook_shows_the_record_after_a_kernel_restart(lab: Lab) -> None:
    lab.write("restart.ipynb", SETUP, SHOW % 10)
    lab.open("restart.ipynb")
    lab.run(0, 1)
    lab.output(1).locator(".lk-record[data-state=succeeded]").wait_for(timeout=20_000)
    assert mimes(lab.save(), 1) == [{"text/html", "text/plain"}]
    began = time.monotonic()
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    assert time.monotonic() - began < 3.0
    lab.open("restart.ipynb")
    record = lab.output(1).locator(".lk-record")
    record.wait_for()
    assert "succeeded" in record.inner_text() and "10 frames" in record.inner_text()
    text = lab.page.locator("body").inner_text()
    assert "model not found" not in text and "Loading widget" not in text


def test_a_restart_with_live_panels_does_not_hang(lab: Lab) -> None:
    lab.write("live.ipynb", SETUP, "panels = [show_job(plane, id) for _ in range(3)]")
    lab.open("live.ipynb")
    lab.run(0, 1)
    lab.output(1).get_by_text("%lakeshore worker start gpu").first.wait_for()
    began = time.monotonic()
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    lab.wait_idle(10)
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(
    ("button", "state"), [("Cancel", "cancelled"), ("Freeze", "running"), ("Detach", "running")]
)
def test_buttons_do_what_they_say(lab: Lab, button: str, state: str) -> None:
    lab.write("buttons.ipynb", SETUP, SHOW % 400)
    lab.open("buttons.ipynb")
    lab.run(0, 1)
    output = lab.output(1)
    output.get_by_text(STEP).first.wait_for()
    output.get_by_role("button", name=button).click()
    output.locator(f".lk-record[data-state={state}]").wait_for(timeout=10_000)
    assert output.get_by_role("button").count() == 0
    expected = "%lakeshore requeue" if state == "cancelled" else "%lakeshore stream"
    assert expected in output.inner_text()


def test_running_again_asks_first(lab: Lab) -> None:
    lab.write("again.ipynb", SETUP, SHOW % 400)
    lab.open("again.ipynb")
    lab.run(0, 1)
    output = lab.output(1)
    output.get_by_text(STEP).first.wait_for()
    output.get_by_role("button", name="Run again").click()
    output.get_by_role("button", name="Cancel and run again?").click()
    output.locator(".lk-live[data-state=queued]").wait_for(timeout=10_000)
    assert output.get_by_role("button", name="Run again", exact=True).count() == 1


HOSTILE = """
evil = "</div></style></script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
class Evil:
    def _repr_html_(self):
        return evil + "<style>.jp-Cell{display:none}</style><a href='javascript:owned()'>x</a>"
values = [evil, {evil: evil}, {evil: 1.0}, [evil], "\\u202e" + evil, "x" * 1_000_000]
for entry in ({"stream": "stdout", "text": evil}, {"display": {"text/html": Evil()._repr_html_()}}):
    plane.journal_append(id + ".log", None, wire.value_frames(entry)[0])
panel = show_job(plane, id, name=evil)
threading.Thread(target=work, args=(len(values), 0.2, values), daemon=True).start()
"""


def test_hostile_output_is_inert(lab: Lab) -> None:
    lab.write("hostile.ipynb", SETUP, HOSTILE)
    lab.open("hostile.ipynb")
    asked: list[str] = []
    lab.page.on("request", lambda request: asked.append(request.url))
    lab.run(0, 1)
    output = lab.output(1)
    output.locator(".lk-live[data-state=running]").first.wait_for()
    lab.page.wait_for_timeout(500)
    output.locator(".lk-record[data-state=succeeded]").wait_for(timeout=20_000)
    assert lab.page.evaluate("() => window.owned") is None
    assert "window.owned" in output.inner_text(), "it is shown as the text it is"
    assert output.locator("script, a, [onerror], iframe").count() == 0
    assert not [url for url in asked if url.endswith("/x")]
    assert lab.page.locator(".jp-Cell").first.is_visible()
    assert lab.page.locator(".jp-Cell").count() == 2


def test_a_flood_leaves_the_page_responsive(lab: Lab) -> None:
    flood = """
def flood(total=100_000, rate=5_000):
    plane.claim("gpu", "w")
    began = time.monotonic()
    for n in range(0, total, 250):
        frames = [wire.value_frames({"n": k, "loss": 1 / (k + 1)})[0] for k in range(n, n + 250)]
        plane.journal_extend(id, frames)
        time.sleep(max(0.0, began + (n + 250) / rate - time.monotonic()))
    plane.ack(id, "w", frame=wire.end_frame(0))
panel = show_job(plane, id)
threading.Thread(target=flood, args=(40_000, 5_000), daemon=True).start()
"""
    lab.write("flood.ipynb", SETUP, flood)
    lab.open("flood.ipynb")
    lab.page.evaluate(
        """() => { window.long = [];
                   const keep = list => list.getEntries().forEach(entry => window.long.push(entry.duration));
                   new PerformanceObserver(keep).observe({entryTypes: ['longtask']}); }"""
    )
    lab.run(0, 1)
    lab.output(1).locator(".lk-record[data-state=succeeded]").wait_for(timeout=60_000)
    assert "40,000 frames" in lab.output(1).inner_text()
    long: list[float] = lab.page.evaluate("() => window.long.slice(1)")
    assert not [duration for duration in long if duration > 200], long


def test_the_tail_stays_pinned_and_keeps_the_readers_place(lab: Lab) -> None:
    lab.page.set_viewport_size({"width": 700, "height": 900})
    text = "\n".join(f"row {n}" for n in range(6))
    show = f"values = [{text!r}.replace('row', f'value {{k}} row') for k in range(200)]\n"
    show += "panel = show_job(plane, id)\n"
    show += "threading.Thread(target=work, args=(200, 0.05, values), daemon=True).start()"
    lab.write("scroll.ipynb", SETUP, show)
    lab.open("scroll.ipynb")
    lab.run(0, 1)
    box = lab.page.locator(".lakeshore-scroll")
    lab.page.wait_for_function(
        """() => { const box = document.querySelector('.lakeshore-scroll');
                   return box && box.scrollHeight > box.clientHeight + 300 }"""
    )
    assert box.evaluate("box => box.scrollTop") == 0, "the newest is in view"
    box.evaluate("box => { box.scrollTop = -50 }")
    lab.page.wait_for_timeout(600)
    assert box.evaluate("box => box.scrollTop") == -50, "the reader's place is kept"
    head = lab.page.locator(".lk-top").bounding_box()
    frame = box.bounding_box()
    assert head is not None and frame is not None
    assert abs(head["y"] - frame["y"]) < 3, "the head stays in view"
