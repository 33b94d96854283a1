"""`%lakeshore` and `%%lakeshore` in a shell in this process."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from lakeshore import Dispatch, SyncQueue, thunk, wire
from lakeshore.errors import InvocationFailed, UnknownInvocation, WaitTimeout
from lakeshore.planes.default import default_plane, set_default_plane
from tests.unit.notebook.conftest import Notebook

JOB = "%%lakeshore submit gpu -q\ndef job():\n    return 3"


# -- loading


def test_loading_twice_leaves_one_of_each(nb: Notebook) -> None:
    matchers, threads = len(nb.shell.Completer.custom_matchers), threading.active_count()
    events = {name: len(callbacks) for name, callbacks in nb.shell.events.callbacks.items()}
    nb("%load_ext lakeshore\n%reload_ext lakeshore\n%reload_ext lakeshore")
    import lakeshore

    lakeshore.load_ipython_extension(nb.shell)
    assert len(nb.shell.Completer.custom_matchers) == matchers
    assert {name: len(callbacks) for name, callbacks in nb.shell.events.callbacks.items()} == events
    nb(JOB)
    assert nb.plane.count("gpu") == 1
    assert threading.active_count() == threads


def test_reloading_hands_a_running_job_back_at_once(nb: Notebook) -> None:
    nb("%lakeshore worker start gpu")
    nb("%%lakeshore submit gpu -q\nimport time\nwhile True:\n    time.sleep(0.01)")
    id = nb.names["_lakeshore"]
    while (nb.plane.get(id) or {})["state"] != "running":
        time.sleep(0.01)
    started = time.monotonic()
    nb("%reload_ext lakeshore")
    assert time.monotonic() - started < 5
    row = nb.plane.get(id)
    assert row is not None
    assert (row["state"], row["attempt"]) == ("queued", 0)
    assert nb("%lakeshore worker status") == []


def test_unloading_removes_all(nb: Notebook) -> None:
    nb("%lakeshore worker start gpu")
    nb("%unload_ext lakeshore")
    assert not nb.shell.Completer.custom_matchers
    assert nb.shell.find_line_magic("lakeshore") is None
    assert nb.shell.find_cell_magic("lakeshore") is None
    assert not [t for t in threading.enumerate() if t.name.startswith("lakeshore-worker")]
    assert "not found" in nb.run("%lakeshore ls").err
    nb("%load_ext lakeshore")
    assert nb("%lakeshore ls") == []


def test_the_first_cell_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "from IPython.core.interactiveshell import InteractiveShell as S; ip = S.instance(); import sys; "
        "ip.run_line_magic('load_ext', 'lakeshore'); "
        "print([m for m in ('httpx', 'cloudpickle', 'ipywidgets', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip().splitlines()[-1] == "[]", run.stdout + run.stderr


# -- help


@pytest.mark.parametrize("line", ["%lakeshore -h", "%lakeshore help", "%lakeshore submit_help"])
def test_help(nb: Notebook, line: str) -> None:
    if line == "%lakeshore submit_help":
        line = "%lakeshore help submit"
    assert "%%lakeshore submit" in nb.run(line).out


def test_help_of_a_command(nb: Notebook) -> None:
    cell = nb.run("%lakeshore ls --help")
    assert cell.error is None
    assert "--state" in cell.out
    assert "--retries" in nb.run("%%lakeshore submit --help\nx = 1").out
    for line in ("%lakeshore submit -h", "%lakeshore submit gpu --help  # how?"):
        assert "--retries" in nb.run(line).out
    assert nb.plane.queues() == {}


@pytest.mark.parametrize("ask", ["%lakeshore?", "%%lakeshore?"])
def test_question_mark_lists_all(nb: Notebook, ask: str) -> None:
    shown = nb.run(ask).out
    assert all(word in shown for word in ("submit", "--max-size", "worker", "requeue", "--older-than"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("%lakeshore sumbit gpu", "Did you mean submit"),
        ("%lakeshore canel x", "Did you mean cancel"),
        ("%lakeshore submit gpu", "use %%lakeshore submit"),
        ("%%lakeshore ls\nx = 1", "on a line of its own"),
        ("%%lakeshore gpu\nx = 1", "Did you mean %%lakeshore submit gpu"),
        ("%%lakeshore\nx = 1", "submit"),
        ("%lakeshore ls --stat queued", "Did you mean --state"),
        ("%lakeshore ls --state lost", "queued"),
        ("%lakeshore worker", "start"),
        ("%lakeshore worker strat gpu", "start"),
        ("%lakeshore stream", "REF"),
        ("%lakeshore cancel", "REFs"),
        ("%lakeshore cancel --all", "--queue Q --all"),
        ("%lakeshore cancel --queue gpu", "--queue Q --all"),
        ("%lakeshore help nope", "no command"),
        ("%lakeshore ls $nope", "nope"),
        ("%lakeshore ls {nope}", "nope"),
    ],
)
def test_usage_errors_are_one_line(nb: Notebook, text: str, says: str) -> None:
    cell = nb.run(text)
    assert type(cell.error) is UsageError
    assert says in cell.err
    assert cell.err.count("\n") == 1
    assert cell.out == ""


def test_bare_is_status(nb: Notebook) -> None:
    nb(JOB)
    status = nb("%lakeshore")
    assert status["last"] == nb.names["_lakeshore"]
    assert status["queues"][0]["queued"] == 1
    assert "gpu" in repr(status)
    assert "gpu" in status._repr_html_()


# -- looking


def test_ls_returns_rows(nb: Notebook) -> None:
    for _ in range(3):
        nb(JOB)
    nb("%%lakeshore submit cpu -q\nimport math\nmath.pi")
    nb("rows = %lakeshore ls gpu -n 2")
    rows = nb.names["rows"]
    assert [row["queue"] for row in rows] == ["gpu", "gpu"]
    assert rows[0]["id"] in repr(rows)
    assert len(nb("%lakeshore ls")) == 4
    assert nb("%lakeshore ls --state failed") == []
    assert "no jobs in void" in repr(nb("%lakeshore ls void"))
    assert [row["queue"] for row in nb("%lakeshore queues")] == ["cpu", "gpu"]


def test_ls_names_jobs(nb: Notebook) -> None:
    nb("def train(x): return x")
    nb("%%lakeshore submit gpu -q\ntrain(1)")
    nb("%%lakeshore submit gpu -q -n mine\ntrain(1)")
    SyncQueue("gpu", dispatch=nb.plane).submit({"plain": 1})
    rows = nb("%lakeshore ls")
    assert [row["name"] for row in rows] == [None, "mine", "train"]
    assert "train" in repr(rows)


def test_show_writes_times_for_people(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q --delay 1h\n1 + 1")
    record = nb("%lakeshore show _lakeshore")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(in \d+ min\)", record["not_before"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(\d\.\d s ago\)", record["submitted_at"])
    assert not re.search(r"\d{9,}\.", repr(record))


def test_workers_is_worker_status(nb: Notebook) -> None:
    assert nb("%lakeshore workers") == []
    nb("%lakeshore worker start gpu")
    assert [row["queue"] for row in nb("%lakeshore workers")] == ["gpu"]
    assert nb("%lakeshore workers cpu") == []


def test_tables_escape(nb: Notebook) -> None:
    nb.plane.submit("<script>alert(1)</script>", b"", id="x" * 20, key="<b>&")
    for line in ("%lakeshore ls", "%lakeshore queues", "%lakeshore", "%lakeshore doctor"):
        page = nb(line)._repr_html_()
        assert "<script>" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page


def test_a_variable_of_a_function(nb: Notebook) -> None:
    nb(JOB)
    nb("def ask(queue):\n    return get_ipython().run_line_magic('lakeshore', 'ls $queue')")
    assert len(nb("ask('gpu')")) == 1
    assert nb("ask('cpu')") == []


def test_refs(nb: Notebook) -> None:
    nb("def train(x):\n    return x")
    nb("%%lakeshore submit gpu -q -k mine -o one\ntrain(1)")
    nb("%%lakeshore submit gpu -q\nmany = [train(2), train(3)]")
    one, many = nb.names["one"], nb.names["many"]
    for ref in (
        "one",
        one,
        one[:-2] if one[:-2] not in many[0] else one,
        "mine",
        "$one",
        "{one}",
        one.lower(),
    ):
        assert nb(f"%lakeshore show {ref}")["id"] == one
    assert [row["id"] for row in nb("%lakeshore cancel many")] == many
    nb.drain()
    assert nb("%lakeshore result one") == 1
    nb("class Holder:\n    id = one\nholder = Holder()")
    assert nb("%lakeshore result holder") == 1
    cell = nb.run("%lakeshore show train")
    assert isinstance(cell.error, UnknownInvocation)
    assert "holds no id" in cell.err + cell.out
    assert isinstance(nb.run(f"%lakeshore show {one[:3]}").error, UnknownInvocation)
    assert "fits 3 jobs" in nb.refused(f"%lakeshore show {one[:3]}")
    assert isinstance(nb.run("%lakeshore show many").error, UnknownInvocation)


def test_results_keep_their_shape(nb: Notebook) -> None:
    nb("def train(x):\n    return x * 2")
    nb("%%lakeshore submit gpu -q\nruns = {'a': train(1), 'b': [train(2), train(3)]}")
    nb.drain()
    assert nb("%lakeshore result runs") == {"a": 2, "b": [4, 6]}
    assert nb("%lakeshore wait runs") == [2, 4, 6]


def test_logs_show_and_errors(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q -n '<b>named</b>'\nprint('hello')\n1 / 0")
    nb.drain()
    assert str(nb("%lakeshore logs _lakeshore")) == "hello\n"
    assert repr(nb("%lakeshore logs _lakeshore")) == "hello\n"
    record = nb("%lakeshore show _lakeshore")
    assert record["state"] == "failed"
    assert record["options"]["name"] == "<b>named</b>"
    assert "<b>" not in record._repr_html_()
    cell = nb.run("%lakeshore result _lakeshore")
    assert isinstance(cell.error, InvocationFailed)
    assert "ZeroDivisionError" in cell.out
    assert "magics.py" not in cell.out
    assert "1 / 0" in cell.out


def test_wait_gives_up(nb: Notebook) -> None:
    nb(JOB)
    cell = nb.run("%lakeshore wait _lakeshore --timeout 0")
    assert isinstance(cell.error, WaitTimeout)
    assert "still queued" in cell.out
    assert cell.out.count("\n") == 1


# -- doing


def test_cancel_and_requeue(nb: Notebook) -> None:
    nb(JOB)
    nb(JOB)
    (row,) = nb("%lakeshore cancel _lakeshore")
    assert (row["cancelled"], row["state"]) == (True, "cancelled")
    (row,) = nb("%lakeshore cancel _lakeshore")
    assert not row["cancelled"]
    (row,) = nb("%lakeshore requeue _lakeshore")
    assert (row["requeued"], row["state"]) == (True, "queued")
    assert len(nb("%lakeshore cancel --queue gpu --all")) == 2
    assert nb.plane.count("gpu") == 0
    assert nb("%lakeshore cancel --queue gpu --all") == []


def test_prune(nb: Notebook) -> None:
    nb(JOB)
    nb.drain()
    for flags, number, said in [
        ("", 0, "removed 0 jobs that ended more than 30 days ago"),
        ("--older-than 0 --state failed", 0, "removed 0 failed jobs that ended"),
        ("--older-than 1h", 0, "removed 0 jobs that ended more than 1 hour ago"),
        ("--older-than 0s", 1, "removed 1 job that ended"),
    ]:
        removed = nb(f"%lakeshore prune {flags}")
        assert removed == number
        assert repr(removed) == said
    assert nb.plane.queues() == {}


def test_plane(nb: Notebook, tmp_path: Any) -> None:
    assert "memory" in nb("%lakeshore plane")["plane"]
    file = tmp_path / "other.sqlite"
    assert nb(f"%lakeshore plane {file}")["file"] == str(file)
    other = default_plane()
    try:
        nb(JOB)
        assert (other.count("gpu"), nb.plane.count("gpu")) == (1, 0)
        nb(f"%lakeshore plane {file}")
        assert default_plane() is other
    finally:
        set_default_plane(nb.plane)
        other.close()
    nb(f"%%lakeshore submit gpu -q --plane {tmp_path / 'third.sqlite'}\ndef job(): return 1")
    third = Dispatch(tmp_path / "third.sqlite")
    assert (third.count("gpu"), nb.plane.count("gpu")) == (1, 0)
    third.close()


def test_worker_in_the_kernel(nb: Notebook) -> None:
    first = nb("%lakeshore worker start gpu")
    assert nb("%lakeshore worker start gpu") is first
    assert len([t for t in threading.enumerate() if t.name == "lakeshore-worker-gpu"]) == 1
    nb("%%lakeshore submit gpu -q -w 20 -r value\nprint('from the body')\n6 * 7")
    assert nb.names["value"] == 42
    (row,) = nb("%lakeshore worker status")
    assert (row["queue"], row["state"], row["executed"]) == ("gpu", "running", 1)
    assert "running" in repr(first)
    (row,) = nb("%lakeshore worker stop gpu")
    assert (row["state"], row["executed"]) == ("stopped", 1)
    assert nb("%lakeshore worker stop") == nb("%lakeshore worker status") == []
    assert not first.running
    assert nb("%lakeshore worker start gpu") is not first


def test_a_worker_whose_body_does_not_end_is_let_go(nb: Notebook) -> None:
    first = nb("%lakeshore worker start gpu")
    ends = os.pipe()
    nb(f"%%lakeshore submit gpu -q -o job -a fd={ends[0]}\ndef job(fd):\n    import os\n    os.read(fd, 1)")
    id = nb.names["job"]
    while (nb.plane.get(id) or {})["state"] != "running":
        time.sleep(0.01)
    nb("%lakeshore cancel job")
    started = time.monotonic()
    rows = nb("%lakeshore worker stop gpu")
    assert time.monotonic() - started < 4
    assert rows[0]["state"] == "stopping"
    assert f"stopping: {id} does not end; it is let go" in repr(rows)
    assert f"stopping: {id} does not end" in repr(first)
    assert [row["state"] for row in nb("%lakeshore worker status")] == ["stopping"]
    second = nb("%lakeshore worker start gpu")
    assert second is not first
    nb("%%lakeshore submit gpu -q -w 20 -r value\n6 * 7")
    assert nb.names["value"] == 42
    assert [row["state"] for row in nb("%lakeshore worker status")] == ["running", "stopping"]
    os.write(ends[1], b"x")
    while first.running:
        time.sleep(0.01)
    assert [row["state"] for row in nb("%lakeshore worker status")] == ["running"]
    assert "stopped" in repr(nb("%lakeshore worker stop gpu"))
    for end in ends:
        os.close(end)


def test_a_worker_of_another_size_is_said(nb: Notebook) -> None:
    first = nb("%lakeshore worker start gpu")
    cell = nb.run("%lakeshore worker start gpu --threads 3")
    assert cell.value is first
    assert "the worker of 'gpu' runs already, as a thread, and stays so" in cell.out
    assert "%lakeshore worker stop gpu, then worker start gpu --threads 3" in cell.out
    assert "stays so" not in nb.run("%lakeshore worker start gpu").out
    nb("%lakeshore worker start cpu --threads 3")
    assert "stays so" not in nb.run("%lakeshore worker start cpu --threads 3").out
    assert "stays so" not in nb.run("%lakeshore worker start cpu").out
    assert "as 3 threads" in nb.run("%lakeshore worker start cpu --threads 2").out


def test_worker_refusals(nb: Notebook, tmp_path: Any) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in nb.refused(f"%lakeshore worker start gpu --root {file}")
    assert "--process" in nb.refused("%lakeshore worker start gpu --process")
    assert "not allowed with" in nb.refused("%lakeshore worker start gpu --process --threads 2")


def test_stream_shows_one_panel(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q\nyield 1\nyield 2")
    nb.drain()
    cell = nb.run("p = %lakeshore stream _lakeshore\np")
    assert cell.error is None
    assert nb.names["p"].state == "succeeded"
    assert cell.out.count(nb.names["_lakeshore"]) >= 1
    nb("%lakeshore stream _lakeshore --wait --text")


def test_doctor(nb: Notebook) -> None:
    nb(JOB)
    rows = {row["check"]: row for row in nb("%lakeshore doctor")}
    assert rows["plane"]["state"] == "ok"
    assert rows["queue gpu"]["state"] == "fault"
    assert rows["queue gpu"]["fix"] == "%lakeshore worker start gpu"


# -- completion


def complete(nb: Notebook, text: str) -> list[str]:
    with provisionalcompleter():
        return [c.text for c in nb.shell.Completer.completions(text, len(text))]


def test_completion(nb: Notebook) -> None:
    nb(JOB)
    id = nb.names["_lakeshore"]
    assert complete(nb, "%lakeshore st") == ["status", "stream"]
    assert "cancel" in complete(nb, "%lakeshore ")
    assert complete(nb, "%%lakeshore su") == ["submit"]
    assert complete(nb, "%%lakeshore submit g") == ["gpu"]
    assert complete(nb, "%%lakeshore submit gpu --re") == ["--result", "--retries"]
    assert complete(nb, "rows = %lakeshore ls g") == ["gpu"]
    assert complete(nb, "x = 1\n%lakeshore worker start g") == ["gpu"]
    assert complete(nb, "%lakeshore worker s") == ["start", "status", "stop"]
    assert complete(nb, f"%lakeshore cancel {id[:6]}") == [id]
    assert complete(nb, "%lakeshore ls --st") == ["--state"]


def test_completion_in_the_body_is_untouched(nb: Notebook) -> None:
    nb("submarine = 1")
    plain = complete(nb, "subm")
    assert "submarine" in plain
    assert complete(nb, "%%lakeshore submit gpu\nsubm") == plain
    assert "gpu" not in complete(nb, "%%lakeshore submit gpu\ng")


def test_completion_survives_a_lost_plane(nb: Notebook) -> None:
    nb.plane.close()
    assert not [text for text in complete(nb, "%lakeshore ls x") if not text.startswith("%")]
    set_default_plane(Dispatch(":memory:"))


def test_a_row_that_no_magic_submitted(nb: Notebook) -> None:
    q = SyncQueue("gpu", dispatch=nb.plane)
    id = q.submit(thunk(pow, 2, 3))
    nb.drain()
    record = nb(f"%lakeshore show {id}")
    assert record["transport"] == "ref"
    plain = q.submit({"x": 1})
    assert nb(f"%lakeshore show {plain}")["id"] == plain
    assert wire.unpack(nb.plane.envelope(plain) or b"") == {"x": 1}


def test_a_bare_shell_is_left_alone(bare_shell: InteractiveShell) -> None:
    import lakeshore

    lakeshore.unload_ipython_extension(bare_shell)
    assert bare_shell.find_line_magic("lakeshore") is None
