"""Overhearing a store: each commit made through an engine is told to the server in the same process."""

from __future__ import annotations

from collections.abc import Callable

from lakeshore.planes.doorbell import Belfry, Bell
from lakeshore.planes.store import Store


class Overheard:
    """A belfry that also tells this process what is rung in it.

    Parameters
    ----------
    inner : Belfry
        Where the bells of other processes hang.
    hear : callable
        Called with the topics of each commit, in the thread that made it; must neither block nor raise.
    """

    def __init__(self, inner: Belfry, hear: Callable[[list[str]], None]) -> None:
        self.inner, self._hear = inner, hear

    def hang(self, topic: str) -> Bell:
        """Hang up a bell for `topic`."""
        return self.inner.hang(topic)

    def ring(self, topics: list[str]) -> None:
        """Ring every bell of these topics, and tell."""
        self.inner.ring(topics)
        self._hear(topics)

    def close(self) -> None:
        """Let go of what the rings keep open."""
        self.inner.close()

    def renew(self) -> None:
        """Begin anew in a forked child."""
        self.inner.renew()


def overhear(engine: Store, hear: Callable[[list[str]], None]) -> Callable[[], None]:
    """Tell `hear` of every commit made through `engine`; returns what ends that."""
    inner = engine._bells
    engine._bells = Overheard(inner, hear)

    def stop() -> None:
        engine._bells = inner

    return stop


def descriptor(bell: Bell) -> int | None:
    """Return the file descriptor that is readable once `bell` rings, None where it has none."""
    fd = getattr(bell, "_fd", None)
    return fd if isinstance(fd, int) and fd >= 0 else None
