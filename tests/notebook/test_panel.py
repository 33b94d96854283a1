"""Panels in real kernels: what goes over the wire, how much of it, and what a saved notebook keeps."""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshore.notebook.render_style import BLANK

SETUP = """
import threading, time
from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.notebook import stream
from lakeshore.notebook.stream import show_job, show_group

def fresh():
    global plane, q
    stream.shutdown()
    plane = Dispatch(":memory:")
    q = SyncQueue("gpu", dispatch=plane)

fresh()

def work(total, rate, block=50):
    id = plane.claim("gpu", "w").id
    began = time.monotonic()
    for n in range(0, total, block):
        values = [{"epoch": k, "loss": 1 / (k + 1), "accuracy": k / total} for k in range(n, n + block)]
        plane.journal_extend(id, [wire.value_frames(v)[0] for v in values])
        time.sleep(max(0.0, began + (n + block) / rate - time.monotonic()))
    plane.ack(id, "w", frame=wire.end_frame(0))

def start(total, rate, block=50):
    threading.Thread(target=work, args=(total, rate, block), daemon=True).start()
"""


class Kernel:
    """A kernel read raw: every message that it publishes, with the time it came."""

    def __init__(self, *extra: str) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(extra_arguments=list(extra))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.messages: list[tuple[float, dict[str, Any]]] = []

    def run(self, code: str, timeout: float = 60) -> dict[str, Any]:
        """Run a cell to its end."""
        reply = self.client.execute_interactive(
            textwrap.dedent(code), timeout=timeout, output_hook=self._keep, allow_stdin=False
        )
        content: dict[str, Any] = reply["content"]
        return content

    def ok(self, code: str, timeout: float = 60) -> str:
        """Run a cell that must succeed; returns what it printed."""
        before = len(self.messages)
        content = self.run(code, timeout)
        assert content["status"] == "ok", content
        return "".join(m["content"]["text"] for _, m in self.messages[before:] if m["msg_type"] == "stream")

    def listen(self, done: Callable[[dict[str, Any]], bool], timeout: float = 20) -> dict[str, Any]:
        """Take messages until one is what is waited for."""
        for _, message in self.messages:
            if done(message):
                return message
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            self._keep(message)
            if done(message):
                return message
        raise AssertionError(f"it never came: {Counter(m['msg_type'] for _, m in self.messages)}")

    def of(self, *kinds: str) -> list[tuple[float, dict[str, Any]]]:
        """Return the messages of these types."""
        return [(at, m) for at, m in self.messages if m["msg_type"] in kinds]

    def stop(self) -> float:
        """Shut the kernel down as a front end does; returns how long it took."""
        began = time.monotonic()
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        return time.monotonic() - began

    def _keep(self, message: dict[str, Any]) -> None:
        self.messages.append((time.monotonic(), message))


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    kernel = Kernel()
    kernel.ok(SETUP)
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(shared: Kernel) -> Kernel:
    shared.ok("fresh()")
    shared.messages.clear()
    return shared


def is_stand_in(message: dict[str, Any]) -> bool:
    html = message["content"].get("data", {}).get("text/html", "")
    return message["msg_type"] == "update_display_data" and '<div class="lk-s-' in html


def is_record(message: dict[str, Any]) -> bool:
    html = message["content"].get("data", {}).get("text/html", "")
    return message["msg_type"] == "update_display_data" and "lk-record" in html and not is_stand_in(message)


def test_ten_thousand_frames_cost_few_messages_and_few_bytes(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id, name='train'); start(10_000, 2_000)")
    record = kernel.listen(is_record)["content"]["data"]
    panel = kernel.of("comm_open", "comm_msg", "display_data", "update_display_data")
    size = sum(len(json.dumps(m["content"])) for _, m in panel)
    assert len(panel) <= 200, Counter(m["msg_type"] for _, m in panel)
    assert size <= 1_000_000
    assert len(json.dumps(record)) <= 20_000
    assert "10,000 frames" in record["text/html"] and "epoch=9999" in record["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" not in record


def test_the_first_bundle_serves_every_reader(kernel: Kernel) -> None:
    id = kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id, name='train'); print(id)").strip()
    (_, message), (_, stand_in), *rest = kernel.of("display_data")
    data = message["content"]["data"]
    assert not rest and message["content"]["transient"]["display_id"]
    assert set(stand_in["content"]["data"]) == {"image/png"}, "what nbval does not compare"
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert data["text/html"].startswith('<div class="lakeshore-panel"') and "\n" not in data["text/html"]
    assert id in data["text/plain"] and "queued" in data["text/plain"]
    assert "%lakeshore worker start gpu" in data["text/plain"]
    kernel.ok("plane.cancel(id)")
    update = kernel.listen(is_record)
    assert update["content"]["transient"] == message["content"]["transient"]


def test_a_live_panel_has_a_record_to_be_saved_with(kernel: Kernel) -> None:
    id = kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id, name='train'); print(id)").strip()
    (opened,) = [m for _, m in kernel.of("display_data") if "image/png" in m["content"]["data"]]
    kernel.ok("start(60, 30, block=5)")
    stand_in = kernel.listen(lambda m: is_stand_in(m) and "running" in m["content"]["data"]["text/plain"])
    data = stand_in["content"]["data"]
    assert f"`%lakeshore stream {id}` follows it" in data["text/plain"] and "as of 2" in data["text/plain"]
    assert 'data-state="running"' in data["text/html"]
    kernel.listen(is_record)
    last = kernel.listen(lambda m: m["content"].get("data") == {"image/png": BLANK} and m != opened)
    assert last["content"]["transient"] == stand_in["content"]["transient"]
    assert len([m for _, m in kernel.of("update_display_data") if is_stand_in(m)]) <= 6


def test_a_finished_job_is_a_record_without_a_widget(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); work(50, 1e6); q.stream(id)")
    kernel.messages.clear()
    kernel.ok("q.stream(id)")
    (_, message), *rest = kernel.of("comm_open", "comm_msg", "display_data", "update_display_data")
    assert not rest and set(message["content"]["data"]) == {"text/html", "text/plain"}
    assert "succeeded" in message["content"]["data"]["text/plain"]


def test_the_panel_advances_while_the_main_thread_is_busy(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id); start(200, 100, block=5)")
    kernel.messages.clear()
    began = time.monotonic()
    kernel.ok("end = time.monotonic() + 1.5\nwhile time.monotonic() < end: sum(range(1000))")
    busy = [m for at, m in kernel.of("comm_msg") if at - began < 1.5]
    assert len(busy) >= 5
    kernel.ok("print(panel.wait(20))")


def test_an_idle_panel_sends_next_to_nothing(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id)")
    kernel.messages.clear()
    kernel.ok("time.sleep(3)")
    assert len(kernel.of("comm_msg")) <= 5
    kernel.ok("panel.freeze(); plane.cancel(id)")


def test_twenty_panels_at_once_share_the_budget(kernel: Kernel) -> None:
    kernel.ok(
        """
        ids = [q.submit({'n': n}) for n in range(20)]
        panels = [show_job(plane, id) for id in ids]
        for id in ids: start(400, 100, block=10)
        time.sleep(0.3)
        """
    )
    kernel.messages.clear()
    began = time.monotonic()
    kernel.ok("states = [panel.wait(30) for panel in panels]")
    spent = time.monotonic() - began
    assert len(kernel.of("comm_msg", "update_display_data")) <= 220 * spent + 150
    assert kernel.ok("print(states.count('succeeded'))").strip() == "20"


def test_an_interrupt_ends_a_wait_and_the_next_cell_runs(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id)")
    request = kernel.client.execute("panel.wait()")
    kernel.listen(lambda m: m["msg_type"] == "execute_input" and m["parent_header"]["msg_id"] == request)
    time.sleep(0.3)
    began = time.monotonic()
    kernel.manager.interrupt_kernel()
    error = kernel.listen(lambda m: m["msg_type"] == "error")
    assert time.monotonic() - began < 0.5
    kernel.client.get_shell_msg(timeout=10)
    assert error["content"]["ename"] == "Detached"
    assert "still runs; lakeshore cancel" in "".join(error["content"]["traceback"])
    assert kernel.ok("print(plane.get(id)['state'])").strip() == "queued"
    kernel.ok("plane.cancel(id)")
    kernel.listen(is_record)


def test_updates_carry_the_request_that_is_current(kernel: Kernel) -> None:
    kernel.ok("id = q.submit({'x': 1}); panel = show_job(plane, id)")
    kernel.ok("plane.cancel(id); print(panel.wait(5))")
    update = kernel.listen(is_record)
    shown = next(m for _, m in kernel.of("display_data"))
    assert update["parent_header"]["msg_id"] != shown["parent_header"]["msg_id"]


def test_views_of_ended_jobs_do_not_pile_up(kernel: Kernel) -> None:
    kernel.ok(
        """
        from lakeshore.notebook import stream_ui
        stream_ui.ENDED_VIEWS = len(stream_ui._ENDED) + 2
        for n in range(5):
            id = q.submit(n); panel = show_job(plane, id); plane.cancel(id); panel.wait(5)
        """
    )
    closed = {m["content"]["comm_id"] for _, m in kernel.of("comm_close")}
    opened = {m["content"]["comm_id"] for _, m in kernel.of("comm_open")}
    assert len(closed) >= 3 * 10 and len(opened) > len(closed)


def test_a_fan_out_is_one_panel(kernel: Kernel) -> None:
    kernel.ok("ids = q.submit_many([1, 2, 3]); group = show_group(plane, ids, name='grid')")
    kernel.ok("c = plane.claim('gpu', 'w'); plane.ack(c.id, 'w'); [plane.cancel(i) for i in ids]")
    assert kernel.ok("print(group.wait(5))").strip() == "cancelled"
    record = kernel.listen(is_record)["content"]["data"]
    assert "grid" in record["text/html"] and "1 succeeded" in record["text/plain"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["text=True", "widget"])
def test_without_ipywidgets_the_display_is_replaced_once_a_second(how: str) -> None:
    kernel = Kernel()
    try:
        option = "" if how == "widget" else how
        if how == "widget":
            kernel.ok("import sys; sys.modules['ipywidgets'] = None")
        kernel.ok(SETUP)
        kernel.ok(f"id = q.submit(1); panel = show_job(plane, id, {option}); start(300, 100, block=10)")
        kernel.ok("print(panel.wait(20))")
        updates = kernel.of("update_display_data")
        assert 2 <= len(updates) <= 6 and not kernel.of("comm_open")
        assert not [m for _, m in updates if is_stand_in(m)], "what is replaced as a whole needs none"
        last = updates[-1][1]["content"]["data"]
        assert "epoch=299" in last["text/plain"]
        assert ("text/html" in last) == (how == "widget")
    finally:
        kernel.stop()


@pytest.mark.slow
def test_a_kernel_with_live_panels_ends_at_once() -> None:
    kernel = Kernel()
    kernel.ok(SETUP)
    kernel.ok("ids = [q.submit(n) for n in range(3)]\npanels = [show_job(plane, id) for id in ids]")
    assert kernel.stop() < 3.0


SUBMIT = """
import threading, time
from lakeshore import Dispatch, SyncQueue, thunk, run_worker
q = SyncQueue('gpu', dispatch=Dispatch(':memory:'))
threading.Thread(target=lambda: run_worker(q, poll=0.02), daemon=True).start()
"""
JOB = """
def job():
    import time
    for i in range(5):
        time.sleep(.1)
        yield f'step-{i}'
inv = q.submit(thunk(job))
"""


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def executed(tmp_path: Path, *cells: str) -> Any:
    import nbclient
    import nbformat

    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(nb, timeout=30, kernel_name="python3", resources=where).execute()
    return nb


@pytest.mark.slow
def test_headless_execution_keeps_the_values(tmp_path: Path) -> None:
    import nbconvert

    began = time.monotonic()
    job = JOB.replace("inv =", f"    display(__import__('IPython').display.Image({PIXEL!r}))\ninv =")
    nb = executed(tmp_path, SUBMIT, job, "q.stream(inv)", "time.sleep(2)")
    assert time.monotonic() - began < 25
    output, stand_in = nb.cells[2].outputs
    assert set(output["data"]) == {"text/html", "text/plain"} and stand_in["data"] == {"image/png": BLANK}
    assert "step-4" in output["data"]["text/plain"] and "succeeded" in output["data"]["text/plain"]
    page, _ = nbconvert.HTMLExporter().from_notebook_node(nb)
    shown = page[page.index("lk-record") :]
    assert "succeeded" in shown and "step-4" in shown and 'src="data:image/png;base64,' in shown
    kept = json.dumps(nb.cells[2].outputs)
    assert "model_id" not in kept and "lk-s-" not in kept


@pytest.mark.slow
def test_a_job_that_ends_between_two_cells_keeps_its_record(tmp_path: Path) -> None:
    nb = executed(tmp_path, SUBMIT, JOB, "q.stream(inv)", "print(list(q.stream(inv))[-1])", "time.sleep(.5)")
    assert "step-4" in nb.cells[2].outputs[0]["data"]["text/plain"]


SHELL = """
import contextlib, io, json, sys
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
config = Config(); config.HistoryManager.enabled = False; config.InteractiveShell.colors = "nocolor"
ip = InteractiveShell.instance(config=config)
out = io.StringIO()
with contextlib.redirect_stdout(out):
    for cell in json.loads(sys.stdin.read()):
        ip.run_cell(cell).raise_error()
sys.stdout.write(json.dumps({"OUT": ip.user_ns.get("OUT"), "text": out.getvalue()}))
"""


def in_shell(home: Path, *cells: str) -> dict[str, Any]:
    """Run cells in a shell that has no kernel and no front end."""
    run = subprocess.run(
        [sys.executable, "-c", SHELL],
        input=json.dumps([textwrap.dedent(cell) for cell in cells]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_a_shell_without_a_front_end_reads_text(home: Path) -> None:
    answer = in_shell(
        home,
        """
        from lakeshore import SyncQueue, thunk, run_worker
        q = SyncQueue('gpu')
        def job():
            yield from ['alpha-1', 'beta-2', 'gamma-3']
        inv = q.submit(thunk(job)); run_worker(q, once=True)
        """,
        """
        import threading
        display(q.stream(inv))
        OUT = [inv, [t.name for t in threading.enumerate()]]
        """,
    )
    inv, threads = answer["OUT"]
    assert inv in answer["text"] and "gamma-3" in answer["text"] and "succeeded" in answer["text"]
    assert "lakeshore-panels" not in threads


def test_a_flood_of_finished_frames_is_bounded_in_a_shell(home: Path) -> None:
    answer = in_shell(
        home,
        """
        from lakeshore import SyncQueue, Dispatch, thunk, run_worker
        q = SyncQueue('gpu', dispatch=Dispatch(':memory:'))
        def job():
            for i in range(20000): yield f'line {i} ' + 'x' * 60
        inv = q.submit(thunk(job)); run_worker(q, once=True)
        """,
        "display(q.stream(inv))",
    )
    assert "line 19999" in answer["text"] and "20,000 frames" in answer["text"]
    assert len(answer["text"]) < 20_000


def test_after_200_submits_the_registry_is_back_and_the_ui_thread_gone(kernel: Kernel) -> None:
    kernel.ok(
        """
        from ipywidgets.widgets import widget
        registry = getattr(widget, "_instances", widget.Widget.widgets)  # ipywidgets 8, else 7
        base = len(registry)
        for n in range(200):
            panel = show_job(plane, q.submit(n))
            plane.cancel(panel.id)
        """
    )
    kernel.ok("print(panel.wait(60)); stream.shutdown()", timeout=90)
    said = kernel.ok("print(len(registry) - base, [t.name for t in threading.enumerate()])")
    assert said.startswith("0 ") and "lakeshore-panels" not in said, said
