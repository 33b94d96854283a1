"""What a body forks is the body's: it ends by SIGTERM as any process does, not by a worker's handler.

The signal is held back around the fork: Python forgets one that arrives in a child before its hooks ran.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

_HELD: Final = (signal.SIGTERM,)
_mask = threading.local()


def end_by_default() -> None:
    """Give SIGTERM its default effect in all that this process forks from now on."""
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_reset)


def _hold() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _reset() -> None:
    for number in _HELD:
        signal.signal(number, signal.SIG_DFL)
    _let_go()
