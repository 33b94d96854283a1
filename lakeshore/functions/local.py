"""Calls a body here and now: a scope of its own, its keys checked, nothing leaked into the caller.

A generator's body runs in a context of its own, so a scope that it opens is not seen by whoever
iterates, and one abandoned halfway takes nobody's scope away.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import Context, copy_context
from types import coroutine
from typing import Any

from lakeshore.context import RunContext, child
from lakeshore.functions.body import is_asyncgen, is_coroutine, is_generator
from lakeshore.functions.threads import carrying
from lakeshore.keys import strings


def call_local(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call `fn` in a fresh child of the scope in force and return what it gives, of the same kind.

    Raises
    ------
    KeyContractError
        When a written key is neither returned nor yielded, or has no file: for a generator at its
        end, for a coroutine when awaited.
    """
    with child() as run, carrying():
        result = fn(*args, **kwargs)
        if is_generator(result):
            return _generator(result, copy_context(), run)
        if is_asyncgen(result):
            return _AsyncBody(result, copy_context(), run)
        if is_coroutine(result):
            return _coroutine(result, copy_context(), run)
    run.check_keys(result)
    return result


def _step(context: Context, advance: Callable[..., Any], *args: Any) -> Any:
    with carrying():
        return context.run(advance, *args)


def _generator(body: Generator[Any, Any, Any], context: Context, run: RunContext) -> Generator[Any, Any, Any]:
    keys: set[str] = set()
    advance, argument = body.send, None
    try:
        while True:
            try:
                value = _step(context, advance, argument)
            except StopIteration as stop:
                result = stop.value
                break
            keys.update(strings(value))
            try:
                argument = yield value
                advance = body.send
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 - handed on into the body, as `throw` asks
                advance, argument = body.throw, thrown
    finally:
        _step(context, body.close)
    run.check_keys(result, keys)
    return result


@coroutine
def _awaited(context: Context, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """Await `awaitable` with each of its steps in `context`."""
    inner: Any = awaitable.__await__()
    advance, argument = inner.send, None
    while True:
        try:
            pending = _step(context, advance, argument)
        except StopIteration as stop:
            return stop.value
        try:
            argument = yield pending
            advance = inner.send
        except GeneratorExit:
            _step(context, inner.close)
            raise
        except BaseException as thrown:  # noqa: BLE001 - handed on into the body, as `throw` asks
            advance, argument = inner.throw, thrown


async def _coroutine(body: Coroutine[Any, Any, Any], context: Context, run: RunContext) -> Any:
    result = await _awaited(context, body)
    run.check_keys(result)
    return result


class _AsyncBody(AsyncGenerator[Any, Any]):
    """An async generator whose steps run in a context of their own.

    A class and not an async generator: the loop then knows of one generator, the user's, and
    closes that one.
    """

    def __init__(self, body: AsyncGenerator[Any, Any], context: Context, run: RunContext) -> None:
        self._body, self._context, self._run = body, context, run
        self._keys: set[str] = set()

    async def _advance(self, step: Awaitable[Any]) -> Any:
        try:
            value = await _awaited(self._context, step)
        except StopAsyncIteration:
            self._run.check_keys(None, self._keys)
            raise
        self._keys.update(strings(value))
        return value

    async def asend(self, value: Any) -> Any:
        return await self._advance(self._body.asend(value))

    async def athrow(self, *error: Any) -> Any:
        return await self._advance(self._body.athrow(*error))

    async def aclose(self) -> None:
        await _awaited(self._context, self._body.aclose())
