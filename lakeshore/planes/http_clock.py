"""The time that an answer's headers may take in all, however slowly their bytes drip.

The HTTP library bounds each read, not their sum: a server that sends a line now and then would hold a caller
for hours. Stands around the connections of a client's pool; nothing else of the library is known here.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Clock(threading.local):
    """When this thread's headers have to be there.

    Attributes
    ----------
    runs : bool
        Headers are waited for.
    until : float or None
        Monotonic; set by the first read, so that a long upload is not counted.
    """

    def __init__(self) -> None:
        self.runs, self.until = False, None

    runs: bool
    until: float | None

    @contextmanager
    def headers(self) -> Iterator[None]:
        """Bound the reads of this thread as one."""
        self.runs, self.until = True, None
        try:
            yield
        finally:
            self.runs = False

    def left(self, timeout: float | None) -> float | None:
        """Return the seconds that the next read may take.

        Raises
        ------
        TimeoutError
            When the headers have had their time.
        """
        if not self.runs or timeout is None:
            return timeout
        now = time.monotonic()
        if self.until is None:
            self.until = now + timeout
        if now >= self.until:
            raise TimeoutError("the answer's headers came too slowly")
        return min(timeout, self.until - now)


class _Stream:
    def __init__(self, stream: Any, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self.write, self.close = stream.write, stream.close
        self.get_extra_info = stream.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._stream.read(max_bytes, timeout=self._clock.left(timeout))
        return data

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> _Stream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._clock)


class _Backend:
    def __init__(self, backend: Any, clock: Clock) -> None:
        self._backend, self._clock = backend, clock
        self.sleep = backend.sleep

    def connect_tcp(self, *args: Any, **options: Any) -> _Stream:
        return _Stream(self._backend.connect_tcp(*args, **options), self._clock)


def timed(transport: Any, clock: Clock) -> None:
    """Put the clock around the connections that a transport will make.

    The library names no way in; where its insides are others, headers have no bound but that of each read.
    """
    pool = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if pool is not None and backend is not None:
        pool._network_backend = _Backend(backend, clock)
