"""A whole cell compiled as a function whose names are its globals: module-level code that can travel."""

from __future__ import annotations
import __future__

import ast
import sys
from types import CodeType
from typing import Any

from lakeshore.notebook.source import SCOPES, bindings, suspends

_RESULT = "__lakeshore_result__"


def compile_module(tree: ast.Module, filename: str, *, flags: int = 0) -> CodeType:
    """Compile module-level code into the body of a function whose names are its globals.

    The last expression becomes the result; `yield` and `await` at the top make it a generator or coroutine.

    Raises
    ------
    SyntaxError
        As the same code would at module level; with the line it has in `tree`.
    """
    yields, awaits = suspends(tree)
    rewriter = _ModuleLevel(filename)
    body: list[ast.stmt] = []
    for stmt in tree.body:
        if isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__":
            for alias in stmt.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        else:
            body.append(rewriter.visit(stmt))
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and not (yields and awaits):
        settled = ast.Call(ast.Name(_RESULT, ast.Load()), [last.value], [])
        body[-1] = ast.copy_location(ast.Return(settled), last)
    names = sorted(bindings(tree))
    if names:
        body.insert(0, ast.Global(names))
    make = ast.AsyncFunctionDef if awaits else ast.FunctionDef
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(_RESULT)],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
        vararg=None,
        kwarg=None,
    )
    function = make(name="cell", args=arguments, body=body or [ast.Pass()], decorator_list=[])
    if sys.version_info >= (3, 12):
        function.type_params = []
    module = ast.fix_missing_locations(ast.Module([function], []))
    outer = compile(module, filename, "exec", flags, dont_inherit=True)
    code = next(c for c in outer.co_consts if isinstance(c, CodeType))
    return code.replace(co_name="<module>", co_qualname="<module>")


class _ModuleLevel(ast.NodeTransformer):
    """Turns what only a module may hold into what a function may."""

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, SCOPES) else super().visit(node)

    def visit_Return(self, node: ast.Return) -> Any:
        raise SyntaxError(
            "'return' outside function", (self.filename, node.lineno, node.col_offset + 1, None)
        )

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.names[0].name != "*":
            return node
        call = ast.parse(f"exec({ast.unparse(node)!r}, globals())").body[0]
        for inner in ast.walk(call):
            ast.copy_location(inner, node)
        return call
