"""How a function crosses: by reference or by value on the way out, gates and then resolution on the way in.

The only importer of cloudpickle. Everything that could refuse a function refuses it here: at submit
what cannot travel, on the worker what may not run, and there before anything is unpickled or imported.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import platform
import sys
import typing
import warnings
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, cast

import cloudpickle
from cloudpickle import cloudpickle as engine

from lakeshore.errors import CaptureError, NotImportable, PickleRefused, TransportError
from lakeshore.functions import capture, reducers
from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.reference import by_reference, from_registry, is_installed, resolve_reference
from lakeshore.functions.runtime import check_runtime
from lakeshore.functions.source import (
    Block,
    block_of,
    label_of,
    qualname_of,
    register_lines,
    source_text,
    traveling_file,
    where,
)

__all__ = ["by_value", "capture_report", "describe", "resolve"]

PROTOCOL = 5
"""The pickle protocol that every supported Python reads."""
WARN_BYTES = 1 << 20
SOURCE_BYTES = 256 * 1024
"""Source text that travels with a function, for tracebacks; more is left out."""

_STAMP = {
    "python": platform.python_version(),
    "impl": sys.implementation.name,
    "cloudpickle": cloudpickle.__version__,
    "pickle_protocol": PROTOCOL,
    "platform": f"{sys.platform}-{platform.machine()}",
}
_PLAIN_MODULES = frozenset((
    "builtins", "numpy", "pandas", "torch", "polars", "pyarrow", "scipy", "types", "functools", "collections",
    "datetime", "decimal", "fractions", "pathlib", "re", "enum", "uuid", "logging", "operator",
    "itertools",
))  # fmt: skip
"""Top-level modules whose instances are known to load wherever they were dumped."""


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
    pickler = _Pickler(file, label)
    try:
        pickler.dump(whole)
    except Exception as error:  # a user's object may raise anything when pickled
        raise _captured_error(body, args, kwargs, pickler.last, error) from error
    blob = file.getvalue()
    if pickler.risky:
        try:
            _try_load(blob)
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


def _travels(value: object) -> bool:
    """Whether a function, class or module goes by value."""
    if isinstance(value, BodyWrapper):
        value = value.fn
    if isinstance(value, ModuleType):
        return not is_installed(value)
    name = getattr(value, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or not is_installed(module):
        return True
    return isinstance(value, (FunctionType, type)) and not engine._should_pickle_by_reference(value)


class _Discard(io.RawIOBase):
    """Counts what a pickler writes, and keeps none of it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        return count


def _size(value: object) -> int:
    counter = _Discard()
    try:
        _Pickler(counter, "").dump(value)
    except Exception:  # noqa: BLE001 - a report about sizes is no place to fail: what cannot go has none
        return 0
    return counter.size


def capture_report(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> list[tuple[str, str, int]]:
    """Return what `fn` takes along by value as ``(name, type, bytes)``, largest first.

    Functions and classes that go with it are looked through, not listed. A size is that of the
    value pickled alone; 0 where it cannot be pickled.
    """
    rows: dict[str, tuple[str, str, int]] = {}
    for each in capture.captured(fn, _travels, args, kwargs or {}):
        if not isinstance(each.value, ModuleType):
            rows.setdefault(each.name, (each.name, capture.type_name(each.value), _size(each.value)))
    return sorted(rows.values(), key=lambda row: -row[2])


def _shown_size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{max(1, count // 1024)} KiB"


def _mind_size(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], size: int, limit: int | None
) -> None:
    rows = [row for row in capture_report(fn, args, kwargs)[:3] if row[2] > 0]
    largest = ", ".join(f"{name!r} ({kind}, {_shown_size(count)})" for name, kind, count in rows)
    what, takes = f"{label_of(fn)}()", f"{_shown_size(size)} along by value"
    names = f"; the largest: {largest}" if largest else ""
    way = "Load it inside the function, or write it to a file and pass the path."
    if limit is not None and size > limit:
        raise CaptureError(
            f"cannot ship {what}: it takes {takes}, over the limit of {_shown_size(limit)}{names}. {way}"
        )
    warnings.warn(f"{what} takes {takes}{names}. {way}", capture.LargeCaptureWarning, stacklevel=2)


class _Culprit(Exception):
    """This object is not to be pickled, whatever a pickler could make of it."""


class _Unportable(Exception):
    """A load would look for this name in a module that only this process has."""


def _captured_error(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    culprit: object,
    error: Exception,
) -> CaptureError:
    def fails(value: object) -> bool:
        file = io.BytesIO()
        pickler = _Pickler(file, "")
        try:
            pickler.dump(value)
            if pickler.risky:
                _try_load(file.getvalue())
        except Exception:  # noqa: BLE001 - whatever it raises, it fails
            return True
        return False

    reason = str(error) if isinstance(error, (_Culprit, _Unportable)) else f"{type(error).__name__}: {error}"
    names = list(capture.captured(fn, _travels, args, kwargs))
    return CaptureError(capture.blame(fn, names, culprit, reason, fails))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with our idea of what goes by value, of what is refused, and of file names."""

    def __init__(self, file: Any, label: str) -> None:
        # before super's: the C pickler looks at it once, when it is made
        self.dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
            {
                CodeType: self._reduce_code,
                type(functools.lru_cache(lambda: None)): reducers.lru_cache,
                functools.cached_property: reducers.cached_property,
                typing.NewType: reducers.named_type,
                typing.ParamSpec: reducers.named_type,
                typing.TypeVarTuple: reducers.named_type,
                weakref.WeakKeyDictionary: reducers.weak_dictionary,
                weakref.WeakValueDictionary: reducers.weak_dictionary,
            }
        )
        super().__init__(file, protocol=PROTOCOL)
        self.last: object = None
        self.risky = False
        self.blocks: dict[tuple[str, int], Block] = {}
        self._label = label
        self._source_left = SOURCE_BYTES
        self._files: dict[str, str] = {}
        self._cells: dict[int, tuple[CellType, CellType]] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType:
            if self._is_local(obj):
                return self._dynamic_function_reduce(obj)
        elif issubclass(kind, type):
            local = self._is_local(obj) and obj not in engine._BUILTIN_TYPE_NAMES
            reduced = engine._dynamic_class_reduce(obj) if local else super().reducer_override(obj)
            if isinstance(reduced, tuple) and reduced[0] in _CLASS_MAKERS:
                self.risky = True
                return _complete_class(obj, reduced)
            return reduced
        elif kind is ModuleType:
            if not is_installed(obj):
                return self._reduce_module(obj)
        else:
            if isinstance(obj, BodyWrapper):
                named = by_reference(cast("Callable[..., Any]", obj)) is not None
                return NotImplemented if named else obj.by_parts()
            if obj is sys.stdout or obj is sys.stderr:
                return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
            self.last = obj
            if capture.is_refused(kind):
                raise _Culprit(f"a {capture.type_name(obj)} cannot leave this process")
            if not self.risky and kind.__module__.partition(".")[0] not in _PLAIN_MODULES:
                self.risky = True
            return NotImplemented
        return super().reducer_override(obj)

    @staticmethod
    def _is_local(obj: Any) -> bool:
        module = sys.modules.get(obj.__module__)
        return module is not None and obj.__module__ != "__main__" and not is_installed(module)

    def _reduce_module(self, module: ModuleType) -> Any:
        if module.__name__ == "__main__":
            self.last = module
            raise _Culprit("the module __main__ is the whole notebook or script")
        hidden = ("__builtins__", "__loader__", "__spec__", "__cached__")
        state = {name: value for name, value in vars(module).items() if name not in hidden}
        return ModuleType, (module.__name__,), state

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        extra = capture.extra_globals(func)
        if extra:
            taken = reduced[2][1]["__globals__"]
            taken.update({name: value for name, value in extra.items() if name not in taken})
        block = block_of(func.__code__)
        if block is not None and len(block.text) <= self._source_left:
            file = self._file(block.file)
            if (file, block.first) not in self.blocks:
                self._source_left -= len(block.text)
                self.blocks[file, block.first] = Block(file, block.first, block.text)
        return reduced

    def _function_getnewargs(self, func: FunctionType) -> Any:
        code, space, name, defaults, closure = super()._function_getnewargs(func)
        if closure is not None:
            # functions that share a variable go on sharing it: one stand-in for each cell
            pairs = zip(func.__closure__ or (), closure, strict=True)
            closure = tuple(self._cells.setdefault(id(cell), (cell, new))[1] for cell, new in pairs)
        return code, space, name, defaults, closure

    def _file(self, file: str) -> str:
        name = self._files.get(file)
        if name is None:
            name = self._files[file] = traveling_file(file, self._label)
        return name

    def _reduce_code(self, code: CodeType) -> Any:
        return CodeType, (
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_nlocals,
            code.co_stacksize,
            code.co_flags,
            code.co_code,
            code.co_consts,
            code.co_names,
            code.co_varnames,
            self._file(code.co_filename),
            code.co_name,
            code.co_qualname,
            code.co_firstlineno,
            code.co_linetable,
            code.co_exceptiontable,
            code.co_freevars,
            code.co_cellvars,
        )


_CLASS_MAKERS = (engine._make_skeleton_class, engine._make_skeleton_enum)
_MEMBER_OWN = ("_value_", "_name_", "__objclass__", "_sort_order_")


def _complete_class(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add to a class's reduction what cloudpickle leaves out: its slots, and what enum members hold."""
    make, args, (attributes, slot_state), *rest = reduced
    if make is engine._make_skeleton_enum:
        members = {
            name: own
            for name, member in cls.__members__.items()  # type: ignore[attr-defined]
            if (own := {key: value for key, value in vars(member).items() if key not in _MEMBER_OWN})
        }
        if members:
            return make, args, (attributes, slot_state, members), None, None, _set_enum_state
    elif "__slots__" in vars(cls) and not issubclass(cls, tuple):
        args[3]["__slots__"] = vars(cls)["__slots__"]
        attributes = {
            name: value for name, value in attributes.items() if not isinstance(value, MemberDescriptorType)
        }
        attributes.pop("__slots__", None)
    return make, args, (attributes, slot_state), *rest


def _set_enum_state(cls: Any, state: tuple[Any, Any, dict[str, dict[str, Any]]]) -> Any:
    attributes, slot_state, members = state
    engine._class_setstate(cls, (attributes, slot_state))
    for name, own in members.items():
        vars(cls.__members__[name]).update(own)
    return cls


def dumps(value: object) -> bytes:
    """Pickle any value as a by-value function's captures are."""
    file = io.BytesIO()
    _Pickler(file, "").dump(value)
    return file.getvalue()


# ---- in


def loads(data: bytes) -> Any:
    """Load what `dumps` made, its classes apart from those that live here."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    """Makes every class that came by value anew: none that lives here is looked up or touched."""

    def __init__(self, file: Any, *, trial: bool = False, quiet: bool = False) -> None:
        super().__init__(file)
        self._trial, self._quiet = trial, quiet
        self._made: set[type] = set()
        self._makers = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": _make_enum,
            "_make_typevar": _make_typevar,
        }

    def find_class(self, module: str, name: str) -> Any:
        if module == "cloudpickle.cloudpickle" and name in self._makers:
            return self._makers[name]
        if self._trial:
            owner = sys.modules.get(module)
            if module == "__main__" or (owner is not None and not is_installed(owner)):
                raise _Unportable(f"{name!r} would be looked for in {module!r}, which only this process has")
        return super().find_class(module, name)

    def _make_class(
        self,
        meta: Any,
        name: str,
        bases: tuple[Any, ...],
        kwargs: dict[str, Any],
        _tracker: object,
        extra: object,
    ) -> Any:
        """Make a class that came by value; its attributes follow with the pickle.

        So a base's `__init_subclass__` need not run, and may not be able to: its keywords are gone.
        It runs where the base is installed here, which may keep a registry, unless this is a trial.
        """
        makers: list[Callable[[], Any]] = [
            lambda: engine._make_skeleton_class(meta, name, bases, kwargs, None, extra)
        ]
        owner = reducers.hook_owner(bases)
        if owner is not None:
            makers.append(lambda: reducers.graft(meta, name, bases, kwargs))
            if meta in (type, ABCMeta) and (self._quiet or owner in self._made):
                makers.reverse()
        error: Exception | None = None
        for make in makers:
            try:
                made = make()
            except Exception as raised:  # noqa: BLE001 - the hook is the user's, and may raise anything
                error = error or raised
            else:
                self._made.add(made)
                return made
        raise TransportError(f"cannot rebuild the class {name!r}: {type(error).__name__}: {error}") from error


def _make_enum(
    bases: Any, name: str, qualname: str, members: Any, module: str, _tracker: object, extra: object
) -> Any:
    return engine._make_skeleton_enum(bases, name, qualname, members, module, None, extra)


def _make_typevar(
    name: str, bound: Any, constraints: Any, covariant: bool, contravariant: bool, _tracker: object
) -> Any:
    return engine._make_typevar(name, bound, constraints, covariant, contravariant, None)


def _try_load(blob: bytes) -> None:
    """Load a blob as a worker would, in order to fail here and not there; quietly first."""
    try:
        _Unpickler(io.BytesIO(blob), trial=True, quiet=True).load()
    except _Unportable:
        raise
    except Exception:  # noqa: BLE001 - the quiet way may fail where the worker's way does not
        _Unpickler(io.BytesIO(blob), trial=True).load()


def resolve(
    fn: Mapping[str, Any],
    *,
    registry: Mapping[str, Callable[..., Any]] | None,
    allow_pickled: bool,
    runtime_policy: str,
    trusted: bool,
    allow_modules: Iterable[str] = (),
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
        loaded = _Unpickler(io.BytesIO(blob)).load()
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
