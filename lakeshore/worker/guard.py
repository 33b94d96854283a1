"""The door through which a running body is stopped from another thread, and when that door is shut.

An exception raised from outside may surface at any bytecode. Hence two rules: never after the body has
ended, and never while a frame is being written.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final, Literal, Protocol

from lakeshore.errors import JobCancelled

Reason = Literal["lost", "cancelled", "timeout", "release"]
"""Why a body is to stop: another worker has the job, it was cancelled, it ran too long, the worker drains."""

RESEND: Final = 5.0
"""Seconds between two tries to stop a body that went on; it may be tidying up."""

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_async_exc.restype = ctypes.c_int
_NOTHING = ctypes.py_object()


class Door(Protocol):
    """What the keeper knows of a running body: how to stop it."""

    reason: Reason | None
    in_thread: bool
    """Whether the body runs in a thread that nothing but the body itself can end."""

    def stop(self, reason: Reason) -> None:
        """Ask the body to stop; the first reason stays. Called again while the body goes on."""
        ...


class Guard:
    """Stops a body that runs in one thread of this process, by `JobCancelled` raised there.

    As a context manager it shields: no exception from outside surfaces inside the ``with``; one that
    was asked for meanwhile is raised at its end (or at its start, when asked for before).

    Attributes
    ----------
    reason : str or None
        Why the body was told to stop, or None.
    """

    __slots__ = ("_lock", "_open", "_shielded", "_thread", "reason")

    in_thread = True

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._open = True
        self._shielded = False
        self.reason: Reason | None = None

    def stop(self, reason: Reason) -> None:
        """Raise `JobCancelled` in the body's thread at its next bytecode; nothing once the body has ended."""
        with self._lock:
            if not self._open:
                return
            if self.reason is None:
                self.reason = reason
            if not self._shielded:
                _set_async_exc(self._thread, JobCancelled)

    def close(self) -> None:
        """Shut the door: the body has ended, and what was on its way to it is taken back."""
        with self._lock:
            self._open = False
            if self.reason is not None:
                _set_async_exc(self._thread, _NOTHING)

    def stopping(self) -> bool:
        """Tell whether the body was told to stop."""
        return self.reason is not None

    def __enter__(self) -> None:
        with self._lock:
            self._shielded = True
            if self.reason is not None:
                self._shielded = False
                _set_async_exc(self._thread, _NOTHING)
                raise JobCancelled

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._shielded = False
            if self.reason is not None and self._open:
                raise JobCancelled

    def run(self, body: Callable[[], object]) -> tuple[object, BaseException | None]:
        """Call `body` and shut the door behind it, whatever comes.

        Returns
        -------
        value, failure
            What it returned, or what it raised.
        """
        end: tuple[object, BaseException | None] = (None, JobCancelled())
        try:
            try:
                end = (body(), None)
            except BaseException as exc:  # noqa: BLE001 - any exception of a body is the job's failure
                end = (None, exc)
            self.close()
        except JobCancelled:  # it surfaced after the body's end: too late to count
            self.close()
        return end
