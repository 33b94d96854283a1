"""What came of one run of a body, and a failure as text: the user's own frames, never the worker's."""

from __future__ import annotations

import os
import traceback as tracebacks
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lakeshore import version
from lakeshore.worker.guard import Reason

TRACEBACK_LIMIT: Final = 64 * 1024
MESSAGE_LIMIT: Final = 16 * 1024

PACKAGE: Final = str(Path(version.__file__).parent) + os.sep
"""Where this package's own files lie."""
_ASYNCIO: Final = str(Path(os.__file__).parent / "asyncio") + os.sep


class Done(NamedTuple):
    """The body ended well.

    Attributes
    ----------
    result : bytes
        Its packed result.
    frames : int
        How many frames it wrote; 0 for a body that yields nothing.
    """

    result: bytes
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The body failed, or was refused before it began.

    Attributes
    ----------
    type, message, traceback
        The exception as text.
    refused : bool
        Another try would end the same way: no retry. No body ran (then no ERROR frame is written), or what
        it gave is refused; the message says it all, and there is no traceback.
    frames : int
        How many frames were written before.
    """

    type: str
    message: str
    traceback: str | None = None
    refused: bool = False
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Stopped:
    """The body was stopped from outside."""

    reason: Reason
    traceback: str | None = None
    frames: int = 0


Outcome = Done | Failed | Stopped


def failed(exc: BaseException, *, refused: bool = False, frames: int = 0) -> Failed:
    """Tell an exception as text; one whose ``str()`` raises is told by its type."""
    return Failed(
        type=_clean(type(exc).__name__, 200),
        message=_message(exc),
        traceback=None if refused else user_traceback(exc),
        refused=refused,
        frames=frames,
    )


def user_traceback(exc: BaseException) -> str | None:
    """Format `exc` with its causes, without the frames of this package, within 64 KiB."""
    try:
        told = tracebacks.TracebackException.from_exception(exc, compact=True)
        _keep_user_frames(told, set())
        text = _clean("".join(told.format()), None)
    except BaseException:  # noqa: BLE001 - a hostile exception (its attributes raise) is told by its type
        return None
    if len(text.encode()) > TRACEBACK_LIMIT:
        tail = text.encode()[-(TRACEBACK_LIMIT - 64) :].decode(errors="ignore")
        text = f"... (traceback cut to its last 64 KiB)\n{tail.partition(chr(10))[2]}"
    return text


def _keep_user_frames(told: tracebacks.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    frames = [frame for frame in told.stack if not frame.filename.startswith(PACKAGE)]
    # The first line of a notebook's cell is the magic; only what carries the cell runs there.
    frames = [f for f in frames if not (f.lineno == 1 and f.filename.startswith("<lakeshore "))]
    while frames and frames[0].filename.startswith(_ASYNCIO):
        del frames[0]
    told.stack[:] = frames
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _keep_user_frames(other, seen)


def _message(exc: BaseException) -> str:
    try:
        if isinstance(exc, SystemExit):
            return f"the body called sys.exit({exc.code!r:.200}); return a value or raise an error instead"
        return _clean(str(exc), MESSAGE_LIMIT)
    except BaseException as odd:  # noqa: BLE001 - str() of a foreign exception may raise anything
        return f"(its str() raised {type(odd).__name__})"


def _clean(text: str, limit: int | None) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if limit is None or len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
