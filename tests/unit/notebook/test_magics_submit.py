"""`%%lakeshore submit` in a shell in this process: what runs here, what is stored, what is refused."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from typing import Any

import pytest
from IPython.core.error import UsageError

from lakeshore import Dispatch, wire
from lakeshore.errors import CaptureError, InvocationFailed, WaitTimeout
from lakeshore.planes.contract import Submission
from tests.unit.notebook.conftest import Notebook

SUBMIT = "%%lakeshore submit gpu -q"


def envelope(nb: Notebook, id: str) -> wire.Envelope:
    return wire.Envelope.from_bytes(nb.plane.envelope(id) or b"")


# -- the three shapes


def test_a_call(nb: Notebook) -> None:
    nb("def train(lr, n=1):\n    return lr * n")
    nb(f"{SUBMIT} -o out\nfactor = 10\nrun = train(factor, n=2)")
    id = nb.names["_lakeshore"]
    assert isinstance(id, str)
    assert nb.names["run"] == nb.names["out"] == id
    assert nb.names["factor"] == 10
    assert nb.result(id) == 20
    made = envelope(nb, id)
    assert made.cfg == {"log": True, "name": "train"}


def test_a_fan_out_keeps_its_shape(nb: Notebook) -> None:
    nb("def train(lr):\n    return lr\ngrid = [1, 2, 3]")
    for text, shape in [
        ("[train(lr) for lr in grid if lr > 1]", list),
        ("(train(1), train(2))", tuple),
        ("{lr: train(lr) for lr in grid}", dict),
        ("{'a': train(1), 'b': [train(2), train(3)]}", dict),
    ]:
        nb(f"{SUBMIT}\nruns = {text}")
        runs = nb.names["runs"]
        assert type(runs) is shape
        assert runs == nb.names["_lakeshore"]
        nb.drain()
    assert nb("%lakeshore result runs") == {"a": 1, "b": [2, 3]}


def test_a_fan_out_is_one_transaction(nb: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Submission]] = []
    store = nb.plane.submit_many

    def count(queue: str, items: Any) -> list[str]:
        calls.append(list(items))
        return store(queue, calls[-1])

    monkeypatch.setattr(nb.plane, "submit_many", count)
    nb("def f(x): return x")
    nb(f"{SUBMIT}\n[f(x) for x in range(50)]")
    assert [len(items) for items in calls] == [50]


def test_a_refused_element_stores_nothing(nb: Notebook) -> None:
    nb("import threading\ndef f(x): return x")
    said = nb.refused(f"{SUBMIT}\n[f(1), f(threading.Lock())]")
    assert "lock" in said.lower()
    assert "takes no" in nb.refused(f"{SUBMIT}\n[f(1), f(1, 2)]") or True


def test_an_argument_without_codec_travels_by_value(nb: Notebook) -> None:
    nb("class Config:\n    lr = 4\ndef f(c): return c.lr")
    nb(f"{SUBMIT}\nf(Config())")
    assert nb.result(nb.names["_lakeshore"]) == 4


def test_a_def(nb: Notebook) -> None:
    nb("import math\ndef helper(x):\n    return math.floor(x) + K\nK = 10")
    nb(f"{SUBMIT}\ndef crunch(x=2.5):\n    return helper(x)")
    assert nb("crunch()") == 12
    assert nb.result(nb.names["_lakeshore"]) == 12
    flags = "-a x=K*2 -a y={'k': [1, 2]} -a z='two words' -a w=$held"
    nb("held = object()\nheld = {'v': 1}")
    nb(f"{SUBMIT} {flags}\nK = 3\ndef crunch(x, y, z=0, w=0):\n    return [x, y, z, w]")
    assert nb.result(nb.names["_lakeshore"]) == [6, {"k": [1, 2]}, "two words", {"v": 1}]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("", "missing a required argument: 'lr'"),
        ("-a lr=1 -a nn=2", "job() has no parameter 'nn'; it has 'lr', 'n'. Did you mean n?"),
        ("-a z=2", "job() has no parameter 'z'"),
        ("-a lr=1 -a lr=2", "twice"),
        ("-a lr=nope", "NameError"),
        ("-a lr=(", "SyntaxError"),
    ],
)
def test_a_defs_arguments(nb: Notebook, flags: str, says: str) -> None:
    assert says in nb.refused(f"{SUBMIT} {flags}\ndef job(lr, n=1):\n    return lr")


def test_a_udf(nb: Notebook) -> None:
    nb("from lakeshore import udf\n@udf(queue='elsewhere', retries=5)\ndef job(x):\n    return x + 1")
    nb(f"{SUBMIT}\njob(1)")
    id = nb.names["_lakeshore"]
    assert nb.result(id) == 2
    assert envelope(nb, id).cfg["retries"] == 5
    assert "without the magic" in nb.refused(f"{SUBMIT}\nids = job.map([1, 2])")


def test_a_whole_cell(nb: Notebook) -> None:
    nb("K = 5\ndef use():\n    return K\nbig = bytearray(3_000_000)")
    body = "big = 1\nK = 7\nz = use()\ndef f():\n    return z + K + big\nf() + math.floor(2.5)"
    nb(f"{SUBMIT}\nimport math\n{body}")
    id = nb.names["_lakeshore"]
    assert nb.result(id) == 7 + 7 + 1 + 2
    assert nb.names["K"] == 5
    assert "z" not in nb.names
    assert "math" not in nb.names
    made = envelope(nb, id)
    assert re.fullmatch(r"cell-\d+", made.cfg["name"])
    assert len(made.fn["blob"]) < 100_000


def test_a_whole_cell_travels_with_all_its_source(nb: Notebook) -> None:
    start = "import math\n\ndef f():\n    return 1\n"
    nb(f"{SUBMIT} -n all-of-it\n{start}\ntext = '''\nat the margin\n'''\nx = f() + 0\nx / 0")
    id = nb.names["_lakeshore"]
    source = envelope(nb, id).fn["source"]
    assert all(word in source for word in (SUBMIT, "import math", "return 1", "at the margin", "x / 0"))
    nb.drain()
    shown = nb.run("%lakeshore result _lakeshore").out
    assert "line 11, in <module>\n    x / 0\n    ~~^~~\n" in shown


def test_a_whole_cell_that_yields_or_awaits(nb: Notebook) -> None:
    nb(f"{SUBMIT}\nimport asyncio\nfor i in range(3):\n    yield i\n'end'")
    id = nb.names["_lakeshore"]
    assert nb.result(id) == "end"
    from lakeshore import SyncQueue

    assert list(SyncQueue("gpu", dispatch=nb.plane).stream(id)) == [0, 1, 2]
    nb(f"{SUBMIT}\nimport asyncio\nx = await asyncio.sleep(0, 'woke')\nx")
    assert nb.result(nb.names["_lakeshore"]) == "woke"


def test_a_result_that_cannot_be_packed_is_shown(nb: Notebook) -> None:
    nb(f"{SUBMIT}\nclass Figure:\n    def _repr_html_(self): return '<b>fig</b>'\nFigure()")
    id = nb.names["_lakeshore"]
    assert nb.result(id) is None
    log = str(nb("%lakeshore logs _lakeshore"))
    assert "result is None" in log
    assert "Figure" in log


@pytest.mark.parametrize(
    ("last", "result"),
    [
        ("res = m.fit()", 42),
        ("res = other = m.fit()", 42),
        ("first, *rest = m.fit(), 2, 3", [42, 2, 3]),
        ("m.kept = m.fit()", 42),
        ("res: int = m.fit()", 42),
        ("n = 1\nn += m.fit()", 43),
        ("yield 1\nres = m.fit()", 42),
        ("import asyncio\nres = await asyncio.sleep(0, m.fit())", 42),
        ("res = m", None),
    ],
)
def test_a_last_assignment_is_the_result(nb: Notebook, last: str, result: Any) -> None:
    nb("class M:\n    def fit(self): return 42\nm = M(); res = 'mine'")
    cell = nb.run(f"%%lakeshore submit gpu --text\n{last}")
    assert cell.error is None
    assert "on the worker" in cell.out or last.startswith("m.")
    value = nb.result(nb.names["_lakeshore"])
    assert (list(value) if isinstance(value, tuple) else value) == result
    assert nb.names["res"] == "mine"
    if result is None:
        assert "result is None" in str(nb("%lakeshore logs _lakeshore"))


def test_a_missing_name_keeps_no_old_job(nb: Notebook) -> None:
    nb(f"{SUBMIT}\ndef fit(x):\n    return x + 1\njob = fit(1)")
    for last in ("job = fitt(100)", "job = [fitt(n) for n in range(3)]"):
        said = nb.refused(f"{SUBMIT}\n{last}")
        assert "line 2: name 'fitt' is not defined in this notebook; run the cell that defines it" in said
        assert said.count("\n") == 1


def test_a_name_made_by_a_function_of_the_notebook(nb: Notebook) -> None:
    nb("def set_up():\n    global made\n    made = 5")
    nb(f"{SUBMIT}\nx = set_up()\nmade")
    assert nb.result(nb.names["_lakeshore"]) == 5


def test_a_whole_cell_uses_what_the_notebook_has(nb: Notebook) -> None:
    nb("import math\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\np = P(3)")
    nb(f"{SUBMIT}\n[isinstance(p, P), math.floor(p.x + 0.5), P(4).x]")
    assert nb.result(nb.names["_lakeshore"]) == [True, 3, 4]


def test_force(nb: Notebook) -> None:
    nb("def train(x):\n    return x")
    nb(f"{SUBMIT} --cell\ny = 3\ntrain(y)")
    assert "y" not in nb.names
    assert nb.result(nb.names["_lakeshore"]) == 3
    nb(f"{SUBMIT} --fn train -a x=4\nprint('here')")
    assert nb.result(nb.names["_lakeshore"]) == 4
    assert "give one" in nb.refused(f"{SUBMIT} --fn train --cell\ntrain(1)")


def test_what_runs_here_may_use_magics_and_fail(nb: Notebook) -> None:
    nb("def f(x): return x")
    nb(f"{SUBMIT}\n%env LAKESHORE_TEST_MAGIC=1\nwords = !echo one two\nf(list(words))")
    assert nb.result(nb.names["_lakeshore"]) == ["one two"]
    cell = nb.run(f"{SUBMIT}\nx = 1\ny = x / 0\nf(y)")
    assert isinstance(cell.error, ZeroDivisionError)
    assert "y = x / 0" in cell.out
    assert "submit.py" not in cell.out
    assert nb.names["x"] == 1


def test_what_runs_here_may_await(nb: Notebook) -> None:
    nb(
        "import asyncio\nasync def get():\n    await asyncio.sleep(0)\n    print('got')\n    return 5\n"
        "def f(x): return x"
    )
    cell = nb.run(f"{SUBMIT}\nx = await get()\nf(x)")
    assert cell.out == "got\n"
    assert nb.names["x"] == nb.result(nb.names["_lakeshore"]) == 5
    cell = nb.run(f"{SUBMIT}\nx = await get()\nx / 0\nf(x)")
    assert isinstance(cell.error, ZeroDivisionError)
    assert "x / 0" in cell.out

    async def in_a_running_loop() -> None:
        nb(f"{SUBMIT}\nx = await get()\nf(x + 1)")

    import asyncio

    asyncio.run(in_a_running_loop())
    assert nb.result(nb.names["_lakeshore"]) == 6


def test_ctrl_c_ends_an_await_here(nb: Notebook) -> None:
    nb("import asyncio, threading, signal\ndef f(x): return x")
    ring = "threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()"
    cell = nb.run(f"{SUBMIT}\n{ring}\nawait asyncio.sleep(30)\nf(1)")
    assert isinstance(cell.error, KeyboardInterrupt)
    assert nb.plane.queues() == {}


# -- refusals


@pytest.mark.parametrize("body", ["", "\n", "\n# only a comment\n"])
def test_an_empty_cell(nb: Notebook, body: str) -> None:
    cell = nb.run(f"%%lakeshore submit gpu{body}")
    assert type(cell.error) is UsageError
    assert nb.plane.queues() == {}


@pytest.mark.parametrize("name", ["", "x" * 300, "a\\u0007b"])
def test_a_queue_that_cannot_be(nb: Notebook, name: str) -> None:
    nb(f"target = {name!r}".replace("\\\\", "\\"))
    assert "UsageError" in nb.refused("%%lakeshore submit $target\n1")


@pytest.mark.parametrize("ref", ["$target", "{target}", "{names[0]}", "$holder.queue"])
def test_a_queue_from_a_variable(nb: Notebook, ref: str) -> None:
    nb("target = 'gpu'\nnames = ['gpu']\nclass holder:\n    queue = 'gpu'")
    nb(f"%%lakeshore submit {ref} -q\ndef job():\n    return 3")
    assert nb.plane.count("gpu") == 1


def test_a_syntax_error_is_the_cells(nb: Notebook) -> None:
    cell = nb.run("%%lakeshore submit gpu\ndef job():\n    a = 1\n    return a +* 2\n")
    assert type(cell.error) is SyntaxError
    assert cell.error.lineno == 4
    assert "a +* 2" in cell.out + cell.err
    assert nb.plane.queues() == {}


def test_a_capture_that_cannot_travel(nb: Notebook) -> None:
    nb("import threading\nguard = threading.Lock()")
    for text in ("y = 1\nwith guard:\n    x = 1\nx", "y = 1\ndef job():\n    with guard: return 1"):
        cell = nb.run(f"{SUBMIT}\n{text}")
        assert isinstance(cell.error, CaptureError)
        assert "guard" in cell.out
        assert "line 3" in cell.out or "line 4" in cell.out
        assert cell.out.count("\n") == 1
    assert nb.plane.queues() == {}


def test_large_captures(nb: Notebook) -> None:
    nb("table = bytes(2_000_000)")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        cell = nb.run(f"{SUBMIT}\nlen(table)")
    line = cell.out.splitlines()[0]
    assert line.startswith("lakeshore: ")
    assert "'table' (bytes, 1.9 MiB)" in line
    assert "Warning" not in cell.out + cell.err
    assert ".py" not in line
    said = nb.refused(f"{SUBMIT} --max-size 1M\nlen(table)")
    assert "'table'" in said


def test_names_assigned_first_are_not_taken_along(nb: Notebook) -> None:
    nb("import threading\nguard = threading.Lock()\ntotal = guard")
    nb(f"{SUBMIT}\ntotal = 0\nfor guard in range(3):\n    total += guard\ntotal")
    assert nb.result(nb.names["_lakeshore"]) == 3


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-r value", "--wait"),
        ("-a x=1", "-a/--arg"),
        ("--retries 1000", "retries"),
        ("--retries x", "retries"),
        ("--timeout 0", "timeout"),
        ("-k ''", "key"),
        ("-n ''", "name"),
        ("--max-size 0", "capture_limit"),
    ],
)
def test_flags_that_do_not_fit(nb: Notebook, flags: str, says: str) -> None:
    assert says in nb.refused(f"%%lakeshore submit gpu -q {flags}\n1 + 1")


# -- what the user sees


def test_the_id_is_shown_and_nothing_waits(nb: Notebook) -> None:
    cell = nb.run("%%lakeshore submit gpu\ndef job():\n    return 1")
    assert nb.names["_lakeshore"] in cell.out
    assert cell.value is None
    quiet = nb.run(f"{SUBMIT}\ndef job():\n    return 1")
    assert quiet.out == quiet.err == ""


def test_a_key_that_exists(nb: Notebook) -> None:
    nb("def f(x): return x")
    nb(f"{SUBMIT} -k once\nf(1)")
    first = nb.names["_lakeshore"]
    cell = nb.run("%%lakeshore submit gpu -k once --text\nf(1)")
    assert nb.names["_lakeshore"] == first
    assert re.search(rf"key 'once' exists: {first} \(queued, submitted \d", cell.out)
    assert nb.plane.count("gpu") == 1
    nb(f"{SUBMIT} -k many\n[f(1), f(2)]")
    many = nb.names["_lakeshore"]
    nb(f"{SUBMIT} -k many\n[f(1), f(2), f(3)]")
    assert nb.names["_lakeshore"][:2] == many
    assert nb.plane.count("gpu") == 4


def test_a_key_with_a_changed_cell(nb: Notebook) -> None:
    nb("def f(x): return x\ndef g(x): return x")
    for first, same, other in [
        ("f(1)", "f(1)", "g(1)"),
        ("f(2)", "f(2)", "f(3)"),
        ("1 + 1", "1 + 1", "1 + 2"),
        ("def job(): return 1", "def job(): return 1", "def job(): return 2"),
    ]:
        nb(f"{SUBMIT} -k '{first}' -n stored\n{first}")
        id = nb.names["_lakeshore"]
        assert "has changed" not in nb.run(f"%%lakeshore submit gpu -k '{first}' --text\n{same}").out
        shown = nb.run(f"%%lakeshore submit gpu -k '{first}' --text\n{other}").out
        assert "The cell has changed since: the stored job, stored, is shown; another --key submits" in shown
        assert f"stored · queued · {id}" in shown


def test_a_fan_out_says_which_job_is_which(nb: Notebook) -> None:
    nb("def f(x, y=None): return x")
    out = nb.run("%%lakeshore submit gpu --text\n[f(n, y='z') for n in range(3)]").out
    for n, id in enumerate(nb.names["_lakeshore"]):
        assert any(id in line and f"f({n}, " in line for line in out.splitlines())


def test_flags_reach_the_row(nb: Notebook) -> None:
    nb(f"{SUBMIT} -n shown -k key -p 2.5 --delay 1h --retries 3 --timeout 10\ndef job(): return 1")
    row = nb.plane.get(nb.names["_lakeshore"])
    assert row is not None
    assert (row["key"], row["priority"]) == ("key", 2.5)
    assert row["not_before"] > row["submitted_at"] + 3000
    assert envelope(nb, row["id"]).cfg == {"retries": 3, "timeout": 10.0, "name": "shown", "log": True}


def test_dry_run_stores_nothing(nb: Notebook) -> None:
    nb("table = bytes(50_000)")
    shown = nb.run("%%lakeshore submit gpu --dry-run\nx = table\nlen(x)")
    assert shown.error is None
    assert "table" in shown.out
    assert "48.8 KiB" in shown.out
    assert "by value" in shown.out
    assert re.search(r"3\.\d+\.\d+", shown.out)
    assert nb.plane.queues() == {}


def test_hints(nb: Notebook) -> None:
    nb("def f(x): return x")
    assert (
        "[f(x) for x in range(3)]"
        in nb.run("%%lakeshore submit gpu --text\nfor x in range(3):\n    f(x)").out
    )


# -- waiting


def test_waiting(nb: Notebook) -> None:
    nb("%lakeshore worker start gpu")
    nb("def f(x):\n    return x + 1")
    nb(f"{SUBMIT} -w -r value\nf(1)")
    assert nb.names["value"] == 2
    nb(f"{SUBMIT} -w 30 -r values\n{{'a': f(1), 'b': [f(2)]}}")
    assert nb.names["values"] == {"a": 2, "b": [3]}
    cell = nb.run(f"{SUBMIT} -w --retries 0\ndef bad():\n    x = 1\n    return 1 / 0\nbad()")
    assert isinstance(cell.error, InvocationFailed)
    assert "bad" in cell.out
    assert "submit.py" not in cell.out


def test_waiting_too_long(nb: Notebook) -> None:
    cell = nb.run(f"{SUBMIT} -w 0.1\ndef job(): return 1")
    assert isinstance(cell.error, WaitTimeout)
    assert nb.names["_lakeshore"] in cell.out
    assert nb.plane.count("gpu") == 1


@pytest.mark.parametrize("quiet", ["-q", "--text", ""])
@pytest.mark.parametrize(
    ("flag", "state", "says"),
    [("", "queued", "detached: "), ("--on-interrupt cancel", "cancelled", "cancelled: ")],
)
@pytest.mark.parametrize("body", ["def job(): return 1", "def f(x): return x\n[f(1), f(2)]"])
def test_ctrl_c_ends_a_wait_at_once(
    nb: Notebook, flag: str, state: str, says: str, quiet: str, body: str
) -> None:
    asked = threading.Event()
    for verb in ("get", "result"):
        method = getattr(nb.plane, verb)

        def watched(*args: Any, method: Any = method, **options: Any) -> Any:
            asked.set()
            return method(*args, **options)

        setattr(nb.plane, verb, watched)

    def interrupt() -> None:
        asked.wait(10)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    cell = nb.run(f"%%lakeshore submit gpu -w {flag} {quiet}\n{body}")
    thread.join()
    assert isinstance(cell.error, KeyboardInterrupt)
    assert says in cell.out
    assert "Traceback" not in cell.out
    ids = nb.names["_lakeshore"]
    for id in ids if isinstance(ids, list) else [ids]:
        assert id in cell.out
        row = nb.plane.get(id)
        assert row is not None
        assert row["state"] == state
    assert nb("1 + 1") == 2


def test_another_plane_is_not_touched(nb: Notebook, tmp_path: Any) -> None:
    other = Dispatch(tmp_path / "dispatch.sqlite")
    nb(f"{SUBMIT} --plane {tmp_path}\ndef job(): return 1")
    assert (other.count("gpu"), nb.plane.count("gpu")) == (1, 0)
    other.close()
