"""Which of the notebook's names a whole cell takes along, and that it then runs as module-level code does."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore.notebook import whole
from lakeshore.notebook.module_code import compile_module
from lakeshore.notebook.reads import names_read


def reads(text: str) -> set[str]:
    return set(names_read(ast.parse(text)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y = x", {"x"}),
        ("x = 1\ny = x", set()),
        ("x += 1", {"x"}),
        ("x = x + 1", {"x"}),
        ("x: int = y", {"int", "y"}),
        ("a.b = c", {"a", "c"}),
        ("a[i] = 1", {"a", "i"}),
        ("del x", {"x"}),
        ("x = 1\ndel x\ny = x", {"x"}),
        ("if c:\n    x = 1\nprint(x)", {"c", "x", "print"}),
        ("if c:\n    x = 1\nelse:\n    x = 2\nx", {"c"}),
        ("for i in xs:\n    t = i\nt", {"xs", "t"}),
        ("while c:\n    t = 1\nt", {"c", "t"}),
        ("try:\n    import m\nexcept ImportError:\n    m = None\nm", {"ImportError"}),
        ("try:\n    x = f()\nfinally:\n    y = 1\nx, y", {"f"}),
        ("try:\n    x = f()\nexcept E as e:\n    print(e)\nx", {"f", "E", "print", "x"}),
        ("with open(p) as f:\n    t = f.read()\nt", {"open", "p"}),
        ("import a.b, c as d\na, d", set()),
        ("from m import x as y\ny", set()),
        ("[i for i in xs]", {"xs"}),
        ("[i + k for i in xs if c]", {"xs", "k", "c"}),
        ("[j := i for i in xs]\nj", {"xs"}),
        ("(n := 3)\nn", set()),
        ("f = lambda a: a + b", {"b"}),
        ("def f(): return g\nx = 1", set()),
        ("def f(): return g\nf()", {"g"}),
        ("def f(): return g\ng = 1\nf()", set()),
        ("def f(): return f()\nf()", set()),
        ("def f(a=d): return a", {"d"}),
        ("@deco\ndef f(): return g\ng = 1", {"deco", "g"}),
        ("def f(): return h()\ndef h(): return k\nf()", {"k"}),
        ("class A(B):\n    y = z\n    w = y\n    def m(self): return q\nq = 1\nA()", {"B", "z"}),
        ("class A:\n    def m(self): return q\nA().m()", {"q"}),
        (
            "match v:\n    case {'k': k, **rest}: k, rest\n    case [a, *b]: a, b\n    case C(x=y): y",
            {"v", "C"},
        ),
        ("f'{a!r:{b}}'", {"a", "b"}),
        ("await x\nyield y", {"x", "y"}),
        ("async for i in xs: pass", {"xs"}),
        ("[await f(i) async for i in xs]", {"f", "xs"}),
        ("global_later = 1\ndef f():\n    local = 1\n    return local\nf()", set()),
    ],
)
def test_names_read(text: str, names: set[str]) -> None:
    assert reads(text) == names


def run(text: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    """Run a cell as the worker would, with only the names it takes along."""
    tree = ast.parse(text)
    taken = {name: names[name] for name in names_read(tree) if name in names}
    namespace: dict[str, Any] = {**taken, "__name__": "__main__"}
    code = compile_module(tree, "<lakeshore t cell 1>")
    function = whole.make_function(
        code, dict.fromkeys(taken, 1), namespace, name="t", source=text, filename="<lakeshore t cell 1>"
    )
    return function(), namespace


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1 + 1", 2),
        ("x = 5", None),
        ("x = 1\ndef f():\n    return x + y\ny = 2\nf()", 3),
        (
            "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\neven(10)",
            True,
        ),
        ("class A:\n    k = 3\n    def f(self): return super().__init__() or A.k\nA().f()", 3),
        ("__name__", "__main__"),
        ("if __name__ == '__main__':\n    x = 4\nx", 4),
        ("x: int = 3\ny: str\nx", 3),
        ("from math import *\nfloor(2.5)", 2),
        ("import os.path as p\np.join('a', 'b')", "a/b"),
        ("total = 0\nfor i in range(4):\n    total += i\ntotal", 6),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    text = str(e)\ntext", "division by zero"),
        ("match [1, 2, 3]:\n    case [a, *rest]:\n        pass\nrest", [2, 3]),
        ("x = 1\ndel x\n'x' in globals()", False),
        ("[y := i for i in range(3)]\ny", 2),
        ("from __future__ import annotations\ndef f(a: Nope): return 1\nf(2)", 1),
        ("'only text'", "only text"),
        ("with open('/dev/null') as f:\n    t = f.read()\nt", ""),
        ("import asyncio\nf = lambda: given\nf()", 9),
        ("exec('x = 7')\nx", 7),
        ("x = 3\nlocals()['x'] + vars()['x'] + eval('x')", 9),
        ("x: int = 1\nlist(__annotations__)", ["x"]),
    ],
)
def test_runs_as_a_module(text: str, result: Any) -> None:
    assert run(text, given=9)[0] == result


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize(
    ("text", "result"), [("type X = int\nX.__name__", "X"), ("def f[T](x: T) -> T: return x + k\nf(1)", 10)]
)
def test_newer_syntax(text: str, result: Any) -> None:
    assert run(text, k=9)[0] == result


def test_yield_and_await_make_generators() -> None:
    made, _ = run("for i in range(3):\n    yield i\n'done'")
    assert inspect.isgenerator(made)
    values = []
    with pytest.raises(StopIteration) as end:
        while True:
            values.append(next(made))
    assert (values, end.value.value) == ([0, 1, 2], "done")

    made, _ = run("import asyncio\nawait asyncio.sleep(0)\n'slept'")
    assert asyncio.run(made) == "slept"

    made, names = run("import asyncio\nyield 1\nawait asyncio.sleep(0)\nx = 2\nx")

    async def collect() -> list[Any]:
        return [value async for value in made]

    assert asyncio.run(collect()) == [1]
    assert names["x"] == 2


def test_a_generator_keeps_what_a_module_may_hold() -> None:
    text = (
        "from __future__ import annotations\nfrom math import *\nx: Nope = floor(2.5)\ny: int\nyield x\nx + 1"
    )
    made, names = run(text)
    assert list(made) == [2]
    assert names["x"] == 2


def test_a_generator_as_the_last_expression_is_passed_on() -> None:
    made, _ = run("(i for i in range(2))")
    assert list(made) == [0, 1]


def test_traceback_shows_the_cells_lines(capsys: pytest.CaptureFixture[str]) -> None:
    import traceback

    with pytest.raises(ZeroDivisionError) as failed:
        run("\n\nx = 1\n\nx / 0")
    last = traceback.extract_tb(failed.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line, last.name) == (
        "<lakeshore t cell 1>",
        5,
        "x / 0",
        "<module>",
    )


def test_what_cannot_be_packed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run("class Figure:\n    def __repr__(self): return 'a figure'\nFigure()")
    assert result is None
    said = capsys.readouterr()
    assert "a figure" in said.out
    assert "result is None" in said.err


_NAME = st.sampled_from("abcd")
_STEP = st.one_of(
    st.builds("{} = {}".format, _NAME, st.integers(0, 9)),
    st.builds("{} = {}".format, _NAME, _NAME),
    st.builds("{} += 1".format, _NAME),
    st.builds("if {}:\n    {} = 1".format, _NAME, _NAME),
    st.builds("for {} in range({}):\n    {} = {}".format, _NAME, st.integers(0, 2), _NAME, _NAME),
    st.builds("def {}(): return {}".format, st.sampled_from("fg"), _NAME),
    st.builds("out = [{} for _ in range({})]".format, _NAME, st.integers(0, 2)),
    st.builds("try:\n    {} = {}\nexcept Exception:\n    {} = 0".format, _NAME, _NAME, _NAME),
)


@given(st.lists(_STEP, max_size=8))
def test_what_is_taken_along_suffices(steps: list[str]) -> None:
    """With the names read alone, a cell does what it does with all of them."""
    text = "\n".join([*steps, "(a, b, c, d)"])
    names = {"a": 1, "b": 2, "c": 3, "d": 4}
    module: dict[str, Any] = {**names, "__name__": "__main__"}
    exec("\n".join(steps), module)
    assert run(text, **names)[0] == tuple(module[n] for n in "abcd")
