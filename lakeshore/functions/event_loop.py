"""The event loop of an async body: one for each, that ends when the job is cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, NoReturn

from lakeshore.context import current
from lakeshore.errors import JobCancelled

LOOK_INTERVAL = 0.1
"""Seconds between two looks at `run.cancelled` while an async body waits."""
_STOP_WAIT = 5.0


class _Loop:
    """One event loop for one body, that ends when the job is cancelled."""

    def __init__(self, forked: Callable[[BaseException | None], NoReturn] | None) -> None:
        self._stop = False
        self._cancelled = current()
        self._forked = forked

    def stop(self) -> None:
        """Ask the body to stop; from any thread."""
        self._stop = True

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(self._watched(body))

    async def _watched(self, body: Coroutine[Any, Any, Any]) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def look() -> None:
            # Waking at all is half of it: an exception set on this thread is raised at the next
            # bytecode, and a loop that waits in select runs none.
            if self._stop or self._cancelled.cancelled:
                self._stop = True
                task.cancel()
            else:
                timer[0] = loop.call_later(LOOK_INTERVAL, look)

        def failed(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
            if isinstance(about.get("exception"), JobCancelled):
                self._stop = True
                task.cancel()
            else:
                loop.default_exception_handler(about)

        loop.set_exception_handler(failed)
        timer = [loop.call_later(LOOK_INTERVAL, look)]
        try:
            return await self._to_its_end(body)
        except asyncio.CancelledError:
            if self._stop:
                raise JobCancelled from None
            raise
        finally:
            timer[0].cancel()

    async def _to_its_end(self, body: Coroutine[Any, Any, Any]) -> Any:
        pid = os.getpid()
        try:
            value = await body
        except BaseException as error:
            if self._forked is not None and os.getpid() != pid:
                self._forked(error)
            raise
        if self._forked is not None and os.getpid() != pid:
            self._forked(None)
        return value


def in_loop(body: Coroutine[Any, Any, Any], forked: Callable[[BaseException | None], NoReturn] | None) -> Any:
    """Run a coroutine in a loop of its own; where this thread runs one already, in a helper thread."""
    loop = _Loop(forked)
    return _in_thread(loop, body) if _loop_runs() else loop.run(body)


def _loop_runs() -> bool:
    # a call of its own: within the handler, a failing body would show this RuntimeError as its context
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(loop: _Loop, body: Coroutine[Any, Any, Any]) -> Any:
    outcome: list[Any] = []
    error: list[BaseException] = []
    context, ended = copy_context(), threading.Event()

    def work() -> None:
        try:
            outcome.append(context.run(loop.run, body))
        except BaseException as raised:  # noqa: BLE001 - raised again in the thread that waits
            error.append(raised)
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="lakeshore-body", daemon=True)
    # An event and not `join`: an exception set on this thread while it joins makes Python 3.11 take the
    # other thread for ended.
    try:
        thread.start()
        while not ended.wait(LOOK_INTERVAL):
            pass
    except BaseException:
        loop.stop()
        if thread.ident is not None:
            ended.wait(_STOP_WAIT)
        raise
    if error:
        raise error[0]
    return outcome[0]
