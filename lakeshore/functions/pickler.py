"""How a by-value function is pickled: cloudpickle, with our idea of what goes along and what is refused."""

from __future__ import annotations

import functools
import io
import sys
import typing
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, cast

import cloudpickle
from cloudpickle import cloudpickle as engine

from lakeshore.functions import capture, reducers
from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.reference import by_reference, is_installed
from lakeshore.functions.source import Block, block_of, traveling_file

PROTOCOL = 5
"""The pickle protocol that every supported Python reads."""
SOURCE_BYTES = 256 * 1024
"""Source text that travels with a function, for tracebacks; more is left out."""

_PLAIN_MODULES = frozenset((
    "builtins", "numpy", "pandas", "torch", "polars", "pyarrow", "scipy", "types", "functools", "collections",
    "datetime", "decimal", "fractions", "pathlib", "re", "enum", "uuid", "logging", "operator",
    "itertools",
))  # fmt: skip
"""Top-level modules whose instances are known to load wherever they were dumped."""

# Python 3.11 has no `type` statement
_TYPE_ALIASES: dict[type, Callable[[Any], Any]] = (
    {kind: reducers.type_alias} if (kind := getattr(typing, "TypeAliasType", None)) is not None else {}
)


def travels(value: object) -> bool:
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


class Culprit(Exception):
    """This object is not to be pickled, whatever a pickler could make of it."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with our idea of what goes by value, of what is refused, and of file names."""

    def __init__(self, file: Any, label: str) -> None:
        # before super's: the C pickler looks at it once, when it is made
        own: dict[type, Callable[[Any], Any]] = {
            CodeType: self._reduce_code,
            type(functools.lru_cache(lambda: None)): reducers.lru_cache,
            functools.cached_property: reducers.cached_property,
            typing.NewType: reducers.named_type,
            typing.ParamSpec: reducers.named_type,
            typing.TypeVarTuple: reducers.named_type,
            **_TYPE_ALIASES,
            weakref.WeakKeyDictionary: reducers.weak_dictionary,
            weakref.WeakValueDictionary: reducers.weak_dictionary,
        }
        self.dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(own)
        super().__init__(file, protocol=PROTOCOL)
        self.last: object = None
        self.risky = False
        self.blocks: dict[tuple[str, int], Block] = {}
        self._label = label
        self._source_left = SOURCE_BYTES
        self._files: dict[str, str] = {}
        self._cells: dict[int, tuple[CellType, CellType]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Say how `obj` is to be pickled; called by the pickler for each object."""
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
                raise Culprit(f"a {capture.type_name(obj)} cannot leave this process")
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
            raise Culprit("the module __main__ is the whole notebook or script")
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
            return make, args, (attributes, slot_state, members), None, None, reducers.set_enum_state
    elif "__slots__" in vars(cls) and not issubclass(cls, tuple):
        args[3]["__slots__"] = vars(cls)["__slots__"]
        attributes = {
            name: value for name, value in attributes.items() if not isinstance(value, MemberDescriptorType)
        }
        attributes.pop("__slots__", None)
    return make, args, (attributes, slot_state), *rest


def dumps(value: object) -> bytes:
    """Pickle any value as a by-value function's captures are."""
    file = io.BytesIO()
    Pickler(file, "").dump(value)
    return file.getvalue()


class _Discard(io.RawIOBase):
    """Counts what a pickler writes, and keeps none of it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        return count


def size_of(value: object) -> int:
    """Return the bytes that `value` takes when pickled alone; 0 where it cannot be."""
    counter = _Discard()
    try:
        Pickler(counter, "").dump(value)
    except Exception:  # noqa: BLE001 - a report about sizes is no place to fail: what cannot go has none
        return 0
    return counter.size
