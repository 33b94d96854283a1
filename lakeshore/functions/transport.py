"""How a function crosses: by reference or by value on the way out, gates and then resolution on the way in.

Everything that could refuse a function refuses it here: at submit what cannot travel, on the worker what
may not run, and there before anything is unpickled or imported.
"""

from __future__ import annotations

import functools
import hashlib
import io
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from lakeshore.errors import CaptureError, NotImportable, PickleRefused, TransportError
from lakeshore.functions import capture
from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.pickler import PROTOCOL, Culprit, Pickler, size_of, travels
from lakeshore.functions.reference import by_reference, from_registry, resolve_reference
from lakeshore.functions.runtime import check_runtime
from lakeshore.functions.source import Block, label_of, qualname_of, register_lines, source_text, where
from lakeshore.functions.unpickler import Unportable, loads, try_load

if TYPE_CHECKING:
    from lakeshore.codebase.mount import Mount

__all__ = ["by_value", "capture_report", "describe", "resolve"]

WARN_BYTES = 1 << 20

_STAMP = {
    "python": platform.python_version(),
    "impl": sys.implementation.name,
    "cloudpickle": cloudpickle.__version__,
    "pickle_protocol": PROTOCOL,
    "platform": f"{sys.platform}-{platform.machine()}",
}


# ---- out


def describe(
    fn: Callable[..., Any],
    *,
    transport: str = "auto",
    capture_limit: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the envelope's `fn` for a function.

    Parameters
    ----------
    fn : callable
        A body of any kind, or a UDF.
    transport : {"auto", "ref", "pickle"}
        "ref" by module and name, "pickle" by value, "auto" by reference where another process can
        import it. A module that is not installed (a script's neighbour, a file under the working
        directory) goes by value, since a worker started elsewhere could not import it; so does a
        function whose file was edited after it was imported.
    capture_limit : int, optional
        The most bytes that a by-value function may have; None for no limit.
    args, kwargs
        Arguments that travel inside the pickle, bound to the function.

    Raises
    ------
    TransportError
        When ``transport="ref"`` and no process could import it by name.
    CaptureError
        When it captured what cannot travel, or more than `capture_limit`.
    """
    if transport == "pickle" or args or kwargs:
        return by_value(fn, capture_limit=capture_limit, args=args, kwargs=kwargs)
    reference = by_reference(fn, force=transport == "ref")
    if reference is not None:
        return reference
    if transport == "ref":
        raise TransportError(
            f"cannot ship {label_of(fn)}() by reference: no module has it under that name. "
            "Move it to the top level of a module, or use transport='pickle'."
        )
    return by_value(fn, capture_limit=capture_limit)


def by_value(
    fn: Callable[..., Any],
    *,
    capture_limit: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `fn` pickled with all it uses, tried out where a load could fail.

    Raises
    ------
    CaptureError
        When it captured what cannot travel, what would not load on a worker, or too much.
    """
    body = fn.fn if isinstance(fn, BodyWrapper) else fn
    kwargs = kwargs or {}
    whole = functools.partial(body, *args, **kwargs) if args or kwargs else body
    label = label_of(fn)
    file = io.BytesIO()
    pickler = Pickler(file, label)
    try:
        pickler.dump(whole)
    except Exception as error:  # a user's object may raise anything when pickled
        raise _captured_error(body, args, kwargs, pickler.last, error) from error
    blob = file.getvalue()
    if pickler.risky:
        try:
            try_load(blob)
        except Exception as error:  # or when unpickled
            raise _captured_error(body, args, kwargs, None, error) from error
    if len(blob) > WARN_BYTES or (capture_limit is not None and len(blob) > capture_limit):
        _mind_size(body, args, kwargs, len(blob), capture_limit)
    described: dict[str, Any] = {
        "kind": "pickle",
        "blob": blob,
        "hash": f"sha256:{hashlib.sha256(blob).hexdigest()}",
        "source": source_text(body),
        "qualname": qualname_of(fn),
        "where": where(body),
        "runtime": dict(_STAMP),
    }
    if pickler.blocks:
        described["sources"] = [list(block) for block in pickler.blocks.values()]
    if args or kwargs:
        described["bound"] = True
    return described


def capture_report(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> list[tuple[str, str, int]]:
    """Return what `fn` takes along by value as ``(name, type, bytes)``, largest first.

    Functions and classes that go with it are looked through, not listed. A size is that of the
    value pickled alone; 0 where it cannot be pickled.
    """
    rows: dict[str, tuple[str, str, int]] = {}
    for each in capture.captured(fn, travels, args, kwargs or {}):
        if not isinstance(each.value, ModuleType):
            rows.setdefault(each.name, (each.name, capture.type_name(each.value), size_of(each.value)))
    return sorted(rows.values(), key=lambda row: -row[2])


def _mind_size(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], size: int, limit: int | None
) -> None:
    rows = [row for row in capture_report(fn, args, kwargs)[:3] if row[2] > 0]
    largest = ", ".join(f"{name!r} ({kind}, {capture.shown_size(count)})" for name, kind, count in rows)
    what, takes = f"{label_of(fn)}()", f"{capture.shown_size(size)} along by value"
    names = f"; the largest: {largest}" if largest else ""
    way = "Load it inside the function, or write it to a file and pass the path."
    if limit is not None and size > limit:
        raise CaptureError(
            f"cannot ship {what}: it takes {takes}, over the limit of {capture.shown_size(limit)}"
            f"{names}. {way}"
        )
    capture.warn_large(f"{what} takes {takes}{names}. {way}")


def _captured_error(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    culprit: object,
    error: Exception,
) -> CaptureError:
    def fails(value: object) -> bool:
        file = io.BytesIO()
        pickler = Pickler(file, "")
        try:
            pickler.dump(value)
            if pickler.risky:
                try_load(file.getvalue())
        except Exception:  # noqa: BLE001 - whatever it raises, it fails
            return True
        return False

    reason = str(error) if isinstance(error, (Culprit, Unportable)) else f"{type(error).__name__}: {error}"
    names = list(capture.captured(fn, travels, args, kwargs))
    return CaptureError(capture.blame(fn, names, culprit, reason, fails))


# ---- in


def resolve(
    fn: Mapping[str, Any],
    *,
    registry: Mapping[str, Callable[..., Any]] | None,
    allow_pickled: bool,
    runtime_policy: str,
    trusted: bool,
    allow_modules: Iterable[str] = (),
    mount: Mount | None = None,
) -> tuple[Callable[..., Any], None]:
    """Return the body that an envelope's `fn` names or carries, if this worker may run it.

    Parameters
    ----------
    fn : mapping
        The envelope's `fn`.
    registry : mapping, optional
        Functions by ``module:qualname`` or ``qualname``; looked in first, for by-value ones too.
    allow_pickled : bool
        Whether by-value functions may run.
    runtime_policy : {"strict", "minor", "off"}
        How alike the interpreters must be for a pickle; "off" also skips the source check.
    trusted : bool
        Whether any importable function may be called by name.
    allow_modules : iterable of str
        Modules (and packages) that an untrusted plane may call too.
    mount : Mount, optional
        Code that the job brought, in force now; looked in after the registry.

    Raises
    ------
    PickleRefused, RuntimeMismatch
        Before anything is unpickled.
    NotImportable, StaleSource
        See `resolve_reference`; also when the pickle needs a module that is not here.
    TransportError
        When the pickle does not load.
    """
    kind = fn.get("kind")
    if kind not in ("ref", "pickle"):
        raise TransportError(
            f"fn kind {kind!r} is none that this lakeshore knows (ref, pickle). Upgrade the worker."
        )
    known = None if fn.get("bound") else from_registry(registry or {}, fn)
    if known is not None:
        return (known.fn if isinstance(known, BodyWrapper) else known), None
    if kind == "ref":
        check = runtime_policy != "off"
        if mount is not None:
            from lakeshore.functions.mounted import resolve_mounted  # few jobs bring code

            brought = resolve_mounted(fn, mount, check_source=check)
            if brought is not None:
                return brought, None
        return resolve_reference(fn, trusted=trusted, allow_modules=allow_modules, check_source=check), None
    return _load(fn, allow_pickled=allow_pickled, runtime_policy=runtime_policy), None


def _load(fn: Mapping[str, Any], *, allow_pickled: bool, runtime_policy: str) -> Callable[..., Any]:
    name, blob = fn.get("qualname"), fn.get("blob")
    if not allow_pickled:
        raise PickleRefused(
            f"{name!r} came by value, and unpickling runs code: this worker takes none from this plane. "
            "To take them: run_worker(..., allow_pickled=True), or start the worker with --allow-pickled."
        )
    check_runtime(name, fn.get("runtime"), _STAMP, runtime_policy)
    if not isinstance(blob, bytes) or fn.get("hash") != f"sha256:{hashlib.sha256(blob).hexdigest()}":
        raise TransportError(f"the pickle of {name!r} is not the one its hash was made of; submit it again")
    try:
        loaded = loads(blob)
    except ImportError as error:
        missing = getattr(error, "name", None) or str(error)
        raise NotImportable(
            f"{name!r} needs {missing!r}, which does not import on this worker ({error}). Install it here."
        ) from error
    except Exception as error:  # loading runs the user's code, which may raise anything
        raise TransportError(
            f"the pickle of {name!r} does not load on this worker: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise TransportError(f"the pickle of {name!r} holds a {type(loaded).__name__}, not a function")
    register_lines(_blocks(fn.get("sources")))
    return loaded.fn if isinstance(loaded, BodyWrapper) else loaded


def _blocks(sources: object) -> list[Block]:
    if not isinstance(sources, list):
        return []
    return [
        Block(*each)
        for each in sources
        if isinstance(each, list) and [type(part) for part in each] == [str, int, str]
    ]
