"""What happens to the planes of a process at a fork.

SQLite's locks belong to the process, so no connection may be open across a fork. New calls are turned
away first, calls in flight end, every connection and side-lock descriptor closes; parent and child open
again at their next call.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from lakeshore.planes import doorbell, sqlite_turn
from lakeshore.planes.sqlite_turn import Turn


class Forkable(Protocol):
    """What a plane does at a fork, while its turn is held."""

    _turn: Turn

    def _before_fork(self) -> None:
        """Turn reads away, and close every connection."""

    def _after_fork(self, *, child: bool) -> None:
        """Take calls again."""


_planes: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(plane: Forkable) -> None:
    """Have `plane` told of forks. Called within its turn and before its first connection opens."""
    _planes.add(plane)


class _Fork:
    """One fork at a time: what was stopped before it, to be let go on after it."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._held: list[Turn] = []
        self._forked: list[Forkable] = []

    def before(self) -> None:
        self._one.acquire()
        turns = {id(turn): turn for turn in (*sqlite_turn.all_turns(), *(plane._turn for plane in _planes))}
        for turn in turns.values():
            turn.lock.acquire()
            self._held.append(turn)
        self._forked = list(_planes)
        for plane in self._forked:
            plane._before_fork()
        for turn in self._held:
            turn.close()

    def in_parent(self) -> None:
        for plane in self._forked:
            plane._after_fork(child=False)
        for turn in self._held:
            turn.lock.release()
        self._forked, self._held = [], []
        self._one.release()

    def in_child(self) -> None:
        self._one = threading.Lock()
        sqlite_turn.renew_in_child()
        doorbell.forget_in_child()
        for turn in self._held:
            turn.renew()
        for plane in self._forked:
            plane._after_fork(child=True)
        self._forked, self._held = [], []


if hasattr(os, "register_at_fork"):
    _fork = _Fork()
    os.register_at_fork(before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child)
