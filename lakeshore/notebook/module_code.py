"""A whole cell compiled as module-level code that leaves its last expression's value.

Python has no module that yields; such a cell becomes a function whose names are its globals.
"""

from __future__ import annotations
import __future__

import ast
import sys
from types import CodeType
from typing import Any

from lakeshore.notebook.source import SCOPES, bindings, suspends
from lakeshore.notebook.whole import RESULT


def compile_module(tree: ast.Module, filename: str, *, flags: int = 0) -> CodeType:
    """Compile a cell for `whole.start`.

    The last expression becomes the result, but for an async generator, which can have none.

    Raises
    ------
    SyntaxError
        As the same code would at module level; with the line it has in `tree`.
    """
    if suspends(tree)[0]:
        return _compile_generator(tree, filename, flags)
    body = list(tree.body)
    if isinstance(last := body[-1], ast.Expr):
        body[-1] = ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], last.value), last)
    module = ast.fix_missing_locations(ast.Module(body, []))
    code = compile(module, filename, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _compile_generator(tree: ast.Module, filename: str, flags: int) -> CodeType:
    awaits = suspends(tree)[1]
    rewriter = _ModuleLevel(filename)
    body: list[ast.stmt] = []
    for stmt in tree.body:
        if isinstance(stmt, ast.ImportFrom) and stmt.module == "__future__":
            for alias in stmt.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        else:
            body.append(rewriter.visit(stmt))
    if isinstance(last := body[-1], ast.Expr) and not awaits:
        settled = ast.Call(ast.Name(RESULT, ast.Load()), [last.value], [])
        body[-1] = ast.copy_location(ast.Return(settled), last)
    if names := sorted(bindings(tree)):
        body.insert(0, ast.Global(names))
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(RESULT)],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
        vararg=None,
        kwarg=None,
    )
    make = ast.AsyncFunctionDef if awaits else ast.FunctionDef
    function = make(name="cell", args=arguments, body=body, decorator_list=[])
    if sys.version_info >= (3, 12):
        function.type_params = []
    outer = compile(
        ast.fix_missing_locations(ast.Module([function], [])), filename, "exec", flags, dont_inherit=True
    )
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
