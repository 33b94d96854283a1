"""A whole cell as one by-value function, and how a worker runs it: as module-level code.

The function's globals are the notebook's namespace, of which it reads only the names the cell reads
before it assigns them; so these travel, shared with what the notebook's functions see, and no others.
Imported by the worker too: nothing here needs IPython.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import marshal
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

from lakeshore import settings, wire
from lakeshore.context import run
from lakeshore.errors import PackError

RESULT = "__lakeshore_result__"
"""The name under which a cell's code leaves its last expression, or gets the function that settles it."""


def make_function(
    code: CodeType,
    reads: Mapping[str, int],
    namespace: dict[str, Any],
    *,
    name: str,
    source: str,
    filename: str,
) -> Callable[[], Any]:
    """Make the by-value function that carries a compiled cell.

    Parameters
    ----------
    code : CodeType
        From `compile_module`.
    reads : mapping of str to int
        The names to take along from `namespace`, with the line of the cell that reads each.
    namespace : dict
        The notebook's own; becomes the function's globals.
    name : str
        The function's name.
    source, filename : str
        The cell's text, for tracebacks on the worker.
    """
    taken = [ast.Expr(ast.Name(n, ast.Load(), **_at(line)), **_at(line)) for n, line in reads.items()]
    template = ast.parse(
        "def make(start, cell):\n"
        "    def function():\n"
        "        if cell is None:\n"
        "            pass\n"
        "        return start(cell, globals())\n"
        "    return function\n"
    )
    for node in ast.walk(template):
        if isinstance(node, ast.If):
            node.body = [*taken, ast.Pass()]
        elif hasattr(node, "lineno"):
            ast.copy_location(node, ast.Pass(**_at(1)))
    scratch: dict[str, Any] = {}
    template = ast.fix_missing_locations(template)
    exec(compile(template, filename, "exec", dont_inherit=True), namespace, scratch)  # noqa: S102 - our own template
    function: FunctionType = scratch["make"](start, (marshal.dumps(code), source, filename))
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    function.__name__ = function.__qualname__ = name
    function.__module__ = "__main__"
    return function


def _at(line: int) -> dict[str, int]:
    return {"lineno": line, "col_offset": 0, "end_lineno": line, "end_col_offset": 0}


def start(cell: tuple[bytes, str, str], namespace: dict[str, Any]) -> Any:
    """Run a cell on the worker; returns its result, or the generator or coroutine that it is."""
    blob, source, filename = cell
    lines = [f"{line}\n" for line in source.split("\n")]  # `splitlines` would cut at form feeds too
    linecache.cache[filename] = (len(source), None, lines, filename)
    code = marshal.loads(blob)  # noqa: S302 - arrived inside a pickle that was let in
    if code.co_argcount:
        return FunctionType(code, namespace, "<module>")(settle)
    namespace.pop(RESULT, None)
    coroutine = eval(code, namespace)  # noqa: S307 - as above
    if coroutine is not None:
        return _finish(coroutine, namespace)
    return settle(namespace.pop(RESULT, None))


async def _finish(coroutine: Awaitable[None], namespace: dict[str, Any]) -> Any:
    await coroutine
    return settle(namespace.pop(RESULT, None))


def settle(value: Any) -> Any:
    """Return what a cell's last expression, or assignment, leaves as result.

    What cannot be packed is displayed, and leaves None: hours of work must not fail at their
    end. A generator or coroutine is passed on: the worker drives it.
    """
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isawaitable(value):
        return value
    try:
        wire.pack(value, limit=settings.max_payload())
    except PackError as error:
        run.display(value)
        sys.stderr.write(
            f"lakeshore: the cell's value is shown, and the result is None: {error}\n"
            "Return plain data, or write a file with `run.write`, to get it back.\n"
        )
        return None
    return value
