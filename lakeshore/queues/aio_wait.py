"""How a coroutine waits for a thread's answer: so that Ctrl-C is seen, and says what it left running."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from lakeshore.errors import Detached

LOOK: Final = 0.2
"""Seconds between two wakes of a wait: a kernel's loop sees Ctrl-C only when it wakes."""

T = TypeVar("T")


async def awake(answer: asyncio.Future[T]) -> T:
    """Await `answer`, waking the loop every `LOOK` seconds; cancelled with whoever waits."""
    try:
        while not answer.done():
            await asyncio.wait((answer,), timeout=LOOK)
    except asyncio.CancelledError:
        answer.cancel()
        raise
    return answer.result()


def let_go(error: asyncio.CancelledError, detached: Detached) -> None:
    """Put on a wait's cancellation what it left running, as a note; a notebook shows that line alone.

    The error stays what it is: `asyncio.timeout` and Ctrl-C in a kernel both cancel the task, and the
    first wants its own back.
    """
    line = str(detached)
    error.add_note(line)
    shown: Any = error
    shown._render_traceback_ = lambda: [line]
