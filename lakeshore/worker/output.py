"""stdout and stderr of bodies: a thread-aware stand-in, in place only while a worker lives.

Which job a write belongs to is a context variable, so a body's own threads count as the body. Writes of
anyone else pass through untouched.
"""

from __future__ import annotations

import codecs
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol, TextIO

from lakeshore.worker import display, figures, forks


class Sink(Protocol):
    """Where a body's output goes."""

    def write(self, stream: str, text: str) -> None:
        """Take a piece of stdout or stderr."""
        ...

    def show(self, obj: object) -> None:
        """Take an object that the body displays."""
        ...

    def display(self, bundle: dict[str, Any]) -> None:
        """Take a display that is formatted already."""
        ...


_current: ContextVar[tuple[Sink, forks.Home] | None] = ContextVar("lakeshore_output", default=None)


def sink() -> Sink | None:
    """Return where the calling code's output goes, when it is a body's (not that of what it forked)."""
    found = _current.get()
    return None if found is None or found[1] != forks.here() else found[0]


def captured(sink: Sink, body: Callable[[], object]) -> object:
    """Call `body` with its output going to `sink`; that of its threads too, and the figures it opens."""
    renew()
    token = _current.set((sink, forks.here()))
    try:
        return figures.of_body(body, sink.show, lambda text: sink.write("stderr", text))
    finally:
        _current.reset(token)


class Capture:
    """Holds the stand-ins in place while at least one worker of this process lives."""

    def __enter__(self) -> None:
        with _lock:
            _users.append(self)
            renew()
            if len(_users) == 1:
                display.install(sink, guest=True)

    def __exit__(self, *exc_info: object) -> None:
        with _lock:
            _users.remove(self)
            if not _users:
                _remove()
                display.remove()


_lock = threading.RLock()
_users: list[Capture] = []
_installed: dict[str, StandIn] = {}


def renew() -> None:
    """Put the stand-ins in place, again where someone has set another stream meanwhile."""
    if not _users:
        return
    display.renew()
    if _installed and sys.stdout is _installed["stdout"] and sys.stderr is _installed["stderr"]:
        return
    with _lock:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if not isinstance(stream, StandIn):
                stream = StandIn(name, stream if stream is not None else io.StringIO())
                _swap_handlers(stream.original, stream)
                setattr(sys, name, stream)
            _installed[name] = stream


def _remove() -> None:
    for name, standin in list(_installed.items()):
        if getattr(sys, name) is standin:
            setattr(sys, name, standin.original)
        _swap_handlers(standin, standin.original)
    _installed.clear()


def _swap_handlers(old: Any, new: Any) -> None:
    """Have log handlers that hold one stream hold the other: a body's log lines are its output too."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.stream = new


class StandIn(io.TextIOBase):
    """A text stream that hands a body's writes to its job and everything else to the original.

    Attributes
    ----------
    original : file object
        The stream that stands behind.
    """

    def __init__(self, name: str, original: TextIO) -> None:
        super().__init__()
        self._name, self.original = name, original

    def write(self, text: str, /) -> int:
        """Write to the job whose body calls, else to the original."""
        to = sink()
        if to is None:
            return self.original.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        to.write(self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        """Write each line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the original; a body's output needs none."""
        if sink() is None:
            self.original.flush()

    def close(self) -> None:
        """Close the original; a body closes nothing that others use."""
        if sink() is None:
            self.original.close()

    @property
    def closed(self) -> bool:
        """Whether the original is closed; open for a body."""
        return False if sink() is not None else bool(self.original.closed)

    def __del__(self) -> None:
        """Leave the original open."""

    def isatty(self) -> bool:
        """Tell whether this is a terminal; a body's never is."""
        return sink() is None and self.original.isatty()

    def fileno(self) -> int:
        """Return the original's descriptor."""
        return self.original.fileno()

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def readable(self) -> bool:
        """Tell that this cannot be read."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The original's encoding."""
        return getattr(self.original, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The original's error handler."""
        return getattr(self.original, "errors", None)

    @property
    def buffer(self) -> Any:
        """The binary layer: the original's, or for a body one that ends in its log."""
        to = sink()
        return self.original.buffer if to is None else _Binary(to, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


class _Binary(io.RawIOBase):
    """The bytes side of a body's stream."""

    def __init__(self, sink: Sink, name: str) -> None:
        super().__init__()
        self._sink, self._name = sink, name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        raw = bytes(data)
        text = self._decoder.decode(raw)
        if text:
            self._sink.write(self._name, text)
        return len(raw)
