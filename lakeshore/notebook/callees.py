"""What a call in a cell calls, and whether that can be a job: a function of the notebook or imported by it.

Nothing is run but, where the cell itself imports what it calls, that import.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from IPython.core.error import UsageError

from lakeshore.functions.reference import is_installed
from lakeshore.notebook.source import FUNCTIONS, loads

_WRAPPERS = frozenset({"partial", "lru_cache", "cache", "udf"})
"""What makes another callable of a function that is still that function's job."""


@dataclass(frozen=True, slots=True)
class Callee:
    """What is called.

    Attributes
    ----------
    text : str
        As the cell writes it.
    users : bool
        Whether it is the user's own code, not an installed library's.
    """

    text: str
    users: bool


def is_function(value: object) -> bool:
    """Whether a call of `value` can be a job: a Python function or udf, bare or in `partial` or a cache."""
    if isinstance(value, functools.partial):
        return is_function(value.func)
    if isinstance(value, FunctionType) or _is_udf(value):
        return True
    return isinstance(value, functools._lru_cache_wrapper) and isinstance(value.__wrapped__, FunctionType)


class Callees:
    """Tells what the calls of one cell call.

    Parameters
    ----------
    bound : mapping
        What the cell binds, from `source.bindings`.
    namespace : mapping
        The notebook's names.
    """

    def __init__(self, bound: Mapping[str, list[ast.AST]], namespace: Mapping[str, Any]) -> None:
        self._bound, self._namespace = bound, namespace

    def of(self, func: ast.expr, shadowed: frozenset[str] = frozenset()) -> Callee | None:
        """Return what `func` calls when that can be a job, else None.

        Parameters
        ----------
        func : ast.expr
            What stands before the brackets.
        shadowed : frozenset of str
            Names that mean something else there: a comprehension's own.
        """
        match func:
            case ast.Name(id=name) if name not in shadowed:
                return self._named(name)
            case ast.Attribute(value=base, attr=attr):
                module = self._module(base, shadowed)
                value = getattr(module, attr, None)
                # `plt.show()` is a step of the work, `train.run()` of a module of the user's is the work
                if module is not None and is_function(value) and not is_installed(module):
                    return Callee(ast.unparse(func), users=True)
        return None

    def is_udf(self, name: str) -> bool:
        """Whether a name of the cell or the notebook is a udf."""
        nodes = self._bound.get(name)
        if nodes is None:
            return _is_udf(self._namespace.get(name))
        return any(
            "udf" in loads(d) or "udf" in _attributes(d)
            for n in nodes
            for d in getattr(n, "decorator_list", ())
        )

    def _named(self, name: str) -> Callee | None:
        nodes = self._bound.get(name)
        if nodes is None:
            value = self._namespace.get(name)
            if not is_function(value):
                return None
            return Callee(name, users=not _is_library(getattr(value, "__module__", None)))
        if all(isinstance(node, (*FUNCTIONS, ast.Lambda)) for node in nodes):
            return Callee(name, users=True)
        match nodes:
            case [ast.ImportFrom(module=str(home), level=0) as node]:
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                module = _import(home)
                if module is not None and not hasattr(module, original):
                    _refuse_unknown(node, home, original, module)
                if is_function(getattr(module, original, None)):
                    return Callee(name, users=not _is_library(home))
            case [ast.Name(id=other)] if other != name:  # `fast = train`
                return self._renamed(name, other)
            case [ast.Call(func=wrapper, args=[ast.Name(id=other), *_])] if other != name:
                if _last_name(wrapper) in _WRAPPERS:  # `fast = partial(train, lr=0.1)`
                    return self._renamed(name, other)
        return None

    def _renamed(self, name: str, other: str) -> Callee | None:
        if (nodes := self._bound.get(other)) is not None and not all(
            isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ImportFrom)) for node in nodes
        ):
            return None  # a chain of names, which may lead anywhere
        found = self._named(other)
        return None if found is None else Callee(name, found.users)

    def _module(self, node: ast.expr, shadowed: frozenset[str]) -> ModuleType | None:
        value: object = None
        match node:
            case ast.Name(id=name) if name not in shadowed:
                match self._bound.get(name):
                    case None:
                        value = self._namespace.get(name)
                    case [ast.Import() as found]:
                        alias = next(a for a in found.names if (a.asname or a.name.partition(".")[0]) == name)
                        whole = _import(alias.name)
                        value = whole if alias.asname else sys.modules.get(name)
            case ast.Attribute(value=base, attr=attr):
                value = getattr(self._module(base, shadowed), attr, None)
        return value if isinstance(value, ModuleType) else None


def own_imports(nodes: Iterable[ast.AST]) -> dict[str, tuple[int, str]]:
    """Map each module of the user's own that code imports by name to the line and the module's folder."""
    found: dict[str, tuple[int, str]] = {}
    for node in (each for top in nodes for each in ast.walk(top)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(home), level=0):
                modules = [home]
            case _:
                continue
        for name in (module.partition(".")[0] for module in modules):
            file = _file(name)
            if name not in found and file is not None:
                stand_in = ModuleType(name)
                stand_in.__file__ = file
                if not is_installed(stand_in):
                    folder = Path(file).parent
                    found[name] = node.lineno, str(folder.parent if file.endswith("__init__.py") else folder)
    return found


def _file(name: str) -> str | None:
    """Return where a top-level module's code is, without importing it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a finder that cannot say
        return None
    return None if spec is None or not spec.has_location else spec.origin


def _refuse_unknown(node: ast.ImportFrom, home: str, name: str, module: ModuleType) -> None:
    """Refuse to import what a module that is here does not have, unless it is a module of its own."""
    try:
        if importlib.util.find_spec(f"{home}.{name}") is not None:
            return
    except ImportError:  # the module is no package
        pass
    file = getattr(module, "__file__", None) or "built in"
    raise UsageError(
        f"line {node.lineno}: cannot import name {name!r} from {home!r} ({file}) here. Where its file has "
        f"changed since it was imported: importlib.reload({home}); where only the worker has it: --cell"
    )


def _is_udf(value: object) -> bool:
    home = sys.modules.get("lakeshore.functions.udf")
    return home is not None and isinstance(value, home.UDF)


def _is_library(module: str | None) -> bool:
    """Whether a module is Python's or an installed distribution's, not the user's own code."""
    found = sys.modules.get(module or "")
    return found is not None and is_installed(found)


def _last_name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _attributes(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - importing runs any code; what fails here may still be there on the worker
        return None
