"""Which names module-level code reads before it assigns them: what a whole cell takes along.

A forward pass over the statements with the set of names surely assigned so far. What a function or a
class's methods read counts from the first mention of its name, since nothing runs earlier.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import dis
from collections.abc import Iterable, Iterator
from types import CodeType

from lakeshore.notebook.source import SCOPES, bindings, loads

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_GIVEN = frozenset({"__name__", "__builtins__"})
"""What a module has of its own."""
_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_AT_ONCE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_ANY_NAMES = frozenset({"exec", "globals", "locals", "vars", "dir"})
"""Who uses these may make, or ask for, names that no one can see in the text."""
_CATCHES = frozenset({"NameError", "Exception", "BaseException"})


def names_read(tree: ast.Module, *, flags: int = 0) -> dict[str, int]:
    """Map each name read before it is surely assigned to the line that reads it first.

    Parameters
    ----------
    tree : ast.Module
        Module-level code; `yield` and `await` at its top are fine.
    flags : int
        Compiler flags of `__future__` features in force.
    """
    return _walked(tree, flags).found


def names_needed(tree: ast.Module, *, flags: int = 0) -> dict[str, int]:
    """Map each name that module-level code cannot do without to the line that reads it first.

    These are the names it reads outside functions and nowhere assigns before; not those in a `try` that
    catches `NameError`, and none where `exec`, `globals()` or a star import may make names. Builtins count.

    Parameters
    ----------
    tree : ast.Module
        Module-level code.
    flags : int
        Compiler flags of `__future__` features in force.
    """
    return {} if loads(tree) & _ANY_NAMES else _walked(tree, flags).needed


def _walked(tree: ast.Module, flags: int) -> _Walk:
    for stmt in tree.body:
        if isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__":
            for alias in stmt.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    walk = _Walk(flags)
    walk.block(tree.body, set())
    return walk


def global_names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names that `code` and the code nested in it load and store beyond their own locals."""
    loaded, stored = _own_names(code)
    for inner in _nested(code):
        inner_loaded, inner_stored = global_names(inner)
        loaded |= inner_loaded
        stored |= inner_stored
    return loaded, stored


def _own_names(code: CodeType) -> tuple[set[str], set[str]]:
    instructions = [(inst.opname, str(inst.argval)) for inst in dis.get_instructions(code)]
    loaded = {name for op, name in instructions if op in _LOADS} - _GIVEN
    return loaded, {name for op, name in instructions if op in _STORES}


def _nested(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _loaded_at_once(code: CodeType) -> set[str]:
    """Return what running `code` itself loads: its comprehensions are run, its functions are not."""
    inner = [_loaded_at_once(each) for each in _nested(code) if each.co_name in _AT_ONCE]
    return _own_names(code)[0].union(*inner)


class _Walk:
    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.found: dict[str, int] = {}
        self.needed: dict[str, int] = {}
        self.later: dict[str, set[str]] = {}
        self.perhaps: set[str] = set()
        """Names that some statement before may have assigned."""
        self.lenient = 0
        """Above 0 where a name that is missing does no harm, or may come from anywhere."""

    def touch(self, name: str, line: int, known: set[str], *, now: bool = True) -> None:
        if name not in known and name not in _GIVEN:
            self.found.setdefault(name, line)
            if now and not self.lenient and name not in self.perhaps:
                self.needed.setdefault(name, line)
        for inner in sorted(self.later.pop(name, ())):
            self.touch(inner, line, known, now=False)

    @contextlib.contextmanager
    def leniently(self, yes: bool) -> Iterator[None]:
        self.lenient += yes
        try:
            yield
        finally:
            self.lenient -= yes

    def expr(self, node: ast.AST | None, known: set[str]) -> None:
        """Note what an expression (or a target) reads, then what it assigns."""
        if node is None:
            return
        if isinstance(node, ast.NamedExpr):
            self.expr(node.value, known)
            self.expr(node.target, known)
        elif isinstance(node, SCOPES):
            assert isinstance(node, ast.expr)
            code = self.compiled(ast.Expression(node))
            loaded, stored = global_names(code)
            at_once = _loaded_at_once(code)
            for name in sorted(loaded - stored):
                self.touch(name, node.lineno, known, now=name in at_once)
            known |= stored
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.touch(node.id, node.lineno, known)
            elif isinstance(node.ctx, ast.Store):
                known.add(node.id)
            else:
                self.touch(node.id, node.lineno, known)
                known.discard(node.id)
        else:
            for child in ast.iter_child_nodes(node):
                self.expr(child, known)

    def compiled(self, node: ast.Module | ast.Expression) -> CodeType:
        mode = "exec" if isinstance(node, ast.Module) else "eval"
        flags = self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(node, "<names>", mode, flags, dont_inherit=True)
        assert isinstance(code, CodeType)
        return code

    def block(self, body: Iterable[ast.stmt], known: set[str]) -> set[str]:
        for stmt in body:
            made = set(bindings(ast.Module([stmt], [])))
            if isinstance(stmt, (ast.For, ast.AsyncFor, ast.While)):  # a turn may read what the last one made
                self.perhaps |= made
            known = self.statement(stmt, known)
            self.perhaps |= made
        return known

    def statement(self, stmt: ast.stmt, known: set[str]) -> set[str]:
        match stmt:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.definition(stmt, known)
            case ast.Import():
                known.update(a.asname or a.name.partition(".")[0] for a in stmt.names)
            case ast.ImportFrom():
                known.update(a.asname or a.name for a in stmt.names)
                self.lenient += any(a.name == "*" for a in stmt.names)
            case ast.Assign():
                self.expr(stmt.value, known)
                for target in stmt.targets:
                    self.expr(target, known)
            case ast.AugAssign():
                if isinstance(stmt.target, ast.Name):
                    self.touch(stmt.target.id, stmt.lineno, known)
                self.expr(stmt.value, known)
                self.expr(stmt.target, known)
            case ast.AnnAssign():
                self.expr(stmt.value, known)
                if not self.flags & __future__.annotations.compiler_flag:
                    self.expr(stmt.annotation, known)
                if stmt.value is not None or not isinstance(stmt.target, ast.Name):
                    self.expr(stmt.target, known)
            case ast.For() | ast.AsyncFor():
                self.expr(stmt.iter, known)
                inside = set(known)
                self.expr(stmt.target, inside)
                self.block(stmt.body, inside)
                self.block(stmt.orelse, set(known))
            case ast.While():
                self.expr(stmt.test, known)
                self.block(stmt.body, set(known))
                self.block(stmt.orelse, set(known))
            case ast.If():
                self.expr(stmt.test, known)
                known = self.block(stmt.body, set(known)) & self.block(stmt.orelse, set(known))
            case ast.With() | ast.AsyncWith():
                for item in stmt.items:
                    self.expr(item.context_expr, known)
                    self.expr(item.optional_vars, known)
                catches = any(_CATCHES & loads(item.context_expr) for item in stmt.items)
                with self.leniently(catches):
                    known = self.block(stmt.body, known)
            case ast.Try() | ast.TryStar():
                known = self.attempt(stmt, known)
            case ast.Match():
                self.expr(stmt.subject, known)
                for case in stmt.cases:
                    inside = set(known)
                    for node in ast.walk(case.pattern):
                        if isinstance(node, ast.expr):
                            self.expr(node, inside)
                        name = getattr(node, "name", None) or getattr(node, "rest", None)
                        if name:
                            inside.add(name)
                    self.expr(case.guard, inside)
                    self.block(case.body, inside)
            case _:
                with self.leniently(type(stmt).__name__ == "TypeAlias"):  # evaluated when someone asks
                    self.expr(stmt, known)
        return known

    def attempt(self, stmt: ast.Try | ast.TryStar, known: set[str]) -> set[str]:
        catches = any(h.type is None or _CATCHES & loads(h.type) for h in stmt.handlers)
        with self.leniently(catches):
            body = self.block(stmt.body, set(known))
        ends = [self.block(stmt.orelse, body)]
        for handler in stmt.handlers:
            inside = set(known)
            self.expr(handler.type, inside)
            if handler.name:
                inside.add(handler.name)
            ends.append(self.block(handler.body, inside) - {handler.name or ""})
        surely = set.intersection(*ends)
        return surely | self.block(stmt.finalbody, set(known))

    def definition(
        self, stmt: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, known: set[str]
    ) -> None:
        outer = self.compiled(ast.Module([stmt], []))
        now, _ = _own_names(outer)
        at_once, later = set(now), set[str]()
        for code in _nested(outer):
            if isinstance(stmt, ast.ClassDef):  # its body runs at once, its methods when someone uses it
                loaded, stored = _own_names(code)
                now |= loaded - stored
                if not any(isinstance(node, ast.Try) for node in ast.walk(stmt)):
                    at_once |= loaded - stored
                for method in _nested(code):
                    loaded, stored = global_names(method)
                    later |= loaded - stored
            else:
                loaded, stored = global_names(code)
                later |= loaded - stored
        if stmt.decorator_list:  # a decorator may call what it gets
            now, later = now | later, set()
        for name in sorted(now - {stmt.name}):
            self.touch(name, stmt.lineno, known, now=name in at_once)
        known.add(stmt.name)
        self.later[stmt.name] = later
