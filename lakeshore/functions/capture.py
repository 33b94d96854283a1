"""What a by-value function takes along: the names it uses, what they hold, and which of them cannot go."""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from lakeshore.functions.body import BodyWrapper
from lakeshore.functions.reference import is_installed
from lakeshore.functions.source import block_of, inner_function, label_of, shown_file

LOOK_AT = 20_000
"""Objects that the search for a culprit looks at before it gives up."""

_OURS = str(Path(__file__).parents[1]) + os.sep
_LOAD_NAMES = frozenset(("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_WORD = re.compile(r"[A-Za-z_]\w*")


class LargeCaptureWarning(UserWarning):
    """A by-value function took more than 1 MiB along."""


def warn_large(text: str) -> None:
    """Warn with the line of the user's that submits, below all frames of this library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, LargeCaptureWarning, stacklevel=level)


def shown_size(n_bytes: int) -> str:
    """Write a size: ``512 B``, ``3.2 KiB``, ``1.0 MiB``."""
    amount = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


class Captured(NamedTuple):
    """One name that a function takes along.

    Attributes
    ----------
    name : str
        As the user's source spells it.
    kind : str
        ``global``, ``closure variable``, ``default`` or ``argument``.
    value : object
        What it holds now.
    user : FunctionType or None
        The function that uses it; None for an argument.
    """

    name: str
    kind: str
    value: Any
    user: Any  # a FunctionType would read as a method here


def extra_globals(function: FunctionType) -> dict[str, Any]:
    """Return the globals that `function` uses and its code does not load as globals.

    Two kinds: names read in the body of a class that the function defines, and names that occur
    only in annotations kept as text.
    """
    names = set(_class_body_names(function.__code__))
    have = function.__globals__
    extra = {name: have[name] for name in names if name in have}
    for text in function.__annotations__.values():
        if isinstance(text, str):
            for word in _WORD.findall(text):
                value = have.get(word)
                if value is not None and _is_type_like(value):
                    extra[word] = value
    return extra


def _is_type_like(value: object) -> bool:
    return isinstance(value, (type, ModuleType)) or type(value).__module__ in (
        "typing",
        "types",
        "typing_extensions",
    )


@functools.lru_cache(maxsize=1024)
def _class_body_names(code: CodeType) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if not const.co_flags & 1:  # CO_OPTIMIZED is a function's; without it, a class body
                names.update((i.argval, None) for i in dis.get_instructions(const) if i.opname in _LOAD_NAMES)
            names.update(dict.fromkeys(_class_body_names(const)))
    return tuple(names)


@functools.lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> tuple[str, ...]:
    names = {
        i.argval: None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")
    }
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(dict.fromkeys(_global_names(const)))
    return tuple(names)


def names_of(function: FunctionType) -> Iterator[Captured]:
    """Yield what one function takes along directly."""
    have = function.__globals__
    taken = {name: have[name] for name in _global_names(function.__code__) if name in have}
    taken.update(extra_globals(function))
    for name, value in taken.items():
        yield Captured(name, "global", value, function)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Captured(name, "closure variable", cell.cell_contents, function)
        except ValueError:  # a cell that is not filled yet holds nothing
            continue
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        yield Captured(name, "default", value, function)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield Captured(name, "default", value, function)


def captured(
    fn: object, travels: Callable[[object], bool], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Captured]:
    """Yield the data that `fn` takes along, through every function and class that goes by value with it.

    Parameters
    ----------
    fn : callable
        What is to be shipped.
    travels : callable
        Says whether a function or class goes by value.
    args, kwargs
        Arguments that go inside the pickle.
    """
    for index, argument in enumerate(args):
        yield Captured(f"args[{index}]", "argument", argument, None)
    for name, argument in kwargs.items():
        yield Captured(f'kwargs["{name}"]', "argument", argument, None)
    seen: set[int] = set()
    queue: deque[object] = deque([fn])
    while queue:
        item = queue.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type):
            for name, value in vars(item).items():
                part = inner_function(
                    value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                )
                if part is not None:
                    queue.append(part)
                elif not (name.startswith("__") and name.endswith("__")):
                    yield Captured(f"{item.__name__}.{name}", "class attribute", value, None)
            continue
        function = inner_function(item)
        if function is None:
            continue
        if isinstance(item, MethodType) and not isinstance(item.__self__, type):
            yield Captured("self", "bound object", item.__self__, function)
        elif item is fn and not isinstance(item, (FunctionType, BodyWrapper, functools.partial, MethodType)):
            yield Captured(label_of(item), "callable", item, function)
        for used in names_of(function):
            value = used.value
            if isinstance(value, (type, FunctionType, MethodType, BodyWrapper)):
                if travels(value):
                    queue.append(value)
                if not isinstance(value, MethodType):
                    continue
            if not isinstance(value, ModuleType) or travels(value):
                yield used


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what `value` is made of, each with how its path goes on."""
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield f"[{key!r}]" if len(repr(key)) < 60 else "[…]", item
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, FunctionType):
        for name in names_of(value):
            yield f" → {name.name}", name.value
    elif isinstance(value, BodyWrapper):
        yield "", value.fn
    if isinstance(value, FunctionType) or (isinstance(value, ModuleType) and is_installed(value)):
        return
    for name, item in list(getattr(value, "__dict__", {}).items()):
        if not (isinstance(value, (type, ModuleType)) and name.startswith("__")):
            yield f".{name}", item
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                yield f".{slot}", getattr(value, slot)


def path_to(root: object, culprit: object) -> str | None:
    """Return how one gets from `root` to `culprit` (``.guard``, ``['db'].conn``), or None."""
    if root is culprit:
        return ""
    seen = {id(root)}
    keep = [root]  # keeps ids of objects that are made on the way from being used again
    queue: deque[tuple[object, str]] = deque([(root, "")])
    while queue and len(seen) < LOOK_AT:
        value, path = queue.popleft()
        for step, part in _parts(value):
            if part is culprit:
                return path + step
            if id(part) not in seen and not isinstance(part, (str, bytes, int, float)):
                seen.add(id(part))
                keep.append(part)
                queue.append((part, path + step))
    return None


def line_of(name: Captured) -> str:
    """Return where the user's source uses a captured name, as ``cell 3, line 2: `…```, or ``""``."""
    function = name.user
    if function is None:
        return ""
    codes = [function.__code__]
    for code in codes:
        codes.extend(const for const in code.co_consts if isinstance(const, CodeType))
    numbers = [
        number
        for code in codes
        for i in dis.get_instructions(code)
        if i.argval == name.name and "LOAD" in i.opname and (number := _line(i)) is not None
    ]
    code = function.__code__
    number = min(numbers, default=code.co_firstlineno)
    block = block_of(code)
    lines = block.text.splitlines() if block else []
    index = number - code.co_firstlineno
    text = f": `{lines[index].strip()}`" if 0 <= index < len(lines) else ""
    return f"{shown_file(code.co_filename)}, line {number}{text}"


def _line(instruction: dis.Instruction) -> int | None:
    positions = instruction.positions
    return None if positions is None else positions.lineno


# What is known not to travel: words in the type's module and name, what it is, and the way out.
_KINDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("IPython.", "ipykernel."), "part of this kernel", "Read what you need from it before, and pass that."),
    (("ipywidgets.", "lakeshore_widgets."), "a widget of this kernel's", "Pass its value: w.value."),
    (("lakeshore.queues.", "lakeshore.planes.", "lakeshore.worker.", "lakeshore.notebook.stream",
      "lakeshore.notebook.worker"),
     "a connection of this process", "Make it inside the function: SyncQueue('name')."),
    (("lakeshore.context.RunContext",), "this run's own", "Use `from lakeshore import run` in the function."),
    (("_io.StringIO", "_io.BytesIO"), "", ""),
    (("_io.", "tempfile."), "an open file", "Pass its path, and open it inside the function."),
    (("socket.", "_socket.", "ssl.", "sqlite3.", "apsw.", "httpx.", "psycopg"), "an open connection",
     "Connect inside the function."),
    (("_thread.", "threading.", "multiprocessing.synchronize.", "asyncio.locks."),
     "bound to this process's threads",
     "Make it inside the function, or leave it out in __getstate__."),
    (("concurrent.", "asyncio.", "_asyncio.", "subprocess.", "multiprocessing."), "running in this process",
     "Make it inside the function."),
    (("builtins.generator", "builtins.async_generator", "builtins.coroutine", "builtins.frame",
      "builtins.traceback"),
     "half run already", "Make it inside the function, or pass list(...) of it."),
    (("builtins.module",), "a module that exists in this process only",
     "Install it where the worker runs, or import it inside the function."),
)  # fmt: skip
_ANY_FIX = "Make it inside the function, or pass what it is made from."


def _kind_of_type(kind: type) -> tuple[str, str] | None:
    """Return what is known of a type that does not travel: what it is, and the way out."""
    for owner in kind.__mro__[:-1]:
        name = f"{owner.__module__}.{owner.__qualname__}"
        for prefixes, what, fix in _KINDS:
            if name.startswith(prefixes):
                return (what, fix) if what else None
    return None


_REFUSED = (
    "IPython.", "ipykernel.", "ipywidgets.", "lakeshore_widgets.", "lakeshore.queues.", "lakeshore.planes.",
    "lakeshore.worker.", "lakeshore.notebook.stream", "lakeshore.notebook.worker",
    "lakeshore.context.RunContext", "_io.", "asyncio.locks.", "asyncio.queues.",
)  # fmt: skip
_refused: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_refused(kind: type) -> bool:
    """Whether instances of `kind` are refused though a pickle of one might be made."""
    try:
        known = _refused.get(kind)
    except TypeError:  # a metaclass without a hash
        return False
    if known is None:
        names = (f"{owner.__module__}.{owner.__qualname__}" for owner in kind.__mro__[:-1])
        known = _kind_of_type(kind) is not None and any(name.startswith(_REFUSED) for name in names)
        _refused[kind] = known
    return known


def type_name(value: object) -> str:
    """Return a type's name as a user would write it."""
    kind = value if isinstance(value, type) else type(value)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def blame(
    fn: object, names: Sequence[Captured], culprit: object, reason: str, fails: Callable[[object], bool]
) -> str:
    """Return the refusal's text: which name, of which type, used where, and what to do.

    Parameters
    ----------
    fn : callable
        What was to be shipped.
    names : sequence of Captured
        What it takes along.
    culprit : object
        The object that cannot go, or None when it is not known.
    reason : str
        What the pickler said.
    fails : callable
        Says whether a value alone cannot go; asked when the culprit is not known or not found.
    """
    found = (
        [(name, path) for name in names if (path := path_to(name.value, culprit)) is not None]
        if culprit is not None
        else []
    )
    if not found:
        found = [(name, "") for name in names if fails(name.value)]
    label = label_of(fn)
    if not found:
        kind = "" if culprit is None else f" ({type_name(culprit)})"
        return f"cannot ship {label}() by value: {reason}{kind}. {_ANY_FIX}"
    name, path = min(found, key=lambda each: len(each[1]))
    holder = name.value if culprit is None or not path else culprit
    what, fix = _kind_of_type(type(holder)) or ("", _ANY_FIX)
    if isinstance(holder, ModuleType) and holder.__name__ == "__main__":
        what, fix = "__main__, the whole notebook or script", "Use the names you need, and not the module."
    user = "" if name.user is None or inner_function(fn) is name.user else f" (in {name.user.__qualname__}())"
    line = line_of(name)
    text = f"cannot ship {label}() by value: it takes along the {name.kind} {name.name!r}{user}"
    if path:
        text += f" of type {type_name(name.value)}, whose {(name.name + path)!r} is a {type_name(holder)}"
    else:
        text += f" of type {type_name(name.value)}"
    text += f" ({what})" if what else f" ({reason})"
    return f"{text}{f', used in {line}' if line else ''}. {fix}"
