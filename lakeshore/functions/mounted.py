"""A reference into code that travels: the submitter stores the module's work tree, the worker mounts it.

For a module that imports here and is not installed; what is not in git, or cannot be stored, goes by value.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from lakeshore.codebase.git import CodeUnavailable
from lakeshore.codebase.mount import Mount
from lakeshore.codebase.shipping import roots
from lakeshore.errors import DispatchError, NotImportable, NotSupported
from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.reference import (
    _check_source,
    _import,
    _refuse_program,
    by_reference,
    is_installed,
    reference_of,
)
from lakeshore.functions.source import label_of, source_hash

AGAIN_SECONDS: Final = 60.0
"""How long a control plane that could not take code is not asked to."""

_down: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def with_code(
    fn: Callable[..., Any], plane: object, *, force: bool
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the reference to `fn` and the stamp of the code that it is in, once that is stored.

    None where it needs none (the module is installed), and where it cannot: the plane is of this machine, the
    module is not in git, its file was edited since (unless `force`), or, of which a warning tells, the
    control plane takes no code now, or the module has the name of one of the standard library.

    Raises
    ------
    TransportError
        When the work tree is over the size limit; names the largest files.
    """
    push = getattr(plane, "push_tree", None)
    name = reference_of(fn) if push is not None else None
    if push is None or name is None:
        return None
    module = sys.modules[name[0]]
    file = getattr(module, "__file__", None)
    if is_installed(module) or not isinstance(file, str) or not Path(file).is_file():
        return None
    top_name = name[0].partition(".")[0]
    if top_name in sys.stdlib_module_names:
        warnings.warn(
            f"the code of {label_of(fn)}() does not travel with the job: {file!r} bears the name of a module "
            f"of the standard library, which goes before it on a worker. Rename {top_name!r}.",
            stacklevel=2,
        )
        return None
    if (source_hash(fn).edited and not force) or time.monotonic() < _down.get(plane, 0.0):
        return None
    problem = ""
    try:
        if not plane.keeps_files:  # type: ignore[attr-defined]
            return None
        pushed = push(Path(file).resolve().parent)
    except NotSupported:
        return None
    except (CodeUnavailable, DispatchError) as exc:
        problem = str(exc)
    if problem:
        _down[plane] = time.monotonic() + AGAIN_SECONDS
        warnings.warn(
            f"the code of {label_of(fn)}() was not stored, so it does not travel with the job: {problem}",
            stacklevel=2,
        )
        return None
    if pushed is None:
        return None
    top = pushed.top.resolve()
    real = Path(file).resolve()
    if not real.is_relative_to(top) or real.relative_to(top).as_posix() not in pushed.paths:
        return None  # ignored by git, or left out
    found = roots(top, real, name[0], sys.path, package=hasattr(module, "__path__"))
    reference = by_reference(fn, force=True)
    if found is None or reference is None:
        return None
    return reference, {**pushed.stamp, "roots": found}


def resolve_mounted(fn: Mapping[str, Any], mount: Mount, *, check_source: bool) -> Callable[..., Any] | None:
    """Import what a reference names from a job's code mount; None where the mount has no such module.

    Raises
    ------
    NotImportable
        When it does not import, or leads to no function.
    StaleSource
        When `check_source` and the source in the mount is not the one submitted.
    """
    module, qualname, expected = fn.get("module"), fn.get("qualname"), fn.get("src_hash")
    if not (isinstance(module, str) and isinstance(qualname, str) and qualname) or not mount.brings(module):
        return None
    _refuse_program(module, qualname)
    found = _import(module, qualname, trusted=False)
    loaded = sys.modules.get(module)
    if loaded is None or not mount.holds(loaded):
        raise NotImportable(f"{module!r} is in the job's code, but another module of that name was imported")
    if check_source and isinstance(expected, str):
        _check_source(module, qualname, found, expected)
    body = found.fn if isinstance(found, BodyWrapper) else found
    if not callable(body):
        raise NotImportable(f"'{module}:{qualname}' is a {type(body).__name__}, not a function")
    return body
