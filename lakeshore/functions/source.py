"""A function's source: the text that travels, its hash as imported, and the lines a traceback shows."""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import re
import sys
import textwrap
import threading
import tokenize
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from lakeshore.functions.body import BodyWrapper

_NAMES_KEPT = 256
_LINES_PER_NAME = 20_000
_NO_SOURCE = (OSError, TypeError, IndentationError, SyntaxError, tokenize.TokenError)
_CELL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|<ipython-input-")


class Block(NamedTuple):
    """Consecutive source lines of one file, with the number of the first."""

    file: str
    first: int
    text: str


class Imported(NamedTuple):
    """A function's source hash, and whether its file was edited after it was imported."""

    hash: str | None
    edited: bool


def inner_function(fn: object) -> FunctionType | None:
    """Return the Python function that `fn` is or stands for, or None."""
    for _ in range(32):
        if isinstance(fn, FunctionType):
            return fn
        if isinstance(fn, BodyWrapper):
            fn = fn.fn
        elif isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif isinstance(getattr(fn, "__wrapped__", None), Callable):  # type: ignore[arg-type]
            fn = fn.__wrapped__  # type: ignore[attr-defined]
        elif not isinstance(fn, type):
            call = getattr(type(fn), "__call__", None)  # noqa: B004 - the function is wanted, not the answer
            return call if isinstance(call, FunctionType) else None
        else:
            return None
    return None


_hashes: WeakKeyDictionary[FunctionType, tuple[CodeType, Imported]] = WeakKeyDictionary()
_compiled: dict[str, tuple[int, CodeType]] = {}


def source_hash(fn: object) -> Imported:
    """Return the hash of `fn`'s source as imported; computed once per function object.

    A file that was edited since is found out by compiling it and holding its code against the code
    in memory; then the hash is None and `edited` is True.
    """
    function = inner_function(fn)
    if function is None:
        return Imported(None, edited=False)
    known = _hashes.get(function)
    if known is None or known[0] is not function.__code__:
        known = (function.__code__, _hash(function))
        _hashes[function] = known
    return known[1]


def _hash(function: FunctionType) -> Imported:
    try:
        lines, _ = inspect.findsource(function)
        if _from_file(function):
            code = _code_in_file(function, "".join(lines))
            if code is None:
                return Imported(None, edited=True)
            text = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        else:
            text = inspect.getsource(function)
    except _NO_SOURCE:
        return Imported(None, edited=False)
    digest = hashlib.sha256(textwrap.dedent(text).encode("utf-8", "surrogatepass")).hexdigest()
    return Imported(f"sha256:{digest[:16]}", edited=False)


def _from_file(function: FunctionType) -> bool:
    # an import hook (pytest's asserts, a type checker's) compiles something else than the file
    module = sys.modules.get(function.__module__)
    loader = getattr(module, "__loader__", None)
    return type(loader) is SourceFileLoader and function.__code__.co_filename == getattr(
        module, "__file__", None
    )


def _code_in_file(function: FunctionType, text: str) -> CodeType | None:
    file = function.__code__.co_filename
    known = _compiled.get(file)
    if known is None or known[0] != hash(text):
        known = (hash(text), compile(text, file, "exec", dont_inherit=True))
        _compiled[file] = known
    wanted = function.__code__
    same = [
        code for code in _codes(known[1]) if code.co_qualname == wanted.co_qualname and _same(code, wanted)
    ]
    return min(same, key=lambda code: abs(code.co_firstlineno - wanted.co_firstlineno), default=None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def _same(a: Any, b: Any) -> bool:
    """Whether two code objects (or constants) do the same, wherever in a file they stand."""
    if type(a) is not type(b):
        return False
    if not isinstance(a, CodeType):
        return bool(a == b) and repr(a) == repr(b) if not isinstance(a, (tuple, frozenset)) else bool(a == b)
    return (
        a.co_code == b.co_code
        and a.co_names == b.co_names
        and a.co_varnames == b.co_varnames
        and a.co_freevars == b.co_freevars
        and a.co_flags == b.co_flags
        and len(a.co_consts) == len(b.co_consts)
        and all(map(_same, a.co_consts, b.co_consts))
    )


def source_text(fn: object) -> str | None:
    """Return the source of `fn`, or None where there is none."""
    function = inner_function(fn)
    block = None if function is None else block_of(function.__code__)
    return None if block is None else block.text


def qualname_of(fn: object) -> str:
    """Return the qualified name of a function, or of the one that a callable stands for."""
    name = getattr(fn, "__qualname__", None)
    if isinstance(name, str):
        return name
    function = inner_function(fn)
    return type(fn).__qualname__ if function is None else function.__qualname__


def label_of(fn: object) -> str:
    """Return the name that people know `fn` by: its qualified name from the last ``<locals>`` on."""
    return qualname_of(fn).rpartition("<locals>.")[2]


def where(fn: object) -> str:
    """Return ``"qualname (file:line)"``."""
    function = inner_function(fn)
    if function is None:
        return f"{qualname_of(fn)} (builtin)"
    code = function.__code__
    return f"{qualname_of(fn)} ({shown_file(code.co_filename)}:{code.co_firstlineno})"


_blocks: WeakKeyDictionary[CodeType, Block] = WeakKeyDictionary()


def block_of(code: CodeType) -> Block | None:
    """Return the lines that `code` was compiled from, or None."""
    block = _blocks.get(code)
    # code objects are equal whatever file they came from
    if block is None or block.file != code.co_filename:
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
        if not lines:
            return None
        try:
            text = "".join(inspect.getblock(lines))
        except _NO_SOURCE:
            return None
        block = _blocks[code] = Block(code.co_filename, code.co_firstlineno, text)
    return block


def shown_file(file: str) -> str:
    """Return how a source file is named to people: ``cell 3`` for a notebook's, else its last two parts."""
    if _CELL_FILE.search(file):
        number = _cell_number(file)
        return "cell" if number is None else f"cell {number}"
    if file.startswith("<"):
        return file.strip("<>")
    return "/".join(PurePath(file).parts[-2:]).removeprefix("/")


def _cell_number(file: str) -> int | None:
    # IPython is asked only if it is loaded: functions import nothing of the notebook's
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    numbers = getattr(getattr(ipython, "compile", None), "_filename_map", {})
    number = numbers.get(file)
    if number is None and (match := re.match(r"<ipython-input-(\d+)-", file)):
        number = int(match[1])
    return number if isinstance(number, int) else None


def traveling_file(file: str, label: str) -> str:
    """Return the file name that a by-value function's code carries: ``<lakeshore NAME cell 3>``."""
    if file.startswith("<lakeshore "):
        return file
    name = label.rpartition(".")[2].strip("<>")
    return f"<lakeshore {name} {shown_file(file)}>"


_registered: OrderedDict[str, list[str]] = OrderedDict()
_register_lock = threading.Lock()


def register_lines(blocks: Iterable[Block]) -> None:
    """Make tracebacks through by-value code show its lines, at the numbers they have in their file.

    Blocks of one file are laid over what an earlier job brought of it.
    """
    with _register_lock:
        for block in blocks:
            text = block.text.splitlines(keepends=True)
            if not block.file.startswith("<lakeshore ") or not 0 < block.first <= _LINES_PER_NAME:
                continue
            lines = _registered.pop(block.file, [])
            last = block.first - 1 + len(text)
            lines.extend(["\n"] * (last - len(lines)))
            lines[block.first - 1 : last] = text
            _registered[block.file] = lines
            # no mtime: linecache then never looks for a file of this name
            linecache.cache[block.file] = (sum(map(len, lines)), None, lines, block.file)
        while len(_registered) > _NAMES_KEPT:
            linecache.cache.pop(_registered.popitem(last=False)[0], None)
