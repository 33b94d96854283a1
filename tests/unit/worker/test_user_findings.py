"""What people met in their first days: lost results, needless second tries, wedged stops, false refusals."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from lakeshore import WorkerThread, run, thunk
from lakeshore.errors import InvocationFailed
from lakeshore.functions import transport
from lakeshore.worker import display, figures, output

INTERNALS = ("msgpack", "_Walk", "During handling", "lakeshore/wire", "_packer")


class Model:
    def __init__(self, times=None):
        self.times = times

    def __repr__(self):
        return "<Model of 3 hours>"

    def _repr_html_(self):
        return "<b>Model</b>"


def unpackable(form):
    def result():
        return {"model": Model(), "loss": 0.5} if form == "dict" else Model()

    def yields():
        yield 1
        yield Model()

    async def later():
        yield 1
        yield Model()

    return {"dict": result, "object": result, "yield": yields, "async yield": later}[form]


@pytest.fixture(params=["inline", "process"])
def isolation(request):
    return request.param


@pytest.mark.parametrize("form", ["dict", "object", "yield", "async yield"])
def test_what_cannot_be_packed_fails_at_once_and_leaves_its_display(q, drain, form, isolation):
    inv = q.submit(thunk(unpackable(form)))
    assert drain(retries=3, isolation=isolation) == 1
    with pytest.raises(InvocationFailed) as caught:
        q.result(inv)
    assert caught.value.type == "PackError"
    assert ('at ["model"]' if form == "dict" else "no codec for 'Model'") in caught.value.message
    assert not [word for word in INTERNALS if word in str(caught.value)]
    (shown,) = [item["display"] for item in q.logs(inv, timeout=0.1)]
    assert "<Model of 3 hours>" in shown["text/plain"]
    assert ("text/html" in shown) is (form != "dict")


@pytest.mark.parametrize("form", ["figure", "axes", "pair"])
def test_a_returned_figure_is_told_to_be_shown_already(q, drain, form):
    def draw(form):
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(1, 1))
        return {"figure": figure, "axes": axes, "pair": (figure, axes)}[form]

    pytest.importorskip("matplotlib")
    inv = q.submit(thunk(draw, form))
    assert drain() == 1
    with pytest.raises(InvocationFailed, match="shown in the job's log as it is: return nothing of it"):
        q.result(inv)
    assert sum("image/png" in item.get("display", ()) for item in q.logs(inv)) == 1


def test_a_returned_object_is_told_how_it_can_be_kept(q, drain):
    inv = q.submit(thunk(Model))
    drain()
    with pytest.raises(InvocationFailed, match=r"pickle it into run\.write\('it\.pkl'\)"):
        q.result(inv)


def test_a_stream_ends_with_the_refusal_of_its_last_value(q, drain):
    stream = q.stream(q.submit(thunk(unpackable("yield"))))
    drain(retries=3)
    got = []
    with pytest.raises(InvocationFailed, match="no codec for 'Model'"):
        got.extend(stream)
    assert next(iter(q.stream(stream.id))) == 1


def test_a_display_that_fails_leaves_the_refusal(q, drain):
    class Bad:
        def __repr__(self):
            raise RuntimeError("no repr")

    inv = q.submit(thunk(Bad))
    assert drain(retries=3) == 1
    with pytest.raises(InvocationFailed, match="no codec for 'Bad'"):
        q.result(inv)
    (line,) = q.logs(inv, timeout=0.1)
    assert "its display raised RuntimeError" in line["text"]


def test_the_last_look_at_much_is_short():
    look = display.last_look([{"n": list(range(100_000))}] * 10_000 + ["x" * 10_000_000])
    assert len(look["text/plain"]) < 1_000_000


def test_a_body_that_raises_is_still_tried_again(q, drain):
    def job():
        raise TypeError("mine")

    inv = q.submit(thunk(job))
    assert drain(retries=1) == 2
    with pytest.raises(InvocationFailed, match="mine"):
        q.result(inv)


@pytest.mark.parametrize("form", ["path", "text", "in a list", "nothing"])
def test_a_broken_key_contract_fails_at_once_and_says_what_was_returned(q, drain, tmp_path, form):
    def job():
        path = run.write("x.txt")
        path.write_text("hello")
        return {"path": path, "text": str(path), "in a list": [{"a": path}], "nothing": None}[form]

    inv = q.submit(thunk(job))
    assert drain(retries=3, root=tmp_path) == 1
    with pytest.raises(InvocationFailed) as caught:
        q.result(inv)
    assert (caught.value.type, caught.value.traceback) == ("KeyContractError", None)
    said = "returned the path that run.write gave; return the key 'x.txt'"
    assert (said in caught.value.message) is (form != "nothing")
    assert ("was written but not returned" in caught.value.message) is (form == "nothing")


# -- IPython's display by reference


def test_ipythons_display_is_a_job_like_any_other(q, drain, isolation):
    functions = pytest.importorskip("IPython.core.display_functions")
    original = functions.display
    inv = q.submit(thunk(original, {"a": 1}))
    assert drain(retries=0, isolation=isolation) == 1
    q.result(inv)
    assert [item["display"]["text/plain"] for item in q.logs(inv, timeout=0.1)] == ["{'a': 1}"]
    assert functions.display is original


def test_the_display_of_a_worker_ships_as_the_original():
    functions = pytest.importorskip("IPython.core.display_functions")
    told = transport.describe(functions.display)
    with output.Capture():
        assert functions.display.__name__ == "display"
        assert transport.describe(functions.display) == told
        assert pickle.loads(pickle.dumps(functions.display)) is functions.display


# -- stop


@pytest.fixture
def stuck(q):
    """A worker whose one body sits in C code until the test's end."""
    gate, began = threading.Lock(), threading.Event()
    gate.acquire()

    def job():
        began.set()
        gate.acquire()

    worker = WorkerThread(q, registry={"stuck_job": job}, lease=30.0)
    # by name, since a lock does not travel
    inv = q.submit(envelope=_envelope("stuck_job"))
    worker.start()
    assert began.wait(5)
    yield worker, inv
    gate.release()
    worker._thread.join(10)
    assert not worker.running


def _envelope(name):
    from lakeshore import wire

    fn = {"kind": "ref", "module": "nowhere", "qualname": name}
    return wire.Envelope(id="stuck-1", fn=fn, args=wire.pack([]), kwargs=wire.pack({})).to_bytes()


def test_stop_does_not_wait_for_a_cancelled_body_in_c(q, stuck):
    worker, inv = stuck
    q.cancel(inv)
    began = time.monotonic()
    assert worker.stop() is False
    assert time.monotonic() - began < 6
    assert worker.running
    assert worker.stopping
    assert "stopping" in repr(worker)
    with WorkerThread(q) as other:
        assert q.call(thunk(lambda: 3), timeout=10) == 3
        assert other.executed == 1
    assert worker.executed == 1


def test_stop_is_bounded_by_its_timeout(stuck):
    worker, inv = stuck
    began = time.monotonic()
    assert worker.stop(timeout=0.2) is False
    assert time.monotonic() - began < 1.5
    assert worker.state == "stopping"


def test_a_job_handed_back_over_a_stuck_body_is_done_by_the_next_worker(q, stuck):
    worker, inv = stuck
    assert worker.stop(drain=False) is False
    assert q.status(inv)["state"] == "queued"
    with WorkerThread(q, registry={"stuck_job": lambda: "done"}):
        assert q.result(inv, timeout=10) == "done"
    assert worker.executed == 1


def test_the_states_of_a_worker(q):
    worker = WorkerThread(q)
    assert (worker.state, worker.stopping) == ("stopped", False)
    worker.start()
    assert (worker.state, worker.stopping) == ("running", False)
    assert worker.stop()
    assert (worker.state, worker.stopping) == ("stopped", False)


# -- widgets and bars


def test_a_widget_is_shown_as_its_text():
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Slider()"}
    assert display.bounded(view) == {"text/plain": "Slider()"}


def test_notebook_bars_are_text_in_a_body(q, drain, isolation):
    pytest.importorskip("tqdm")
    pytest.importorskip("ipywidgets")

    def job():
        import warnings

        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as auto
        from tqdm.notebook import tqdm as notebook

        for _ in auto(range(3), desc="auto"):
            pass
        with notebook(total=4, desc="notebook") as bar:
            bar.update(4)
            bar.reset(2)
            bar.update(2)

    inv = q.submit(thunk(job))
    drain(retries=0, isolation=isolation)
    q.result(inv)
    items = list(q.logs(inv, timeout=0.1))
    text = "".join(item.get("text", "") for item in items)
    assert "auto: 100%" in text
    assert "notebook: 100%" in text
    assert not [item for item in items if "display" in item]


def test_all_is_put_back_after_the_last_worker():
    notebook = pytest.importorskip("tqdm.notebook")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from matplotlib._pylab_helpers import Gcf

    before = notebook.tqdm_notebook.__init__, pyplot._get_backend_mod, Gcf.figs
    with output.Capture():
        assert notebook.tqdm_notebook.__init__ is not before[0]
        assert isinstance(Gcf.figs, figures._Figures)
    assert (notebook.tqdm_notebook.__init__, pyplot._get_backend_mod, Gcf.figs) == before
