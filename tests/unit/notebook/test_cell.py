"""What a cell ships: the three shapes, what decides between them, and what is refused."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager

from lakeshore.notebook import cell, source


def train(lr: float = 0.1, *args: Any, **kwargs: Any) -> float:
    return lr


def load(path: str = "") -> str:
    return path


# As functions of a notebook, whatever this file's own name is.
train.__module__ = load.__module__ = "__main__"


class Model:
    def fit(self) -> None: ...


@pytest.fixture(autouse=True)
def own_module() -> Iterator[None]:
    """The module of the functions above counts as the user's own."""
    home = ModuleType("own_module")
    home.train = train  # type: ignore[attr-defined]
    sys.modules["own_module"] = home
    yield
    del sys.modules["own_module"]


NAMES: dict[str, Any] = {
    "train": train,
    "load": load,
    "Model": Model,
    "model": Model(),
    "lam": lambda x: x,
    "part": functools.partial(train, 0.1),
    "cached": functools.lru_cache(train),
    "grid": [0.1, 0.2],
    "json": __import__("json"),
}


def plan(body: str, **options: Any) -> cell.Plan:
    names = {**NAMES, "own": sys.modules["own_module"]}
    read = source.read(body, header="%%lakeshore submit q", filename="<c>", transformer=TransformerManager())
    return cell.plan(read, names, number="7", **options)


@pytest.mark.parametrize(
    "last",
    [
        "train(lr=0.1)",
        "train(0.1);",
        "[train(lr) for lr in grid]",
        "[train(0.1), load('x')]",
        "(train(0.1), train(0.2))",
        "train(0.1), train(0.2)",
        "{'a': train(0.1), 'b': train(0.2)}",
        "{lr: train(lr) for lr in grid if lr > 0}",
        "[[train(a * b) for a in grid] for b in grid]",
        "run = train(0.1)",
        "runs = [train(lr) for lr in grid]",
        "a = b = train(0.1)",
        "run: str = train(0.1)",
        "lam(1)",
        "part()",
        "cached(1)",
        "own.train(1)",
        "train(*grid, **{})",
        "train(key=lambda: load('x'))",
        "train(json.loads('1'))",
        "x = 1\nfor i in range(3): x += i\ntrain(x)",
        "def here(x): return x\nhere(1)",
        "here = lambda x: x\nhere(1)",
        "from own_module import train as imported\nimported(1)",
        "import own_module\nown_module.train(1)",
        "%matplotlib inline\nx = !ls\ntrain(1)",
        "x = await load()\ntrain(x)",
    ],
)
def test_calls(last: str) -> None:
    assert plan(last).shape == "call"


@pytest.mark.parametrize(
    "body",
    [
        "1 + 1",
        "x = 1",
        "Model()",
        "model.fit()",
        "print(1)",
        "sum([1])",
        "json.loads('1')",
        "[]",
        "()",
        "{}",
        "[train(1), 5]",
        "[*grid, train(1)]",
        "{**{}, 'a': train(1)}",
        "{train(1)}",
        "(train(lr) for lr in grid)",
        "train(1) + 1",
        "train(1) if grid else None",
        "a, b = train(1), train(2)",
        "model.b = train(1)",
        "x = 1\nx += train(1)",
        "[train(1) for train in [print]]",
        "unknown = print\nunknown(1)",
        "class Here: pass\nHere()",
        "train = 3\ntrain(1)",
        "for lr in grid:\n    train(lr)",
        "if True:\n    train(1)",
        "await train(1)",
        "yield 1\ntrain(1)",
        "train(await load())",
        "from math import sqrt\nsqrt(2)",
        "from collections import OrderedDict\nOrderedDict()",
        "from not_a_module_here import f\nf()",
        "print('hello')\ndef job(): pass",
        "def job(): pass\njob.__name__",
    ],
)
def test_whole_cells(body: str) -> None:
    assert plan(body).shape == "cell"


@pytest.mark.parametrize(
    ("body", "fn"),
    [
        ("def job(): pass", "job"),
        ("async def job(): pass", "job"),
        ("'''what'''\nimport os\nX = 1\nY: int = 2\nclass A: pass\ndef job(): pass", "job"),
        ("def helper(): pass\ndef job(): return helper()", "job"),
        ("def job(): return helper()\ndef helper(): pass", "job"),
        ("def helper(): pass\ndef job(): return list(map(helper, []))", "job"),
        ("def deco(f): return f\n@deco\ndef job(): pass", "job"),
        ("def make(): return 1\nX = make()\ndef job(): return X", "job"),
        ("def job(n): return job(n - 1)", "job"),
    ],
)
def test_defs(body: str, fn: str) -> None:
    made = plan(body)
    assert (made.shape, made.fn, made.name) == ("def", fn, fn)


@pytest.mark.parametrize("body", ["def a(): pass\ndef b(): pass", "def a(): return b()\ndef b(): return a()"])
def test_which_def_is_asked(body: str) -> None:
    with pytest.raises(UsageError, match=r"a, b.*--fn b"):
        plan(body)
    assert plan(body, fn="a").fn == "a"


def test_force() -> None:
    assert plan("train(1)", whole=True).shape == "cell"
    made = plan("def a(): pass\nprint(1)\na()", fn="a")
    assert (made.shape, made.fn, len(made.here.body)) == ("def", "a", 3)
    assert plan("1", fn="train").fn == "train"
    with pytest.raises(UsageError, match="Did you mean train"):
        plan("def a(): pass", fn="trian")


def test_what_runs_here_and_what_is_collected() -> None:
    made = plan("x = 2\nruns = {lr: train(lr, x, *[3], k=x) for lr in grid}")
    assert made.targets == ("runs",)
    assert [type(s) for s in made.here.body] == [ast.Assign]
    assert made.calls is not None
    namespace = {**NAMES, "x": 2}
    made_of = eval(compile(made.calls, "<t>", "eval"), namespace)(lambda fn, /, *a, **k: (fn, a, k))
    assert made_of == {lr: (train, (lr, 2, 3), {"k": 2}) for lr in NAMES["grid"]}


@pytest.mark.parametrize(
    "body", ["\n\ntrain(load('x'))", "\n\n[train(load(p)) for p in grid]", "\n\ntrain(x=[load('a')])"]
)
def test_nested_submittable_calls_are_refused(body: str) -> None:
    with pytest.raises(UsageError, match=r"line 4: load\(\.\.\.\).*train\(\.\.\.\)"):
        plan(body)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("!echo hi", "subprocess"),
        ("x = !echo hi", "subprocess"),
        ("%time 1 + 1", "elapsed"),
        ("%timeit 1", "elapsed"),
        ("%pip install x", "worker's environment"),
        ("!pip install x", "worker's environment"),
        ("%matplotlib inline", "cell of its own"),
        ("print?", "help"),
        ("?print", "help"),
        ("get_ipython().run_line_magic('x', '')", "no IPython"),
        ("global x", "global x"),
    ],
)
@pytest.mark.parametrize(
    "frame",
    [
        "a = 1\ndef job():\n    {}\n    return 1",
        "def helper():\n\n    {}\ndef job(): return helper()",
        "b = 1\ndef train():\n    {}\n    return 1\ntrain()",
        "c = 1\n\n{}\nc",
    ],
)
def test_what_cannot_travel_is_refused_with_its_line(line: str, advice: str, frame: str) -> None:
    with pytest.raises(UsageError, match=advice) as refused:
        plan(frame.format(line))
    assert str(refused.value).startswith("line 4: "), refused.value


@pytest.mark.parametrize("magic", ["%%time", "%%timeit -n 3", "%%capture"])
def test_a_second_cell_magic(magic: str) -> None:
    with pytest.raises(UsageError, match=f"line 3: `{magic}"):
        plan(f"# first\n{magic}\ntrain(1)")


def test_lines_stay_true_past_magics_of_several_lines() -> None:
    body = "%alias_magic \\\n  t \\\n  time\nx = 1\ndef job():\n    return 1 / 0\njob()"
    made = plan(body)
    job = made.here.body[-1]
    assert isinstance(job, ast.FunctionDef)
    assert job.lineno == 6


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("def job():\n    a = 1\n    return a +* 2\n", 4),
        ("\n\nx = (", 4),
        ("x = 1\n  y = 2", 3),
        ("x = 1\nreturn x", 3),
        ("if 1:\n    return 2\nx", 3),
        ("for i in []:\n    pass\nbreak", 4),
        ("nonlocal x", 2),
    ],
)
def test_syntax_errors_carry_the_cells_line(body: str, line: int) -> None:
    with pytest.raises(SyntaxError) as wrong:
        plan(body)
    assert wrong.value.lineno == line


@pytest.mark.parametrize("body", ["", "\n\n", "# only a comment", "   \n# x\n"])
def test_empty(body: str) -> None:
    with pytest.raises(UsageError, match="empty.*Usage"):
        plan(body)


def test_hints() -> None:
    (hint,) = plan("for lr in grid:\n    print(train(lr))").hints
    assert "[train(lr) for lr in grid]" in hint
    (hint,) = plan("print('x')\ndef job(): pass").hints
    assert "line 2" in hint
    assert "--fn job" in hint
    assert plan("1 + 1").hints == ()


@pytest.mark.parametrize("verb", ["submit", "map", "remote"])
def test_a_udf_that_submits_by_itself(verb: str) -> None:
    body = f"from lakeshore import udf\n@udf(queue='gpu')\ndef job(x): pass\nids = job.{verb}([1])"
    with pytest.raises(UsageError, match=f"line 5: job.{verb}.*without the magic"):
        plan(body)


def test_names_and_labels() -> None:
    assert plan("train(lr=0.1)").filename == "<lakeshore train cell 7>"
    assert plan("1").name == "cell-7"
    named = plan("train(1)", name="first run!")
    assert (named.name, named.filename) == ("first run!", "<lakeshore first-run- cell 7>")
    assert plan("[train(lr)\n for lr in grid]").label == "[train(lr) for lr in grid]"


@pytest.mark.parametrize(
    ("body", "name", "line"),
    [
        ("job = fitt(100)", "fitt", 2),
        ("runs = [fitt(lr) for lr in grid]", "fitt", 2),
        ("any(fitt(lr) for lr in grid)", "fitt", 2),
        ("x = 1\nprint(x, nope)", "nope", 3),
        ("x += 1", "x", 2),
        ("x = x + 1\nx", "x", 2),
        ("if grid:\n    nope\nx = 1", "nope", 3),
        ("@deco\ndef f(): pass\nf(1) + 1", "deco", 3),
        ("def f(a=nope): pass\nf(1) + 1", "nope", 2),
        ("class A(Base): pass\nA()", "Base", 2),
        ("f = lambda a=nope: a\nf(1) + 1", "nope", 2),
        ("try:\n    nope\nexcept ValueError:\n    pass", "nope", 3),
        ("x = 1\ndef f():\n    late = 1\nlate", "late", 5),
    ],
)
def test_a_name_that_is_nowhere_is_refused(body: str, name: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"line {line}: name '{name}' is not defined in this note"):
        plan(body)


@pytest.mark.parametrize(
    "body",
    [
        "def f(): return nope\nx = 1",
        "f = lambda: nope\nx = 1",
        "try:\n    nope\nexcept NameError:\n    nope = 1\nnope",
        "try:\n    nope\nexcept Exception:\n    pass",
        "try:\n    nope\nexcept:\n    pass",
        "from contextlib import suppress\nwith suppress(NameError):\n    nope",
        "if grid:\n    x = 1\nx",
        "for i in grid:\n    if i > 1: print(last)\n    last = i",
        "for i in []: pass\nprint(i)",
        "from math import *\nsqrt(2)",
        "exec('x = 7')\nx",
        "'x' in globals() and x",
        "from __future__ import annotations\nx: Nope = 1\ndef f(a: Nope): pass\nf(1) + 1",
        "__name__, __file__",
        "display(grid)",
        "match grid:\n    case [a, *rest]: print(a)\nrest",
        "def set_it():\n    x = 1\nset_it()\nmodel.x",
        "(n := 3)\nn",
        "class A:\n    y = 1\n    def m(self): return nope\nx = A()",
    ],
)
def test_a_name_that_may_be_there_is_not_refused(body: str) -> None:
    assert plan(body).shape == "cell"


def test_a_missing_name_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"runs? the cell that defines it\. Did you mean train\?"):
        plan("job = trian(100)")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("res = model.fit()", "`res` stays on the worker: its value is the result"),
        ("x = 1\nx + 1", "the whole cell is the job; `x` stays on the worker"),
        (
            "x = 1\nres = x + 1\nprint(x)\nres += 1",
            "`x`, `res` stay on the worker: the value of `res` is the result",
        ),
        ("a = b = c = d = e = f = 1\na", "`a`, `b`, `c`, `d`, … stay on the worker"),
    ],
)
def test_names_that_stay_on_the_worker_are_said(body: str, says: str) -> None:
    assert any(hint.endswith(says) for hint in plan(body).hints)


def test_the_label_counts_lines() -> None:
    assert plan("1 + 1").label == "the whole cell, 1 line"
    assert plan("1 + 1\n2").label == "the whole cell, 2 lines"
