"""The worker in a real kernel: restarts, kills, what bodies print, bars, and an extension unloaded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from lakeshore import Dispatch, SyncQueue
from tests.notebook.conftest import Kernel, alive, until

FRAMES = """%%lakeshore submit gpu -o slow --retries 2
import time
for n in range(40):
    yield {"n": n}
    time.sleep(0.05)
"""


def running(plane: Dispatch, id: str) -> bool:
    return (plane.get(id) or {})["state"] == "running"


def test_a_restart_in_mid_job_loses_no_frame(kernels: Callable[[], Kernel], plane: Dispatch) -> None:
    first, queue = kernels(), SyncQueue("gpu", dispatch=plane)
    first.run("%lakeshore worker start gpu --process")
    first.run(FRAMES)
    id = first.value("slow")
    seen = queue.stream(id, timeout=20)
    assert [next(seen)["n"] for _ in range(3)] == [0, 1, 2]
    first.manager.shutdown_kernel(now=True)
    second = kernels()
    second.run("%lakeshore worker start gpu")
    shown = second.run(f"%lakeshore stream {id} --wait")
    assert shown.status == "ok", shown.text
    assert second.value(f"[v['n'] for v in __import__('lakeshore').SyncQueue('gpu').stream({id!r})]") == list(
        range(40)
    )
    assert (plane.get(id) or {})["state"] == "succeeded"


@pytest.mark.parametrize("how", ["", "--process"])
def test_a_restart_with_a_worker_and_three_panels_is_quick_and_gives_the_job_back(
    kernels: Callable[[], Kernel], plane: Dispatch, how: str
) -> None:
    kernel = kernels()
    kernel.run(f"%lakeshore worker start gpu {how}")
    for _ in range(3):
        assert kernel.run(FRAMES.replace("range(40)", "range(10_000)")).status == "ok"
    id = next(row["id"] for row in reversed(plane.invocations()))
    until(lambda: running(plane, id))
    began = time.monotonic()
    kernel.manager.shutdown_kernel(restart=True)  # what a restart waits for before it starts the next
    assert time.monotonic() - began < 3
    assert not kernel.manager.is_alive()
    if not how:  # a process has its grace
        until(lambda: not running(plane, id), 10)
        assert (plane.get(id) or {})["state"] == "queued"
    for row in plane.invocations():
        plane.cancel(row["id"])


def test_a_process_drains_when_its_kernel_is_killed(kernels: Callable[[], Kernel], plane: Dispatch) -> None:
    kernel = kernels()
    kernel.run("w = %lakeshore worker start gpu --process")
    pid = int(kernel.value("w._daemon.pid"))
    kernel.run(FRAMES)
    kernel.run(FRAMES)
    first = min(row["id"] for row in plane.invocations())
    until(lambda: running(plane, first))
    os.kill(kernel.pid(), signal.SIGKILL)
    until(lambda: not alive(pid))
    assert sorted(row["state"] for row in plane.invocations()) == ["queued", "succeeded"]


def test_what_bodies_print_and_bars_draw_lands_in_no_cell(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    kernel.run("%lakeshore worker start gpu")
    kernel.run(
        "%%lakeshore submit gpu -q -o job\nimport sys, time, threading\nfrom lakeshore import track\n"
        "from tqdm import tqdm\nfrom rich.progress import track as rich_track\n"
        "for _ in range(10):\n  print('BODY'); sys.stderr.write('BODY'); display('BODY'); time.sleep(.02)\n"
        "threading.Thread(target=print, args=('BODY',)).start()\n"
        "for n in tqdm(range(2000)): time.sleep(0.0002)\n"
        "for n in rich_track(range(200)): time.sleep(0.001)\n"
        "for n in track(range(300), description='steps'): pass\n'done'"
    )
    said = ""
    while kernel.run("%lakeshore wait job --timeout 0.01").status != "ok":
        said += kernel.run("import time; time.sleep(0.05); print('cell')").text
    assert "BODY" not in said
    assert "%|" not in said
    kernel.run("from lakeshore import SyncQueue\nq = SyncQueue('gpu')")
    logs = kernel.run("%lakeshore logs job").text
    assert logs.count("BODY") >= 21
    assert len(logs.splitlines()) < 200
    progress = kernel.value("[v for v in q.topic(f'{job}.progress').listen(timeout=0.2)]")
    assert progress[-1]["done"] == 300
    assert len(progress) < 50


def test_a_body_asks_in_no_cell(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    kernel.run(
        "import builtins, getpass, time\nbefore = input.__name__, type(get_ipython().kernel.raw_input)"
    )
    kernel.run("%load_ext lakeshore\n%lakeshore worker start gpu")
    ask = "%%lakeshore submit gpu -q --retries 0 -o {}\nimport time; time.sleep({}); input('BODY')"
    kernel.run(ask.format("in_a_cell", 0.3))
    assert kernel.run("time.sleep(0.6)").text == ""
    kernel.run(ask.format("between", 0))
    for job in ("in_a_cell", "between"):
        said = kernel.run(f"%lakeshore result {job} --timeout 20").text
        assert "InputRefused: input('BODY'): a job cannot ask" in said
    kernel.run("%lakeshore worker stop gpu")
    assert kernel.value("(input.__name__, type(get_ipython().kernel.raw_input)) == before")
    assert "raw_input" not in kernel.value("list(vars(get_ipython().kernel))")


def test_the_workers_line_is_kept_up_and_tells_of_process(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    first = kernel.run("%lakeshore worker start gpu")
    assert "running, 0 executed" in first.text
    came = kernel.run(
        "%%lakeshore submit gpu -q\nimport ctypes\nctypes.PyDLL(None).usleep(1_600_000)"
    ).outputs
    said = ""
    while "--process" not in said:  # whichever request it comes with
        if not came:
            message = kernel.client.get_iopub_msg(timeout=20)
            came = [(message["msg_type"], message["content"])]
        kind, content = came.pop(0)
        if kind == "update_display_data":
            said = content["data"]["text/plain"]
    assert "running, 1 executed\nthe kernel stood still for" in said
    again = kernel.run("%lakeshore worker start gpu")
    places = [
        content["transient"]["display_id"]
        for reply in (first, again)
        for kind, content in reply.outputs
        if kind == "display_data"
    ]
    assert len(places) == 2
    assert len(set(places)) == 1, "one panel, shown twice"
    stopped = kernel.run("%lakeshore worker stop")
    assert stopped.status == "ok"


def test_unloading_leaves_nothing(kernels: Callable[[], Kernel]) -> None:
    kernel = kernels()
    look = (
        "[sorted(t.name for t in threading.enumerate() if 'lakeshore' in t.name), "
        "'lakeshore' in ip.magics_manager.magics['line'], 'lakeshore' in ip.magics_manager.magics['cell'], "
        "len(ip.Completer.custom_matchers), sorted(map(str, formatter.deferred_printers)), "
        "type(sys.stdout).__module__, type(sys.stderr).__module__, len(ip.events.callbacks['pre_run_cell'])]"
    )
    kernel.run(
        "import sys, threading\nip = get_ipython()\n"
        "formatter = ip.display_formatter.ipython_display_formatter"
    )
    kernel.run("%unload_ext lakeshore")
    before = kernel.value(look)
    kernel.run("%load_ext lakeshore\n%reload_ext lakeshore")
    assert kernel.value(look)[1:3] == [True, True]
    kernel.run(
        "%lakeshore worker start gpu\nfrom lakeshore import SyncQueue\nw = SyncQueue('other').worker()\nw"
    )
    kernel.run("%%lakeshore submit gpu\nimport time\ntime.sleep(0.1)")
    kernel.run("%%lakeshore submit nobody\n1")
    kernel.run("w.stop()\n%unload_ext lakeshore")
    until(lambda: kernel.value(look) == before, 5)


def test_two_kernels_share_the_work(kernels: Callable[[], Kernel]) -> None:
    client, server = kernels(), kernels()
    server.run("%lakeshore worker start gpu")
    client.run("rate = 3")
    reply = client.run("%%lakeshore submit gpu --wait 20 -r value\nprint('there')\nrate * 14")
    assert reply.status == "ok", reply.text
    assert client.value("value") == 42
    assert "rate" not in server.value("[n for n in globals() if n == 'rate']")
    assert "there" not in server.run("1").text
