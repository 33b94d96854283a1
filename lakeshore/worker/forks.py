"""What a body forks is the body's, never a second worker: it ends where the body would, and by SIGTERM.

A forked process holds no job: it reports nothing, calls no plane, and never returns into the loop that
called the body.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final, NoReturn

from lakeshore.worker.outcomes import user_traceback

Home = tuple[int, int]
"""A process as `here` tells it."""

_HELD: Final = (signal.SIGTERM,)
_mask = threading.local()
_forks = 0


def here() -> Home:
    """Return what is equal in one process and in nothing that it forks.

    The process id alone is not enough: it may come again in another namespace. The count of forks alone
    is not either: C code forks without Python's hooks.
    """
    return os.getpid(), _forks


def stay(home: Home, error: BaseException | None = None) -> None:
    """Return in the process `home`; end any other as `end` does."""
    if here() != home:
        end(error)


def end(error: BaseException | None) -> NoReturn:
    """End this process as a script would that returned or raised `error`, but for its exit handlers.

    They, and what else is inherited, belong to the worker that this process was forked from.
    """
    code = 1
    try:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(code)  # also where the body broke a stream: nobody is left to tell


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    sys.stderr.write(user_traceback(error) or f"{type(error).__name__}\n")
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def end_by_default() -> None:
    """Give SIGTERM its default effect in all that this process forks from now on.

    The signal is held back around the fork: Python forgets one that arrives in a child before its hooks ran.
    """
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_reset)


def _count() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count)


def _hold() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _reset() -> None:
    for number in _HELD:
        signal.signal(number, signal.SIG_DFL)
    _let_go()
