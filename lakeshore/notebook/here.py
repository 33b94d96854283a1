"""Runs the part of a cell that runs in the notebook, `await` included, as a cell without the magic would."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from types import CodeType
from typing import Any

_LOOK = 0.2


def run_here(code: CodeType, namespace: dict[str, Any]) -> None:
    """Run module-level code among the notebook's names.

    A magic cannot wait for the kernel's own loop, which runs it; so code that awaits gets a loop of its
    own, in a thread that prints into this cell. Ctrl-C cancels it.
    """
    __tracebackhide__ = True
    waiting = eval(code, namespace)  # noqa: S307 - the user's own cell
    if waiting is None:
        return
    loop = asyncio.new_event_loop()
    task = loop.create_task(waiting)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(_drive, loop, task), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK)
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    task.result()


def _drive(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    try:
        loop.run_until_complete(asyncio.wait([task]))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
