"""What a whole cell's last statement assigns: the names, and the cell rewritten so that this is its value."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable

_ASSIGNED = "__lakeshore_assigned__"


def assigned_names(body: Iterable[ast.stmt]) -> list[str]:
    """The names that plain assignments at the top of a cell set, in order."""
    names: dict[str, None] = {}
    for stmt in body:
        match stmt:
            case ast.Assign(targets=targets):
                found = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
                found = [target]
            case _:
                continue
        each = (n for target in found for n in ast.walk(target) if isinstance(n, ast.Name))
        names.update((n.id, None) for n in each if isinstance(n.ctx, ast.Store))
    return list(names)


def with_value(tree: ast.Module) -> ast.Module:
    """Return a cell that ends in an expression where it ended in an assignment: what that assigned."""
    last = tree.body[-1]
    match last:
        case ast.Assign(targets=[target, *_]) if _has_names_alone(target):
            value = copy.deepcopy(target)
        case ast.Assign(targets=targets):
            last = ast.copy_location(
                ast.Assign([ast.Name(_ASSIGNED, ast.Store()), *targets], last.value), last
            )
            value = ast.Name(_ASSIGNED)
        case (
            ast.AugAssign(target=ast.Name(id=name))
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
        ):
            value = ast.Name(name)
        case _:
            return tree
    for node in ast.walk(value):
        if isinstance(node, (ast.Name, ast.Tuple, ast.List, ast.Starred)):
            node.ctx = ast.Load()
        ast.copy_location(node, last)
    end = ast.copy_location(ast.Expr(value), last)
    return ast.fix_missing_locations(ast.Module([*tree.body[:-1], last, end], tree.type_ignores))


def _has_names_alone(target: ast.expr) -> bool:
    match target:
        case ast.Name():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_has_names_alone(part) for part in parts)
        case ast.Starred(value=inner):
            return _has_names_alone(inner)
    return False
