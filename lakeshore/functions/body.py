"""Drives a body of any kind to its end: sync, async, generator, async generator, or one that returns one.

The kind is read off what the call gives back, so partials, methods and wrappers need no rule of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Literal, NoReturn, TypeGuard

from lakeshore.context import current
from lakeshore.functions.threads import carrying
from lakeshore.keys import strings

__all__ = ["BodyWrapper", "Kind", "kind_of", "run_body"]

Kind = Literal["sync", "async", "generator", "asyncgen"]

MANIFEST_BYTES = 1 << 20
"""A generator's yields are its result only while their keys are shorter than this together."""
_AT_ONCE = frozenset((type(None), bool, int, float, str, bytes, list, dict, tuple, set))


class BodyWrapper:
    """What stands before a body and is not it (a UDF); `run_body` drives `fn`."""

    fn: Callable[..., Any]

    def by_parts(self) -> tuple[Any, ...]:
        """Return ``(callable, arguments)`` that make it anew where it came by value."""
        raise NotImplementedError


def kind_of(fn: Callable[..., Any]) -> Kind:
    """Return the kind of a body without calling it.

    Looks through `functools.partial`, bound methods, callable objects and C-level wrappers such
    as `functools.lru_cache`. A plain function that returns a generator or coroutine is "sync".
    """
    seen = 0
    while not inspect.isfunction(fn) and seen < 32:
        seen += 1
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, BodyWrapper):
            fn = fn.fn
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif isinstance(getattr(fn, "__wrapped__", None), Callable):  # type: ignore[arg-type]
            fn = fn.__wrapped__  # type: ignore[attr-defined]
        elif not isinstance(fn, type) and inspect.isfunction(getattr(type(fn), "__call__", None)):  # noqa: B004
            fn = type(fn).__call__
        else:
            return "sync"
    if inspect.isasyncgenfunction(fn):
        return "asyncgen"
    if inspect.iscoroutinefunction(fn):
        return "async"
    return "generator" if inspect.isgeneratorfunction(fn) else "sync"


def is_generator(value: object) -> TypeGuard[Generator[Any, Any, Any]]:
    """Whether a body gave a generator to drive."""
    return type(value) is GeneratorType or isinstance(value, Generator)


def is_asyncgen(value: object) -> TypeGuard[AsyncGenerator[Any, Any]]:
    """Whether a body gave an async generator to drive."""
    return type(value) is AsyncGeneratorType or isinstance(value, AsyncGenerator)


def is_coroutine(value: object) -> TypeGuard[Coroutine[Any, Any, Any]]:
    """Whether a body gave a coroutine to await."""
    return type(value) is CoroutineType or isinstance(value, Coroutine)


class Yields:
    """What a generator yielded, as far as it may be its key manifest."""

    __slots__ = ("_length", "_together", "keys")

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._together: list[Any] | None = []
        self._length = 0

    def add(self, value: Any) -> None:
        """Note one yield."""
        if self._length > MANIFEST_BYTES:
            return
        kind = type(value)
        if kind is str:
            parts: Sequence[Any] = (value,)
        elif kind is list:
            parts = value
        elif kind is dict:
            parts = tuple(value.values())
        else:
            parts = tuple(strings(value))
            self._together = None
        if not all(type(part) is str for part in parts):
            self._together, parts = None, tuple(strings(value))
        self.keys.update(parts)
        self._length += sum(map(len, parts))
        if self._length > MANIFEST_BYTES:
            self._together = None
        elif self._together is not None:
            self._together.append(value)

    def manifest(self) -> Any:
        """Return the yields together where they are a key manifest, else None.

        Strings make a list, lists are joined, dicts are merged; a mixture stays a list of the yields.
        """
        together = self._together
        if not together:
            return None
        kinds = {type(value) for value in together}
        if kinds == {list}:
            return [key for value in together for key in value]
        if kinds == {dict}:
            return {name: key for value in together for name, key in value.items()}
        return together


def run_body(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    emit: Callable[[Any], None],
    check: Callable[[Any, list[str]], None] | None = None,
    forked: Callable[[BaseException | None], NoReturn] | None = None,
) -> Any:
    """Call `fn` and drive what it gives to its end, in this thread and the run context in force.

    An async body gets an event loop of its own; where this thread runs one already, in a helper
    thread. A generator is closed when its job is cancelled or `emit` raises.

    Parameters
    ----------
    fn : callable
        A body of any kind.
    emit : callable
        Takes each value that a generator yields, as it comes.
    check : callable, optional
        Takes the result and the yielded keys; default: return-your-keys of the run context.
    forked : callable, optional
        Called, with None or what was raised, where an async body ends in a process that it forked: that
        one must leave before its copy of the event loop is closed, which shares files with this one's.

    Returns
    -------
    Any
        The body's return value. A generator that returns None: its yields together where they
        are a key manifest (page "files and scopes" of the guide), else None.

    Raises
    ------
    KeyContractError
        When a written key was neither returned nor yielded, or has no file.
    JobCancelled
        When the job was cancelled while the body ran.
    """
    if isinstance(fn, BodyWrapper):
        fn = fn.fn
    yields: Yields | None = None
    with carrying():
        result = fn(*args, **kwargs)
        while type(result) not in _AT_ONCE:
            if is_generator(result):
                yields = yields or Yields()
                result = _drive(result, emit, yields)
            elif is_asyncgen(result):
                yields = yields or Yields()
                result = _in_loop(_drive_async(result, emit, yields), forked)
            elif is_coroutine(result):
                result = _in_loop(result, forked)
            elif hasattr(type(result), "__await__"):
                result = _in_loop(_await(result), forked)
            else:
                break
    if result is None and yields is not None:
        result = yields.manifest()
    if check is not None:
        check(result, sorted(yields.keys) if yields else [])
    else:
        current().check_keys(result, yields.keys if yields else frozenset())
    return result


def _drive(generator: Generator[Any, Any, Any], emit: Callable[[Any], None], yields: Yields) -> Any:
    try:
        while True:
            try:
                value = next(generator)
            except StopIteration as stop:
                return stop.value
            yields.add(value)
            emit(value)
    except BaseException as error:
        try:
            generator.close()
        except Exception as second:  # noqa: BLE001 - the first error is the job's; the second goes with it
            error.add_note(f"closing the generator raised {type(second).__name__}: {second}")
        raise


async def _drive_async(
    generator: AsyncGenerator[Any, Any], emit: Callable[[Any], None], yields: Yields
) -> None:
    try:
        async for value in generator:
            yields.add(value)
            emit(value)
    except BaseException as error:
        try:
            await generator.aclose()
        except Exception as second:  # noqa: BLE001 - the first error is the job's; the second goes with it
            error.add_note(f"closing the async generator raised {type(second).__name__}: {second}")
        raise


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _in_loop(
    body: Coroutine[Any, Any, Any], forked: Callable[[BaseException | None], NoReturn] | None
) -> Any:
    from lakeshore.functions.event_loop import in_loop  # asyncio, which most workers never need

    return in_loop(body, forked)
