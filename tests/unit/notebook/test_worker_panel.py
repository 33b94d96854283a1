"""The panel of a worker in the kernel: what its line says, when it is sent, and the hint at `--process`."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from lakeshore import Dispatch, SyncQueue
from lakeshore.notebook import worker_panel
from lakeshore.notebook.worker_panel import WorkerPanel, show_worker
from tests.unit.notebook.conftest import Notebook


class Fake:
    """A worker as the panel sees one."""

    queue, running, state, executed = "gpu", True, "running", 0
    current: str | None = None
    error: Any = None


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What panels publish: the text, and whether it replaces a display."""
    out: list[tuple[str, bool]] = []

    def publish(bundle: dict[str, Any], display_id: str, *, update: bool = False) -> None:
        assert bundle["text/html"].startswith("<div")
        out.append((bundle["text/plain"], update))

    monkeypatch.setattr(worker_panel, "publish", publish)
    return out


def test_it_is_sent_when_something_changed_and_at_most_once_a_second(sent: list[tuple[str, bool]]) -> None:
    worker = Fake()
    panel = WorkerPanel(worker, None, "thread")
    panel.show()
    assert sent == [("worker for 'gpu' (thread): running, 0 executed", False)]
    assert panel.tick(1.0) == 0
    worker.executed, worker.current = 1, "01JOB"
    assert panel.tick(1.5) == 0
    assert panel.tick(2.0) == 1
    assert sent[-1] == ("worker for 'gpu' (thread): running, 1 executed, now 01JOB", True)
    worker.current, worker.running, worker.state = None, False, "stopped"
    assert panel.tick(2.1) == 1
    assert sent[-1] == ("worker for 'gpu' (thread): stopped, 1 executed", True)
    assert panel.over


def test_a_line_with_a_job_says_when_it_was_true(monkeypatch: pytest.MonkeyPatch) -> None:
    out: list[str] = []
    monkeypatch.setattr(worker_panel, "publish", lambda bundle, *_, **__: out.append(bundle["text/html"]))
    worker = Fake()
    panel = WorkerPanel(worker, None, "thread")
    panel.show()
    assert "as of" not in out[-1]
    worker.current = "01JOB"
    panel.tick(2.0)
    assert ", now 01JOB, as of 20" in out[-1] and "UTC" in out[-1]


def test_a_worker_that_ended_by_itself_says_why(sent: list[tuple[str, bool]]) -> None:
    worker = Fake()
    worker.running, worker.error = False, RuntimeError("<no plane>")
    WorkerPanel(worker, None, "thread").show()
    assert sent == [("worker for 'gpu' (thread): ended: RuntimeError: <no plane>", False)]


def test_the_panel_keeps_no_worker_alive(sent: list[tuple[str, bool]]) -> None:
    worker = Fake()
    panel = WorkerPanel(worker, None, "thread")
    del worker
    assert "stopped" in panel.text()


def test_a_kernel_that_stands_still_is_told_of_process(
    sent: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, real = Fake(), time.monotonic
    worker.current = "01JOB"
    panel = WorkerPanel(worker, None, "thread")
    jump = iter([0.0])
    monkeypatch.setattr(worker_panel.time, "monotonic", lambda: real() + next(jump, 3.0))
    watch = threading.Thread(target=panel._watch_lag, daemon=True)
    watch.start()
    end = real() + 10
    while not panel.hint and real() < end:
        pass
    panel.close()
    watch.join(5)
    assert "01JOB" in panel.hint
    assert "--process" in panel.text()


def test_the_names_of_jobs_and_one_panel_a_worker(nb: Notebook, sent: list[tuple[str, bool]]) -> None:
    nb("%%lakeshore submit gpu -q\ndef train(): return 1")
    worker = Fake()
    worker.current = nb.names["_lakeshore"]
    panel = show_worker(worker, plane=nb.plane)
    assert sent[-1][0].endswith(f"now {worker.current} train")
    assert show_worker(worker) is panel
    assert len(sent) == 2


def test_every_way_to_a_worker_shows_it(nb: Notebook) -> None:
    first = nb.run("%lakeshore worker start gpu")
    again = nb.run("%lakeshore worker start gpu")
    assert "worker for 'gpu' (thread): running" in first.out
    assert again.value is first.value
    assert first.out.partition(":")[2] == again.out.partition(":")[2]
    nb("from lakeshore import SyncQueue\nw = SyncQueue('other').worker()")
    assert "worker for 'other' (thread): running, 0 executed" in nb.run("w").out
    nb("w.stop()")
    assert "stopped" in nb.run("w").out


def test_a_worker_is_shown_without_the_extension(bare_shell: InteractiveShell) -> None:
    shell = bare_shell
    with capture_output() as shown:
        shell.run_cell(
            "from lakeshore import Dispatch, SyncQueue\n"
            "q = SyncQueue('gpu', dispatch=Dispatch(':memory:'))\nw = q.worker(concurrency=2)\nw"
        )
    said = [output.data["text/plain"] for output in shown.outputs]
    assert said == ["worker for 'gpu' (2 threads): running, 0 executed"]
    with capture_output():
        shell.run_cell("w.stop(); q.plane.close()")


def test_the_cell_of_a_worker_may_run_again(nb: Notebook) -> None:
    nb("from lakeshore import SyncQueue\nq = SyncQueue('other')")
    first = nb.run("w = q.worker(); w").value
    assert nb.run("w = q.worker(); w").value is first
    assert nb.run("SyncQueue('other').worker()").value is first
    assert nb.run("other = q.worker(concurrency=2); other").value is not first
    nb("with q.worker() as held: pass")
    assert first.running
    nb("w.stop()")
    again = nb.run("w = q.worker(); w").value
    assert again is not first
    nb("other.stop(); w.stop()")


def test_a_worker_that_ended_says_so(nb: Notebook) -> None:
    nb("from lakeshore import SyncQueue\nw = SyncQueue('other').worker()\nw.stop()")
    assert "stopped" in nb.run("w").out


def test_the_end_of_a_process_is_counted() -> None:
    from lakeshore.notebook.worker import _Daemon

    daemon = _Daemon.__new__(_Daemon)
    daemon._tail, daemon.executed, daemon.current = __import__("collections").deque(), 0, None
    daemon._take("01:28:21 start 01JOB pow attempt 1")
    assert (daemon.executed, daemon.current) == (1, "01JOB")
    daemon._take("01:28:21 retry 01JOB pow after 0.00 s: ValueError: math")
    daemon._take("not a line of the daemon's")
    assert (daemon.executed, daemon.current) == (1, None)


def test_a_worker_shown_without_a_kernel_is_text_once(sent: list[tuple[str, bool]], nb: Notebook) -> None:
    queue = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
    with queue.worker() as worker:
        panel = show_worker(worker)
        assert not panel.over
        assert not [t for t in threading.enumerate() if t.name == "lakeshore-lag"]
    queue.plane.close()
    assert len(sent) == 1
