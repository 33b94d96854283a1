"""What a body changes of its process that the next body must not meet: the environment, umask, recursion."""

from __future__ import annotations

import contextlib
import os
import sys


class ProcessState:
    """The process as it is now, to be put back after each body.

    Parameters
    ----------
    environ : bool
        Whether the environment is put back too: only where no other thread may be about to change it.
    """

    def __init__(self, *, environ: bool) -> None:
        self._environ = dict(os.environ) if environ else None
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._recursion = sys.getrecursionlimit()

    def put_back(self) -> None:
        """Undo what was changed since."""
        os.umask(self._umask)
        if sys.getrecursionlimit() != self._recursion:
            with contextlib.suppress(RecursionError):  # this thread is deeper than it was
                sys.setrecursionlimit(self._recursion)
        kept = self._environ
        if kept is not None and dict(os.environ) != kept:
            for name in os.environ.keys() - kept.keys():
                del os.environ[name]
            os.environ.update(kept)
