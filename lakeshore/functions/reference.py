"""By reference: which functions another process can import by name, and which of them it may run.

A reference is made only to what is installed here (site-packages, the standard library, an editable
install). A module that merely lies under the working directory or on a path of this process imports
here and nowhere else, on a remote worker as on a daemon started in another directory; it goes by value.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

from lakeshore.errors import NotImportable, StaleSource
from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.source import source_hash

_DYNAMIC = ("__main__", "__mp_main__")
_OURS = __name__.partition(".")[0]


# ---- submitter: may this be a reference?


@functools.cache
def _installed_roots() -> tuple[str, ...]:
    """Return the directories whose modules any process of this interpreter can import."""
    paths = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    for folder in list(paths):
        for pth in Path(folder).glob("*.pth"):
            lines = pth.read_text(encoding="utf-8", errors="replace").splitlines()
            editable = [
                line.strip() for line in lines if line.strip() and not line.startswith(("#", "import"))
            ]
            paths.update(str(Path(folder, line)) for line in editable if Path(folder, line).is_dir())
    return tuple(os.path.realpath(path).rstrip(os.sep) + os.sep for path in paths)


def _under_installed(file: str) -> bool:
    return os.path.realpath(file).startswith(_installed_roots())


def _by_editable_finder(top: str) -> bool:
    # setuptools' editable installs that are no plain directory: a finder with a map of top-level names
    return any(
        top in getattr(module, "MAPPING", ()) or top in getattr(module, "NAMESPACES", ())
        for name, module in list(sys.modules.items())
        if name.startswith("__editable__")
    )


_installed: dict[tuple[str, str | None], bool] = {}


def is_installed(module: ModuleType) -> bool:
    """Whether another process with the same packages can import `module` by name."""
    name, file = module.__name__, getattr(module, "__file__", None)
    answer = _installed.get((name, file))
    if answer is None:
        answer = _installed[name, file] = _look(module, name, file)
    return answer


def _look(module: ModuleType, name: str, file: str | None) -> bool:
    if name in _DYNAMIC:
        return False
    top = name.partition(".")[0]
    if top == _OURS:  # every worker has lakeshore, also where it runs from a checkout
        return True
    if top in sys.stdlib_module_names or name in sys.builtin_module_names:
        return file is None or _under_installed(file)
    if _by_editable_finder(top):
        return True
    package = sys.modules.get(top)
    home = getattr(package, "__file__", None)
    if home is not None:
        # a package's own path finds its parts, wherever they lie or however they were made
        return _importable_as(top, home)
    if file is not None:
        return _importable_as(name, file)
    return any(_under_installed(path) for path in list(getattr(module, "__path__", ())))


def _importable_as(name: str, file: str) -> bool:
    """Whether `file` lies where an installed module of this name lies."""
    real = os.path.realpath(file)
    for root in _installed_roots():
        if real.startswith(root):
            *folders, leaf = Path(real[len(root) :]).parts
            leaf = leaf.partition(".")[0]
            if name.split(".") == (folders if leaf == "__init__" else [*folders, leaf]):
                return True
    return False


def reference_of(fn: object) -> tuple[str, str] | None:
    """Return ``(module, qualname)`` where that name is `fn` itself (or a UDF of it) now, else None."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    found: Any = sys.modules.get(module)
    if found is None or module in _DYNAMIC:
        return None
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is fn or (isinstance(found, BodyWrapper) and found.fn is fn):
        return module, qualname
    of_class = isinstance(fn, MethodType) and isinstance(fn.__self__, type) and found == fn
    return (module, qualname) if of_class else None


def by_reference(fn: Callable[..., Any], *, force: bool = False) -> dict[str, Any] | None:
    """Return the reference to `fn`, or None where only this process could import it (unless `force`)."""
    name = reference_of(fn)
    if name is None or not (force or is_installed(sys.modules[name[0]])):
        return None
    source = source_hash(fn)
    if source.edited and not force:
        return None
    return {"kind": "ref", "module": name[0], "qualname": name[1], "src_hash": source.hash}


# ---- worker: does it resolve, and may it run?


def _name(module: object, qualname: object) -> str:
    return f"{module}:{qualname}"


def from_registry(
    registry: Mapping[str, Callable[..., Any]], fn: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Return the registry's function of this name (``module:qualname``, else ``qualname``), or None."""
    module, qualname = fn.get("module"), fn.get("qualname")
    found = registry.get(_name(module, qualname)) if module else None
    if found is None and isinstance(qualname, str):
        found = registry.get(qualname)
    return found


def resolve_reference(
    fn: Mapping[str, Any], *, trusted: bool, allow_modules: Iterable[str], check_source: bool
) -> Callable[..., Any]:
    """Import what a reference names, if this worker may.

    Raises
    ------
    NotImportable
        When the reference is malformed, may not be imported here, or leads to no function.
    StaleSource
        When `check_source` and the source here is not the one submitted.
    """
    module, qualname, expected = fn.get("module"), fn.get("qualname"), fn.get("src_hash")
    if not (isinstance(module, str) and isinstance(qualname, str) and module and qualname):
        raise NotImportable(f"the reference {_name(module, qualname)!r} names no function; submit it again")
    allowed = any(module == name or module.startswith(f"{name}.") for name in allow_modules)
    if not trusted:
        _refuse_program(module, qualname)
    if not (trusted or allowed):
        _refuse_unseen(module, qualname)
    found = _import(module, qualname, trusted=trusted)
    if not trusted:
        _refuse_seen(module, qualname, found, allowed)
    body = found.fn if isinstance(found, BodyWrapper) else found
    if check_source and expected is not None:
        _check_source(module, qualname, found, expected)
    if not callable(body):
        raise NotImportable(f"{_name(module, qualname)!r} is a {type(body).__name__}, not a function")
    return body


_WAYS = (
    "register it (run_worker(registry={{{name!r}: ...}})), or start the worker with --allow-module {module}"
)


def _refuse_program(module: str, qualname: str) -> None:
    """Refuse ``package.__main__``, which runs a program when it is imported."""
    name, last = _name(module, qualname), module.rpartition(".")[2]
    if last in _DYNAMIC:
        raise NotImportable(
            f"{name!r} is of a program, which importing starts. Move the function to a module of its own, "
            f"named with --allow-module, or register it (run_worker(registry={{{name!r}: ...}}))"
        )


def _refuse_unseen(module: str, qualname: str) -> None:
    """Refuse without importing anything what an untrusted plane may not name: all but a udf of its module."""
    name, top = _name(module, qualname), module.partition(".")[0]
    way = _WAYS.format(name=name, module=module)
    if any(part.startswith("_") or not part.isidentifier() for part in module.split(".")):
        raise NotImportable(f"{name!r} is private to a package, or no name at all. To run it: {way}")
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or module in _DYNAMIC:
        raise NotImportable(
            f"{name!r} is of the standard library, which this plane may not call. To run it: {way}"
        )
    if "." in qualname:
        raise NotImportable(f"{name!r} walks through attributes, which this plane may not. To run it: {way}")
    spec = importlib.machinery.PathFinder.find_spec(top)
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    if not any(_under_installed(place) for place in places if place) and not _by_editable_finder(top):
        raise NotImportable(f"{name!r} is not of a package installed on this worker. Install it, or {way}")
    if sys.modules.get(module) is None and qualname not in _udfs_of(module):
        raise NotImportable(
            f"{name!r} is no @udf by the source of {module} (read, not imported), so this plane may not call "
            f"it. Decorate it with lakeshore's udf there, or {way}"
        )


def _udfs_of(module: str) -> frozenset[str]:
    """Return the names that a module's source makes udfs of, without importing it or its packages."""
    file = _find_source(module)
    if file is None:
        return frozenset()
    try:
        return _udf_names(file, Path(file).stat().st_mtime_ns)
    except OSError:
        return frozenset()


def _find_source(module: str) -> str | None:
    """Return the file that importing `module` would run, or None where that is no Python source."""
    places: list[str] | None = None
    name, file = "", None
    for part in module.split("."):
        if name and places is None:
            return None
        name = f"{name}.{part}" if name else part
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, places) or _find_editable(name)
        except KeyError:  # a namespace package within another, which only an import of that one finds
            return None
        if spec is None:
            return None
        file, found = spec.origin, spec.submodule_search_locations
        loaded = getattr(sys.modules.get(name), "__path__", None)
        places = None if found is None else list(found if loaded is None else loaded)
    return file if file is not None and file.endswith(".py") else None


def _find_editable(name: str) -> importlib.machinery.ModuleSpec | None:
    for each, module in list(sys.modules.items()):
        finder = getattr(module, "_EditableFinder", None) if each.startswith("__editable__") else None
        spec: importlib.machinery.ModuleSpec | None = None if finder is None else finder.find_spec(name)
        if spec is not None:
            return spec
    return None


@functools.lru_cache(maxsize=256)
def _udf_names(file: str, modified_ns: int) -> frozenset[str]:
    """Return the top-level names that a source file binds by lakeshore's `udf`, as far as reading tells.

    These are functions under the decorator and what is assigned from a call of it, the decorator under any
    name that the file gives it: ``from lakeshore import udf as job``, ``gpu = udf(queue="gpu")``.

    Parameters
    ----------
    file : str
        A Python source file. One that cannot be read or parsed binds none.
    modified_ns : int
        The file's time stamp: a changed file is read again.
    """
    try:
        content = Path(file).read_bytes()
        if b"lakeshore" not in content:
            return frozenset()
        tree = ast.parse(content)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    makers: set[str] = set()
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            makers.update(_makers_imported(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_mentions(each, makers) for each in node.decorator_list):
                names.add(node.name)
            elif _mentions(node, makers):
                makers.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and _mentions(node.value, makers):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {target.id for target in targets if isinstance(target, ast.Name)}
            names |= bound
            makers |= bound
    return frozenset(names)


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that an import runs, those within ``if`` and ``try`` too."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, field, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _top_level(handler.body)


def _makers_imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            if alias.name == _OURS:
                yield f"{alias.asname or _OURS}.udf"
        elif (
            node.level == 0 and (node.module or "").partition(".")[0] == _OURS and alias.name in ("udf", "*")
        ):
            yield alias.asname or "udf"


def _mentions(node: ast.AST, makers: set[str]) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in makers:
            return True
        if isinstance(each, ast.Attribute) and ast.unparse(each) in makers:
            return True
    return False


def _refuse_seen(module: str, qualname: str, found: object, allowed: bool) -> None:
    name, home = _name(module, qualname), getattr(found, "__module__", None)
    if home != module:
        raise NotImportable(
            f"{name!r} is {home}'s, not {module}'s own, so this plane may not call it by that name"
        )
    if not (allowed or isinstance(found, BodyWrapper)):
        raise NotImportable(
            f"{name!r} is no @udf, so this plane may not call it. Decorate it, or "
            + _WAYS.format(name=name, module=module)
        )


def _import(module: str, qualname: str, *, trusted: bool) -> Any:
    name = _name(module, qualname)
    if module in _DYNAMIC:
        raise NotImportable(
            f"{name!r} lives in the script or notebook that submitted it. Submit it by value."
        )
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the module's code, which may raise anything
        raise NotImportable(
            f"cannot import {module!r} on this worker ({type(error).__name__}: {error}). "
            "Install it where the worker runs, or submit with transport='pickle'."
        ) from error
    for part in qualname.split("."):
        if isinstance(found, ModuleType) and found.__name__ != module and not trusted:
            raise NotImportable(
                f"{name!r} walks into the module {found.__name__!r}, which this plane may not"
            )
        try:
            # a module's own __getattr__ may import more
            lazy = trusted or not isinstance(found, ModuleType)
            found = getattr(found, part) if lazy else vars(found)[part]
        except (AttributeError, KeyError):
            file = getattr(sys.modules[module], "__file__", None)
            raise NotImportable(
                f"{name!r} does not exist on this worker: {module} ({file}) has no {part!r}. "
                "Bring the worker's copy up to date, or submit with transport='pickle'."
            ) from None
    return found


def _check_source(module: str, qualname: str, found: object, expected: str) -> None:
    name = _name(module, qualname)
    actual = source_hash(found)
    if actual.edited:
        raise StaleSource(
            f"{name!r}: its file was edited after this worker imported it. Restart the worker, then requeue."
        )
    if actual.hash is not None and actual.hash != expected:
        file = getattr(sys.modules[module], "__file__", None)
        raise StaleSource(
            f"{name!r}: the source here ({file}, {actual.hash}) is not the one submitted ({expected}). "
            "Update and restart the worker and requeue, or run it with runtime_policy='off'."
        )
