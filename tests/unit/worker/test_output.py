"""What bodies print and display goes to their job's log; what others print does not."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading

import pytest

from lakeshore import run, thunk
from lakeshore.worker import output


@pytest.fixture
def streams(monkeypatch):
    """Set the process's own stdout and stderr; called in the test, since pytest sets its own before it."""

    def set_streams():
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return set_streams


@pytest.fixture
def work(q, drain):
    """Run one job in a thread that is not the main one, as a kernel does; returns its log."""

    def log_of(job, **options):
        inv = q.submit(thunk(job).with_options(**options))
        worker = threading.Thread(target=lambda: drain(retries=0))
        worker.start()
        worker.join()
        q.result(inv)
        return list(q.logs(inv, timeout=0.1))

    return log_of


def test_prints_go_to_the_log_and_nowhere_else(work, streams):
    out, err = streams()

    def job():
        print("out")
        print("err", file=sys.stderr)

    log = work(job)
    assert {(item["stream"], item["text"]) for item in log} == {("stdout", "out\n"), ("stderr", "err\n")}
    assert [out.getvalue(), err.getvalue()] == ["", ""]


def test_the_bodys_threads_count_as_the_body(work, streams):
    out, err = streams()

    def job():
        from concurrent.futures import ThreadPoolExecutor
        from threading import Thread

        thread = Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()
        with ThreadPoolExecutor() as pool:
            pool.submit(print, "from a pool").result()

    text = "".join(item["text"] for item in work(job))
    assert "from a thread\n" in text
    assert "from a pool\n" in text
    assert out.getvalue() == ""


def test_others_print_where_they_always_did(work, streams):
    out, err = streams()
    with output.Capture():
        print("before")
        log = work(lambda: print("job"))
        print("after")
    assert [item["text"] for item in log] == ["job\n"]
    assert out.getvalue() == "before\nafter\n"


def test_the_streams_are_put_back(work, streams):
    out, err = streams()
    work(lambda: None)
    assert sys.stdout is out
    assert sys.stderr is err


def test_log_handlers_that_hold_the_stream_follow(work, streams):
    out, err = streams()
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:

        def job():
            import logging

            logging.getLogger("mine").warning("careful")

        log = work(job)
        assert {"stream": "stderr", "text": "careful\n"} in log
        assert "careful" not in err.getvalue()
        assert handler.stream is err
    finally:
        logging.getLogger().removeHandler(handler)


def test_bytes_and_odd_uses_of_a_stream(work, streams):
    out, err = streams()

    def job():
        sys.stdout.buffer.write("é\n".encode())
        sys.stdout.writelines(["a", "b\n"])
        sys.stdout.flush()
        assert not sys.stdout.isatty()
        assert sys.stdout.writable()
        sys.stdout.close()
        print("still", end="")

    assert "".join(item["text"] for item in work(job)) == "é\nab\nstill"
    assert not out.closed


def test_a_stream_set_in_between_is_led_too(q, work, streams):
    out, err = streams()
    with output.Capture():
        sys.stdout = cell = io.StringIO()
        assert [item["text"] for item in work(lambda: print("job"))] == ["job\n"]
        print("cell")
        assert cell.getvalue() == "cell\n"
        sys.stdout = sys.stdout.original


def test_log_false_writes_none(work, streams):
    out, err = streams()
    assert work(lambda: print("hush"), log=False) == []


def test_display_and_run_display_become_frames(work, streams):
    out, err = streams()

    class Table:
        def _repr_html_(self):
            return "<b>1</b>"

        def __repr__(self):
            return "one"

    def job():
        run.display(Table())
        display("text")  # noqa: F821 - a notebook has it built in, and so has a body
        return

    shown = [item["display"] for item in work(job)]
    assert shown == [{"text/plain": "one", "text/html": "<b>1</b>"}, {"text/plain": "'text'"}]


def test_ipython_display_becomes_a_frame(work, streams):
    pytest.importorskip("IPython")
    out, err = streams()

    def job():
        from IPython.display import HTML, display

        display(HTML("<i>x</i>"))

    (item,) = work(job)
    assert item["display"]["text/html"] == "<i>x</i>"
    assert out.getvalue() == ""


def test_a_figure_is_shown_as_png(work, streams):
    pytest.importorskip("matplotlib")
    out, err = streams()

    def job():
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot([1, 2])
        run.display(figure)

    (item,) = work(job)
    assert item["display"]["image/png"].startswith("iVBOR")


def test_a_display_over_a_mebibyte_is_made_smaller(work, streams):
    pytest.importorskip("PIL")
    out, err = streams()

    def job():
        import os

        from PIL import Image

        run.display(Image.frombytes("RGB", (1200, 1200), os.urandom(1200 * 1200 * 3)))
        run.display("x" * 3_000_000)

    picture, text = [item["display"] for item in work(job)]
    assert "image/jpeg" in picture
    assert sum(map(len, picture.values())) <= 1024 * 1024
    assert "characters" in text["text/plain"]
    assert len(text["text/plain"]) <= 1024 * 1024


def test_capturing_loads_no_ipython():
    code = (
        "import sys; from lakeshore import Dispatch, SyncQueue, run_worker, thunk\n"
        "q = SyncQueue('q', dispatch=Dispatch(':memory:')); q.submit(thunk(print, 'x'))\n"
        "run_worker(q, once=True); assert 'IPython' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_body_may_redirect_its_own_output(work, streams):
    out, _ = streams()

    def job():
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as mine:
            print("kept")
        print("told")
        assert mine.getvalue() == "kept\n"

    assert [item["text"] for item in work(job)] == ["told\n"]
    assert out.getvalue() == ""
