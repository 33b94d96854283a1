"""Cells as people write them: each last statement, line ending and odd character, with what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from lakeshore import SyncQueue
from lakeshore.errors import InvocationFailed
from lakeshore.planes.names import name_of
from tests.unit.notebook.conftest import Notebook

SUBMIT = "%%lakeshore submit gpu -q"
NAMES = """
import functools
from functools import partial
from lakeshore import udf

def f(x=1, *more, k=2, **named):
    return [x, *more, k, *named.values()]

async def af(x=1):
    return x

def gen(n):
    yield from range(n)
    return n

async def agen(n):
    for i in range(n):
        yield i

class C:
    def m(self): return "m"
    def __call__(self): return "called"
    @staticmethod
    def s(): return "s"

lam, part, obj = (lambda x=3: x * 2), partial(f, 5, k=9), C()
bound = obj.m
u = udf(lambda x=1: x + 1)

@udf(queue="elsewhere")
def ub(x=1):
    return x + 2
"""
CALLS = [
    ("f(1, 2, k=3, z=4)", [[1, 2, 3, 4]]),
    ("f(*[1, 2], **{'k': 3})", [[1, 2, 3]]),
    ("a = 3; b = 4; f(a * b);", [[12, 2]]),
    ('"""what this does"""\nf(2)  # the end\n\n# more', [[2, 2]]),
    ("f((w := 7), w)", [[7, 7, 2]]),
    ("f(1,\n  # within\n  k=3)", [[1, 3]]),
    ("f( \\\n 1)", [[1, 2]]),
    ("t: int = f(1)", [[1, 2]]),
    ("lam(4)", [8]),
    ("part(6)", [[5, 6, 9]]),
    ("p = partial(f, 1)\np(2)", [[1, 2, 2]]),
    ("p = functools.lru_cache(f)\np(2)", [[2, 2]]),
    ("g = f\ng(2)", [[2, 2]]),
    ("h = lambda x: x\nh(3)", [3]),
    ("gen(2)", [2]),
    ("u(3)", [4]),
    ("ub(3)", [5]),
    ("[ub(i) for i in range(2)]", [2, 3]),
    ("[[f(i * j) for i in range(2)] for j in range(2)]", [[0, 2], [0, 2], [0, 2], [1, 2]]),
    ("[f(i * j) for i in range(2) for j in range(2) if i]", [[0, 2], [1, 2]]),
    (
        "def deco(fn):\n    return functools.wraps(fn)(lambda: [fn()])\n@deco\ndef job(): return 1\njob()",
        [[1]],
    ),
    (
        "def out():\n  n = 0\n  def inc():\n    nonlocal n\n    n += 1\n  inc()\n  return n\nout()",
        [1],
    ),
    ("from __future__ import annotations\ndef typed(x: Missing) -> None: return x\ntyped(2)", [2]),
    ("y = 4\r\nf(y)\r\n", [[4, 2]]),
    ("y = 4\rf(y)\r", [[4, 2]]),
    ("if True:\n\ty = 1\nf(y)", [[1, 2]]),
    ("y = 1\n\x0c\nf(y)", [[1, 2]]),
    ("größe = 5\ndef ñandú(é): return é * 2\nñandú(größe)", [10]),
    ("ﬁ = 5\nf(fi)", [[5, 2]]),
    (">>> y = 1\n>>> f(y)", [[1, 2]]),
]
WHOLE = [
    ("(r := f(2))", [2, 2]),
    ("f(1) if True else f(2)", [1, 2]),
    ("f(1) == f(2)", False),
    ("f'{f(1)}'", "[1, 2]"),
    ("f(1)[0]", 1),
    ("[*[f(1)], f(2)]", [[1, 2], [2, 2]]),
    ("*[f(1), f(2)],", [[1, 2], [2, 2]]),
    ("a, b = f(1), f(2)", [[1, 2], [2, 2]]),
    ("(a, *b) = f(1), f(2), f(3)", [[1, 2], [2, 2], [3, 2]]),
    ("kept = {}\nkept['x'] = f(1)", [1, 2]),
    ("t = 1\nt += 2", 3),
    ("list(f(i) for i in range(2))", [[0, 2], [1, 2]]),
    ("(lambda: 5)()", 5),
    ("p = [f]\np[0](1)", [1, 2]),
    ("p = g = f\np(2)", [2, 2]),
    ("await af(3)", 3),
    ("x = await af(3)", 3),
    ("out = []\nasync for v in agen(3):\n    out.append(v)\nout", [0, 1, 2]),
    ("[v async for v in agen(3)]", [0, 1, 2]),
    ("yield 1\nyield 2", None),
    ("obj.m()", "m"),
    ("bound()", "m"),
    ("obj()", "called"),
    ("C.s()", "s"),
    ("C().m()", "m"),
    ("len([1, 2])", 2),
    ("from math import sqrt\nsqrt(4)", 2.0),
    ("match 3:\n    case 3: r = 'three'\nr", "three"),
    ("pass", None),
    ("del_me = 1\ndel del_me", None),
    ("'only a text'", "only a text"),
    ('s = """\n%time\n!ls\n?\n"""\ns', "\n%time\n!ls\n?\n"),
    ("s = 'a\x0bb\x1cc\x85d\u2028e'\nlen(s)", 9),
    ("\x0cq = 1\nq + 1", 2),
    ("if __name__ == '__main__':\n    z = 4\nz", 4),
]
DEFS = [
    ("def job():\r\n    return 'crlf'\r\n", "crlf"),
    ("async def job():\n    return 'async'", "async"),
    ("@functools.lru_cache\ndef job(): return 'cached'", "cached"),
    ("@udf(queue='elsewhere')\ndef job(): return 'bound'", "bound"),
    ("N = 3\nclass K:\n    n = N\ndef helper(): return K.n\ndef job(): return helper()", 3),
]


@pytest.fixture
def cells(nb: Notebook) -> Notebook:
    nb(NAMES)
    return nb


def results(nb: Notebook) -> list[Any]:
    """Run what is queued; the results, oldest first."""
    nb.drain()
    queue = SyncQueue("gpu", dispatch=nb.plane)
    ids = [row["id"] for row in reversed(nb.plane.invocations())]
    values = [queue.result(id, timeout=0) for id in ids]
    return [list(value) if isinstance(value, tuple) else value for value in values]


def names(nb: Notebook) -> set[str | None]:
    return {name_of(nb.plane, row["id"]) for row in nb.plane.invocations()}


@pytest.mark.parametrize(("body", "values"), CALLS)
def test_a_call_is_a_job(cells: Notebook, body: str, values: list[Any]) -> None:
    cells(f"{SUBMIT}\n{body}")
    assert results(cells) == values
    assert not any(str(name).startswith("cell-") for name in names(cells))


@pytest.mark.parametrize(("body", "value"), WHOLE)
def test_the_whole_cell_is_a_job(cells: Notebook, body: str, value: Any) -> None:
    cells(f"{SUBMIT}\n{body}")
    assert results(cells) == [value]
    assert all(str(name).startswith("cell-") for name in names(cells))


@pytest.mark.parametrize(("body", "value"), DEFS)
def test_a_def_is_a_job(cells: Notebook, body: str, value: Any) -> None:
    cells(f"{SUBMIT}\n{body}")
    assert results(cells) == [value]
    assert names(cells) == {"job"}


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("s = 'a\u2028b'\n1 +* 2", 3, "1 +* 2"),
        ("\x0c\ndef h():\n  return 1 +* 2", 4, "return 1 +* 2"),
        ("y = 1\r\nz = (1,\r\n", 3, "never closed"),
        ("    y = 1\ny", 2, "unexpected indent"),
        ("if True:\n\ta = 1\n        b = 2", 4, "tabs and spaces"),
        ("return 3", 2, "outside function"),
    ],
)
def test_a_syntax_error_has_the_cells_line_and_no_frames_of_ours(
    cells: Notebook, body: str, line: int, says: str
) -> None:
    cell = cells.run(f"{SUBMIT}\n{body}")
    assert isinstance(cell.error, SyntaxError)
    assert cell.error.lineno == line
    said = cell.out + cell.err
    assert says in said
    assert "submit.py" not in said
    assert "source.py" not in said
    assert cells.plane.queues() == {}


@pytest.mark.parametrize(
    ("body", "number", "line"),
    [
        ("s = 'a\x0cb\u2028c'\n\n1 / 0", 4, "1 / 0"),
        ("y = 1\r\n\r\n1 / 0", 4, "1 / 0"),
        ("def h():\r\n    x = 1\r\n    return x / 0\r\nh()", 4, "return x / 0"),
        ("t = '''\nä\n'''\n'ü' / 0", 5, "'ü' / 0"),
    ],
)
def test_an_error_shows_its_line(cells: Notebook, body: str, number: int, line: str) -> None:
    cells(f"{SUBMIT}\n{body}")
    with pytest.raises(InvocationFailed) as failed:
        results(cells)
    assert f"line {number}" in str(failed.value)
    assert line in str(failed.value)


def test_a_cell_of_five_thousand_lines(cells: Notebook) -> None:
    body = "\n".join(f"v{n} = {n}" for n in range(5000))
    cells(f"{SUBMIT}\n{body}\nv4999 + 1")
    cells(f"{SUBMIT}\n" + "\n".join(f"# {n}" for n in range(5000)) + "\nf(3)")
    assert results(cells) == [5000, [3, 2]]


def test_a_function_that_changes_between_two_submits(cells: Notebook) -> None:
    cells("def step(): return 'old'\ndef job(): return step()")
    cells(f"{SUBMIT}\njob()")
    cells("def step(): return 'new'")
    cells(f"{SUBMIT}\njob()")
    assert results(cells) == ["old", "new"]
    assert cells("job()") == "new"


def test_names_go_both_ways_in_every_shape(cells: Notebook) -> None:
    cells("K = 10\nimport math")
    cells(f"{SUBMIT}\nlimit = math.floor(2.5) + K\ndef kept(): return limit\nkept()")
    assert cells("kept(), limit") == (12, 12)
    cells(f"{SUBMIT}\ndef also_kept(): return kept() + 1")
    assert cells("also_kept()") == 13
    cells(f"{SUBMIT}\nstays = limit + 2\nstays")
    assert "stays" not in cells.names
    assert results(cells) == [12, 13, 14]


@pytest.mark.parametrize(
    ("line", "queue"),
    [
        ("$q", "gpu"),
        ("{q}", "gpu"),
        ("{q}-{n}", "gpu-2"),
        ("$q-$n", "gpu-2"),
        ("{q.upper()}", "GPU"),
        ("{f'{q}{n:03d}'}", "gpu002"),
        ("{n:03}", "002"),
        ("{names['a']}", "from-dict"),
        ("$box.queue", "of-box"),
        ("'{q}'", "gpu"),
        ("gpu -q;", "gpu"),
    ],
)
def test_the_queue_from_the_notebook(nb: Notebook, line: str, queue: str) -> None:
    nb("q, n, names = 'gpu', 2, {'a': 'from-dict'}\nclass box:\n    queue = 'of-box'")
    nb(f"%%lakeshore submit -q {line}\n1")
    assert list(nb.plane.queues()) == [queue]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("""-a x={"lr": 0.1, "deep": {"a": [1, 2]}}""", {"lr": 0.1, "deep": {"a": [1, 2]}}),
        ("""-a x='{"lr": 0.1}'""", '{"lr": 0.1}'),
        ("-a x={'a': n}", {"a": 2}),
        ("-a x={n}", 2),
        ("-a x=$n", 2),
        ("-a x=[n, n + 1]", [2, 3]),
        ("-a x=f'{n}!'", "2!"),
        ("-a x='a b'", "a b"),
        ("-a x='{n} $n'", "{n} $n"),
        ("--arg=x=n", 2),
    ],
)
def test_braces_in_arguments(nb: Notebook, flag: str, value: Any) -> None:
    nb("n = 2")
    cell = nb.run(f"{SUBMIT} {flag}\ndef job(x): return x")
    assert cell.error is None, cell.err
    assert results(nb) == [value]


def test_what_is_displayed_as_markdown_is_read_in_the_log(nb: Notebook) -> None:
    nb(
        "%%lakeshore submit gpu --quiet\n"
        "from IPython.display import HTML, Markdown, Math, display\n"
        "display(Markdown('# head'), Math('x^2'), HTML('<b>bold</b>'))\n"
        "done = True\n"
    )
    nb.drain()
    said = str(nb("%lakeshore logs _lakeshore"))
    assert said == "# head\n$\\displaystyle x^2$\n<IPython.core.display.HTML object>\n"
