"""A cell's text read into a tree with the cell's own line numbers, and what in it cannot travel.

The `%%lakeshore` line is line 1, as the user counts. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import leading_indent

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes with names of their own."""

_NOT_WORD = re.compile(r"\W")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TIMERS = re.compile(r"%%?(time|timeit|prun|memit|mprun|lprun)\b")


@dataclass(frozen=True, slots=True)
class Source:
    """A cell as text and tree.

    Attributes
    ----------
    lines : tuple of str
        The cell as it was written; ``lines[0]`` is the magic's line.
    tree : ast.Module
        The body, IPython's syntax turned into calls of `get_ipython()`, lines unmoved.
    """

    lines: tuple[str, ...]
    tree: ast.Module

    @property
    def text(self) -> str:
        """The cell as it was written."""
        return "".join(self.lines)

    def as_function(self, name: str) -> tuple[str, ...]:
        """Return the cell's lines as those of a function, which is what a whole cell is shipped as.

        Line numbers stay; the worker shows the lines as they were written.
        """
        head = f"def {_NOT_WORD.sub('_', name)}():  # {self.lines[0]}"
        return (head, *(f"    {line}" for line in self.lines[1:]))

    def line(self, number: int) -> str:
        """Return one line (from 1), stripped, for a message."""
        return self.lines[number - 1].strip()


def read(body: str, *, header: str, filename: str, transformer: Any, flags: int = 0) -> Source:
    """Parse a cell's body.

    Parameters
    ----------
    body : str
        What follows the magic's line.
    header : str
        The magic's line.
    filename : str
        What a syntax error names.
    transformer : IPython.core.inputtransformer2.TransformerManager
        Turns IPython's own syntax into Python.
    flags : int
        Compiler flags of `__future__` features the notebook has switched on.

    Raises
    ------
    SyntaxError
        When the body is no Python; its line number is the cell's.
    UsageError
        When the body is empty, begins with another cell magic, or holds what cannot be encoded.
    """
    # As Python counts lines: `splitlines` also cuts at form feeds and at U+2028, within texts too.
    body = body.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    lines = [f"{line}\n" for line in (header, *body.split("\n"))]
    first = next((n for n, line in enumerate(lines) if n and line.strip()), len(lines))
    lines[first:] = leading_indent(lines[first:])  # as in any cell: code that was cut out of a block
    for number, line in enumerate(lines, 1):
        if (bad := _SURROGATE.search(line)) is not None:
            raise UsageError(
                f"line {number}: holds half a character, U+{ord(bad[0]):04X}, which no source can; "
                f"write it as '\\u{ord(bad[0]):04x}'"
            )
    for number, line in enumerate(lines[1:], 2):
        if line.strip() and not line.lstrip().startswith("#"):
            if line.startswith("%%"):
                raise UsageError(f"line {number}: {_advice(line.strip())}")
            break
    code = ["\n", *lines[1:]]
    for _ in lines:
        changed, after = transformer.do_one_token_transform(code)
        if not changed:
            break
        # A magic continued over several lines became one: keep what follows on its lines.
        at = next((i for i, (a, b) in enumerate(zip(code, after, strict=False)) if a != b), len(after) - 1)
        code = [*after[: at + 1], *["\n"] * (len(code) - len(after)), *after[at + 1 :]]
    tree = compile("".join(code), filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    if not tree.body:
        raise UsageError(
            "the cell is empty: nothing to submit. Usage: %%lakeshore submit QUEUE, then the code below"
        )
    return Source(tuple(lines), tree)


def refuse_foreign(source: Source, nodes: Iterable[ast.AST]) -> None:
    """Refuse what would mean something else, or nothing, on a worker.

    Raises
    ------
    UsageError
        When a node holds `global`, a magic, a shell escape, `?` or `get_ipython()`; names the line.
    """
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Global):
                names = ", ".join(node.names)
                raise UsageError(
                    f"line {node.lineno}: `global {names}` in what is shipped: a job shares no names "
                    f"with the notebook. Pass the value in and return it"
                )
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "get_ipython"
            ):
                raise UsageError(f"line {node.lineno}: {_advice(source.line(node.lineno))}")


def _advice(line: str) -> str:
    if _TIMERS.search(line):
        fix = "Drop it: the panel shows the elapsed time"
    elif re.search(r"[!%]\s*(pip|conda|mamba|uv)\b", line):
        fix = "Install into the worker's environment before it starts"
    elif re.search(r"(^|=\s*)!", line):
        fix = "Use subprocess.run([...], check=True)"
    elif line.startswith("?") or line.endswith("?"):
        fix = "Ask for help in a cell of its own"
    else:
        fix = "Run it in a cell of its own"
    return f"`{line}` in what is shipped: no IPython runs on the worker. {fix}"


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk `node` in source order without entering functions, classes, lambdas or comprehensions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield from own_nodes(child)
        elif isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
        elif not isinstance(child, ast.Lambda):
            # A comprehension's first iterable belongs to the scope around it, and so does every `:=`.
            yield from (n for n in ast.walk(child) if isinstance(n, (ast.NamedExpr, ast.Await)))


def suspends(node: ast.AST) -> tuple[bool, bool]:
    """Whether module-level code yields, and whether it awaits."""
    nodes = list(own_nodes(node))
    yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes)
    awaits = any(isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for n in nodes) or any(
        isinstance(n, ast.comprehension) and n.is_async
        for top in nodes
        for comp in ast.iter_child_nodes(top)
        if isinstance(comp, (ast.ListComp, ast.SetComp, ast.DictComp))
        for n in ast.walk(comp)
    )
    return yields, awaits


def bindings(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Map each name that module-level code binds (or deletes) to what binds it, in source order.

    The node is the def, class or import; the value of a plain ``name = value``; else the name itself.
    """
    found: dict[str, list[ast.AST]] = {}

    def add(name: str, node: ast.AST) -> None:
        found.setdefault(name, []).append(node)

    plain: set[ast.AST] = set()
    for node in own_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                add(node.name, node)
            case ast.Import():
                for alias in node.names:
                    add(alias.asname or alias.name.partition(".")[0], node)
            case ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        add(alias.asname or alias.name, node)
            case ast.Assign(targets=[ast.Name(id=name) as target]):
                plain.add(target)
                add(name, node.value)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if node not in plain:
                add(name, node)
            case ast.NamedExpr(target=ast.Name(id=name)):
                plain.add(node.target)
                add(name, node.target)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                add(name, node)
            case ast.MatchMapping(rest=str(name)):
                add(name, node)
    return found


def loads(node: ast.AST) -> set[str]:
    """Every name read anywhere below `node`, whatever the scope."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
