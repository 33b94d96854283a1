"""What a `%%lakeshore submit` cell ships: its text and the notebook's names in, a plan out.

The last statement decides (`Shape`). Planning stores nothing and runs nothing but, where the last
statement calls a function that the cell itself imports, that import.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Literal

from IPython.core.error import UsageError

from lakeshore.notebook.callees import Callee, Callees, is_function, own_imports
from lakeshore.notebook.last_value import assigned_names, with_value
from lakeshore.notebook.module_code import compile_module
from lakeshore.notebook.reads import global_names, names_needed, names_read
from lakeshore.notebook.source import FUNCTIONS, Source, bindings, loads, refuse_foreign, suspends

Shape = Literal["call", "def", "cell"]
COLLECT = "__lakeshore_call__"
_IPYTHON = frozenset({"display", "exit", "quit"})
"""Builtins where a kernel has them."""
_NAMES_SHOWN = 4
_ODD = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs here and what is submitted.

    Attributes
    ----------
    shape : {"call", "def", "cell"}
        Calls, one function, or the whole cell.
    name : str
        The function's name, or ``"cell-N"``.
    label : str
        What is shipped, in the user's words, for the panel.
    filename : str
        The name of the code in tracebacks: ``<lakeshore NAME cell N>``.
    here : ast.Module
        Runs in the notebook first; empty for a whole cell.
    calls : ast.Expression or None
        Shape "call": a function of one argument, the collector, that evaluates to the same shape of
        what the collector returned for each ``(callee, *args, **kwargs)``.
    targets : tuple of str
        Shape "call": names that get the id, or the shape of ids.
    fn : str or None
        Shape "def": the function.
    code : CodeType or None
        Shape "cell": the body, for `whole.make_function`.
    reads : mapping of str to int
        Shape "cell": the notebook's names it takes along, each with the line that reads it.
    hints : tuple of str
        What the user should know though it is no fault.
    """

    shape: Shape
    name: str
    label: str
    filename: str
    here: ast.Module
    calls: ast.Expression | None = None
    targets: tuple[str, ...] = ()
    fn: str | None = None
    code: CodeType | None = None
    reads: Mapping[str, int] = field(default_factory=dict)
    hints: tuple[str, ...] = ()


def plan(
    source: Source,
    namespace: Mapping[str, Any],
    *,
    number: str,
    name: str | None = None,
    fn: str | None = None,
    whole: bool = False,
    flags: int = 0,
) -> Plan:
    """Decide what a cell ships.

    Parameters
    ----------
    source : Source
        The cell, read.
    namespace : mapping
        The notebook's names.
    number : str
        Which cell this is: its execution count.
    name : str, optional
        The job's name; the function's, or ``cell-N``, without it.
    fn : str, optional
        Ship this function (`--fn`).
    whole : bool
        Ship the whole cell (`--cell`).
    flags : int
        Compiler flags of `__future__` features in force.

    Raises
    ------
    UsageError
        When the cell cannot be shipped as it stands; nothing has run.
    SyntaxError
        With the cell's own line number.
    """
    return _Planner(source, namespace, number, name, flags).plan(fn, whole)


def code_name(name: str, number: str) -> str:
    """Return the file name of a cell's code in tracebacks."""
    unnamed = name in ("cell", f"cell-{number}")
    return f"<lakeshore {'' if unnamed else _ODD.sub('-', name) + ' '}cell {number}>"


class _Planner:
    def __init__(
        self, source: Source, namespace: Mapping[str, Any], number: str, name: str | None, flags: int
    ) -> None:
        self.source, self.namespace, self.number, self.name, self.flags = (
            source,
            namespace,
            number,
            name,
            flags,
        )
        self.body = source.tree.body
        self.bound = bindings(source.tree)
        self.callees = Callees(self.bound, namespace)
        self.defs = {stmt.name: stmt for stmt in self.body if isinstance(stmt, FUNCTIONS)}

    def plan(self, fn: str | None, whole: bool) -> Plan:
        if fn is not None:
            return self.as_def(fn)
        if whole or suspends(self.source.tree)[0] or any(suspends(ast.Module(self.body[-1:], []))):
            return self.as_cell()
        call = self.as_call()
        if call is not None:
            return call
        if isinstance(self.body[-1], FUNCTIONS) and all(_is_plain(stmt) for stmt in self.body):
            return self.as_def(self.one_function())
        return self.as_cell()

    # -- a call, or a display of calls

    def as_call(self) -> Plan | None:
        last = self.body[-1]
        targets: tuple[str, ...] = ()
        match last:
            case ast.Expr(value=value):
                pass
            case ast.Assign(targets=[*names], value=value) if all(isinstance(t, ast.Name) for t in names):
                targets = tuple(t.id for t in names if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                targets = (target,)
            case _:
                return None
        found: list[tuple[ast.Call, Callee, frozenset[str]]] = []
        collected = self.elements(value, frozenset(), found)
        if collected is None:
            return None
        for call, callee, shadowed in found:
            self.refuse_nested(call, callee, shadowed)
        self.refuse_shipped({name for call, _, _ in found for name in loads(call)})
        callees = list(dict.fromkeys(callee.text for _, callee, _ in found))
        name = self.name or callees[0].rpartition(".")[2]
        argument = ast.arguments(
            posonlyargs=[],
            args=[ast.arg(COLLECT)],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
            vararg=None,
            kwarg=None,
        )
        expression = ast.Expression(ast.copy_location(ast.Lambda(argument, collected), value))
        return Plan(
            shape="call",
            name=name,
            label=_short(ast.unparse(value)),
            hints=tuple(_told_of_modules(stmt for stmt in self.body if isinstance(stmt, FUNCTIONS))),
            filename=code_name(name, self.number),
            here=ast.Module(self.body[:-1], []),
            calls=ast.fix_missing_locations(expression),
            targets=targets,
        )

    def elements(
        self, node: ast.expr, shadowed: frozenset[str], found: list[tuple[ast.Call, Callee, frozenset[str]]]
    ) -> ast.expr | None:
        """Return `node` with its element calls handed to the collector; None when one is no such call."""

        def each(nodes: Iterable[ast.expr], hidden: frozenset[str] = shadowed) -> list[ast.expr] | None:
            out = [self.elements(n, hidden, found) for n in nodes]
            return None if not out or None in out else [n for n in out if n is not None]

        match node:
            case ast.Call():
                callee = self.callees.of(node.func, shadowed)
                if callee is None:
                    return None
                found.append((node, callee, shadowed))
                collect = ast.Name(COLLECT, ast.Load())
                return ast.copy_location(ast.Call(collect, [node.func, *node.args], node.keywords), node)
            case ast.List() | ast.Tuple():
                elts = each(node.elts)
                return None if elts is None else ast.copy_location(type(node)(elts, ast.Load()), node)
            case ast.Dict():
                values = each(node.values) if None not in node.keys else None
                return None if values is None else ast.copy_location(ast.Dict(node.keys, values), node)
            case ast.ListComp() | ast.DictComp():
                hidden = shadowed | {
                    n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
                }
                one = each([node.elt if isinstance(node, ast.ListComp) else node.value], hidden)
                if one is None:
                    return None
                if isinstance(node, ast.ListComp):
                    return ast.copy_location(ast.ListComp(one[0], node.generators), node)
                return ast.copy_location(ast.DictComp(node.key, one[0], node.generators), node)
        return None

    def refuse_nested(self, call: ast.Call, outer: Callee, shadowed: frozenset[str]) -> None:
        for inner in _calls_below([*call.args, *call.keywords]):
            callee = self.callees.of(inner.func, shadowed)
            if callee is not None and callee.users:
                raise UsageError(
                    f"line {inner.lineno}: {callee.text}(...) stands in the arguments of {outer.text}(...), "
                    f"and both could be the job. Assign it before (it runs here), or ship all with --cell"
                )

    # -- a def

    def as_def(self, fn: str) -> Plan:
        if fn not in self.defs and fn not in self.bound and not is_function(self.namespace.get(fn)):
            known = [
                *self.defs,
                *(k for k, v in self.namespace.items() if is_function(v) and not k.startswith("_")),
            ]
            raise UsageError(f"--fn {fn}: no function of this name here.{nearest(fn, known)}")
        self.refuse_shipped({fn})
        name = self.name or fn
        return Plan(
            shape="def",
            name=name,
            label=f"def {fn}",
            filename=code_name(name, self.number),
            here=self.source.tree,
            fn=fn,
        )

    def one_function(self) -> str:
        """The function no other part of the cell mentions."""
        mentioned = {
            name
            for stmt in self.body
            for name in loads(stmt) - ({stmt.name} if isinstance(stmt, FUNCTIONS) else set())
        }
        roots = [name for name in self.defs if name not in mentioned]
        if len(roots) != 1:
            names = ", ".join(roots or self.defs)
            why = "none is called by no other" if not roots else "no other calls them"
            raise UsageError(
                f"which function is the job: {names} ({why})? Say --fn {(roots or list(self.defs))[-1]}"
            )
        return roots[0]

    # -- the whole cell

    def as_cell(self) -> Plan:
        refuse_foreign(self.source, self.body)
        for node in ast.walk(self.source.tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=base), attr="submit" | "map" | "remote" as verb)
                ):
                    if self.callees.is_udf(base):
                        raise UsageError(
                            f"line {node.lineno}: {base}.{verb}(...) submits by itself; "
                            f"run this cell without the magic"
                        )
        name = self.name or f"cell-{self.number}"
        filename = code_name(name, self.number)
        reads = {
            name: line
            for name, line in names_read(self.source.tree, flags=self.flags).items()
            if name in self.namespace and not _is_exit(self.namespace[name])
        }
        code = compile_module(with_value(self.source.tree), filename, flags=self.flags)
        self.refuse_missing(reads)
        n_lines = len(self.source.lines) - 1
        return Plan(
            shape="cell",
            name=name,
            label=f"the whole cell, {n_lines} line{'' if n_lines == 1 else 's'}",
            filename=filename,
            here=ast.Module([], []),
            code=code,
            reads=reads,
            hints=tuple(self.hints()),
        )

    def refuse_missing(self, reads: Iterable[str]) -> None:
        """Refuse a name that neither the cell nor the notebook has: the job could only fail, later."""
        made_by_functions: set[str] = set()  # `global` in a function of the notebook
        for name in reads:
            if isinstance(function := self.namespace[name], FunctionType):
                made_by_functions |= global_names(function.__code__)[1]
        for name, line in names_needed(self.source.tree, flags=self.flags).items():
            if name in self.namespace or name in made_by_functions or hasattr(builtins, name):
                continue
            if name in _IPYTHON or (name.startswith("__") and name.endswith("__")):
                continue
            known = [known for known in self.namespace if not known.startswith("_")]
            raise UsageError(
                f"line {line}: name {name!r} is not defined in this notebook; "
                f"run the cell that defines it.{nearest(name, known)}"
            )

    def hints(self) -> Iterable[str]:
        last = self.body[-1]
        yield from _told_of_modules(self.body)
        if assigned := assigned_names(self.body):
            shown = ", ".join(f"`{name}`" for name in assigned[:_NAMES_SHOWN])
            more = ", …" if len(assigned) > _NAMES_SHOWN else ""
            verb = "stays" if len(assigned) == 1 else "stay"
            of = ""
            if value := assigned_names([last]):
                whose = "its value" if value == assigned else f"the value of `{value[0]}`"
                of = f": {whose if len(value) == 1 else 'what the last line assigns'} is the result"
            yield f"the whole cell is the job; {shown}{more} {verb} on the worker{of}"
        if isinstance(last, ast.For):
            for call in _calls_below(last.body):
                callee = self.callees.of(call.func)
                if callee is not None:
                    each = f"for {ast.unparse(last.target)} in {_short(ast.unparse(last.iter))}"
                    yield f"the loop runs as one job. For a job each write [{ast.unparse(call)} {each}]"
                    return
        if isinstance(last, (*FUNCTIONS, ast.ClassDef)):
            other = next((stmt for stmt in self.body if not _is_plain(stmt)), last)
            yield (
                f"the whole cell is the job, because of line {other.lineno}, and never calls {last.name}. "
                f"Call it in the last line, or say --fn {last.name}"
            )

    def refuse_shipped(self, names: set[str]) -> None:
        """Refuse what cannot travel in the cell's own functions and classes that `names` lead to."""
        parts = {s.name: s for s in self.body if isinstance(s, (*FUNCTIONS, ast.ClassDef))}
        reached: dict[str, ast.stmt] = {}
        waiting = sorted(names)
        while waiting:
            name = waiting.pop()
            if name in parts and name not in reached:
                reached[name] = parts[name]
                waiting += sorted(loads(parts[name]))
        refuse_foreign(self.source, reached.values())


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `` Did you mean X?`` for a typo, or nothing."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f" Did you mean {close[0]}?" if close else ""


def _told_of_modules(nodes: Iterable[ast.stmt]) -> Iterable[str]:
    """Say what an import in the job's own code finds on a worker; what is imported here goes along."""
    for name, (line, folder) in own_imports(nodes).items():
        yield (
            f"line {line} imports {name} on the worker, which has it only where it runs in {folder}. "
            f"Import {name} in a cell before, and not in the job: then it goes along"
        )


def _is_plain(stmt: ast.stmt) -> bool:
    """Whether a statement may stand before a def that is the job."""
    match stmt:
        case ast.Expr(value=ast.Constant()):
            return True
    plain = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return isinstance(stmt, plain) or type(stmt).__name__ == "TypeAlias"


def _calls_below(nodes: Iterable[ast.AST]) -> Iterable[ast.Call]:
    """The calls that evaluating `nodes` makes, in source order; a lambda's or def's body is not evaluated."""
    for node in nodes:
        if isinstance(node, (ast.Lambda, *FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls_below(ast.iter_child_nodes(node))


def _is_exit(value: object) -> bool:
    """Whether this is IPython's own `exit` or `quit`, which holds the shell; a worker has Python's."""
    return type(value).__module__ == "IPython.core.autocall"


def _short(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
