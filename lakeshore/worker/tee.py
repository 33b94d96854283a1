"""Whether the worker owns its process, and the second place of a body's output then: its stderr."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("lakeshore.worker")


def owns_the_process() -> bool:
    """Tell whether the calling thread is the main one of a process that is no kernel."""
    return threading.current_thread() is threading.main_thread() and not shell_runs()


def shell_runs() -> bool:
    """Tell whether somebody works here in cells: a notebook's kernel, or IPython in a terminal."""
    shells = sys.modules.get("IPython.core.interactiveshell")
    return shells is not None and bool(shells.InteractiveShell.initialized())


def tee_to(stream: Any) -> Callable[[str], object]:
    """Return what writes a body's output to `stream` as well, for a worker that owns its process."""
    stream = getattr(stream, "original", stream)  # of a stand-in, behind which a body's output goes elsewhere

    def tee(text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as exc:
            _log.debug("stderr is gone: %s", exc)

    return tee
