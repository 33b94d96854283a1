"""matplotlib in bodies: what is shown goes to the job's log, the rest of the process sees none of it."""

from __future__ import annotations

import os
import subprocess
import sys

import nbclient
import nbformat
import pytest

from lakeshore import Dispatch, SyncQueue, run_worker, thunk

pytest.importorskip("matplotlib")


@pytest.fixture
def q():
    plane = Dispatch(":memory:")
    yield SyncQueue("gpu", dispatch=plane)
    plane.close()


@pytest.fixture(params=["inline", "process"])
def shown(request, q):
    """Run one job; returns the kinds of what its log holds."""

    def of(job):
        inv = q.submit(thunk(job))
        run_worker(q, once=True, retries=0, isolation=request.param)
        items = list(q.logs(inv, timeout=0.1))
        q.result(inv)
        return ["png" if "image/png" in item.get("display", ()) else item for item in items]

    return of


def test_show_writes_the_open_figures_and_closes_them(shown):
    def job():
        import matplotlib.pyplot as plt

        def inner():
            plt.plot([1, 2])
            plt.figure()
            plt.plot([2, 1])
            plt.show()

        inner()
        assert plt.get_fignums() == []
        plt.show()

    assert shown(job) == ["png", "png"]


def test_a_figure_left_open_is_shown_once(shown):
    def job():
        import matplotlib.pyplot as plt

        plt.plot([1, 2])

    assert shown(job) == ["png"]


def test_a_figure_displayed_is_not_shown_again_unless_it_changed(shown):
    def job():
        import matplotlib.pyplot as plt

        same, axes = plt.subplots()
        axes.plot([1])
        display(same)  # noqa: F821 - a notebook has it built in, and so has a body
        changed, axes = plt.subplots()
        display(changed)  # noqa: F821
        axes.plot([2])
        plt.figure().show()
        plt.close()

    assert shown(job) == ["png"] * 4


def test_a_closed_or_saved_figure_is_not_shown(shown, tmp_path):
    file = str(tmp_path / "a.png")

    def job():
        import matplotlib.pyplot as plt

        plt.plot([1])
        plt.savefig(file)
        plt.close("all")

    assert shown(job) == []
    assert os.path.getsize(file)


def test_the_bodys_threads_share_its_figures(shown):
    def job():
        import threading

        import matplotlib.pyplot as plt

        thread = threading.Thread(target=lambda: plt.plot([1]))
        thread.start()
        thread.join()
        assert plt.get_fignums() == [1]

    assert shown(job) == ["png"]


def test_figures_of_a_body_that_fails_are_shown(q):
    def job():
        import matplotlib.pyplot as plt

        plt.plot([1])
        raise ValueError("diverged")

    inv = q.submit(thunk(job))
    run_worker(q, once=True, retries=0)
    (item,) = q.logs(inv, timeout=0.1)
    assert "image/png" in item["display"]
    assert q.status(inv)["error"] == "ValueError: diverged"


def test_a_figure_that_cannot_be_drawn_does_not_fail_the_job(shown):
    def job():
        import matplotlib.pyplot as plt

        plt.title(r"$\nonsense{$")

    (item,) = shown(job)
    assert "figure 1 cannot be shown" in item["text"]


def test_figures_of_others_are_not_touched(q):
    import matplotlib.pyplot as plt

    backend = plt.get_backend()
    mine = plt.figure()
    try:

        def job():
            import matplotlib.pyplot as plt

            before = plt.get_fignums()
            plt.plot([1])
            plt.close("all")
            return before

        inv = q.submit(thunk(job))
        run_worker(q, once=True, retries=0)
        assert q.result(inv) == []
        assert plt.get_fignums() == [mine.number]
        assert plt.gcf() is mine
        assert mine.axes == []
        assert plt.get_backend() == backend
    finally:
        plt.close("all")


BACKEND = """
import os, sys
from lakeshore import Dispatch, SyncQueue, run_worker, thunk
q = SyncQueue("q", dispatch=Dispatch(":memory:"))
def job():
    import os, sys
    return os.environ["MPLBACKEND"], "matplotlib" in sys.modules
inv = q.submit(thunk(job))
before = os.environ.get("MPLBACKEND")
run_worker(q, once=True, isolation="process", retries=0)
assert os.environ.get("MPLBACKEND") == before
print(*q.result(inv))
"""


@pytest.mark.parametrize(
    ("given", "chosen"),
    [(None, "agg"), ("module://matplotlib_inline.backend_inline", "agg"), ("svg", "svg")],
)
def test_the_child_opens_no_window_and_loads_no_matplotlib(given, chosen):
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    if given is not None:
        environment["MPLBACKEND"] = given
    done = subprocess.run(
        [sys.executable, "-c", BACKEND],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [chosen, "False"]


CELLS = [
    """
from lakeshore import Dispatch, SyncQueue, thunk
q = SyncQueue("gpu", dispatch=Dispatch(":memory:"))
worker = q.worker()

def job(show):
    import matplotlib.pyplot as plt
    plt.plot([1, 2, 3])
    if show:
        plt.show()

def kinds(inv):
    return [sorted(item.get("display", item)) for item in q.logs(inv)]
""",
    "for show in (False, True):\n    inv = q.submit(thunk(job, show)); q.result(inv); print(kinds(inv))",
    """
import matplotlib.pyplot as plt
plt.plot([3, 2])
for show in (False, True):
    inv = q.submit(thunk(job, show)); q.result(inv); print(kinds(inv))
len(plt.gca().lines)
""",
    """
def bars():
    from tqdm.auto import tqdm
    for _ in tqdm(range(3)):
        pass
inv = q.submit(thunk(bars)); q.result(inv)
print(["100%" in item.get("text", "") for item in q.logs(inv)])
""",
    "worker.stop()",
]


def test_in_a_kernel_nothing_of_a_job_reaches_a_cell(home):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]
    printed = ["".join(output.text for output in cell if output.output_type == "stream") for cell in outputs]
    shown = [[output for output in cell if output.output_type != "stream"] for cell in outputs]
    assert printed[1:4] == ["[['image/png', 'text/plain']]\n" * 2] * 2 + ["[True]\n"]
    assert not shown[1]
    count, figure = sorted(shown[2], key=lambda output: output.output_type, reverse=True)
    assert count.output_type == "execute_result"
    assert count.data["text/plain"] == "1"
    assert "image/png" in figure.data
    assert not shown[3]
