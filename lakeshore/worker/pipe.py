"""Messages between a worker and its child process: a length, then a packed list."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final, cast

from lakeshore import wire

_HEAD: Final = struct.Struct(">Q")
_READ: Final = 1024 * 1024


def send(sock: socket.socket, message: list[Any]) -> None:
    """Send one message whole.

    Raises
    ------
    OSError
        When the other end is gone.
    """
    body = wire.pack(message)
    head = _HEAD.pack(len(body))
    if len(body) < _READ:
        sock.sendall(head + body)
    else:
        sock.sendall(head)
        sock.sendall(body)


class Inbox:
    """Takes bytes from a socket and gives whole messages; a large one is read to where it stays."""

    __slots__ = ("_buffer", "_filled", "_large", "_messages", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._large: memoryview | None = None
        self._filled = 0
        self._messages: list[list[Any]] = []

    def receive(self) -> bool:
        """Read what is there, waiting for at least a byte; False at the end of the line."""
        try:
            return self._read(0)
        except ConnectionError:
            return False

    def rest(self) -> None:
        """Read what is there without waiting; the other end is gone, though a copy of it may be open."""
        with contextlib.suppress(OSError):  # nothing is there
            while self._read(socket.MSG_DONTWAIT):
                pass

    def _read(self, flags: int) -> bool:
        if self._large is not None:
            read = self._socket.recv_into(self._large[self._filled :], 0, flags)
            self._filled += read
            if self._filled == len(self._large):
                self._messages.append(wire.unpack(cast(bytes, self._large.obj)))  # any buffer is read alike
                self._large = None
            return read > 0
        data = self._socket.recv(_READ, flags)
        self._buffer += data
        self._split()
        return bool(data)

    def _split(self) -> None:
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEAD.size:
            (size,) = _HEAD.unpack_from(buffer, start)
            begin, end = start + _HEAD.size, start + _HEAD.size + size
            if len(buffer) >= end:
                self._messages.append(wire.unpack(bytes(buffer[begin:end])))
                start = end
                continue
            if size >= _READ // 4:
                whole = bytearray(size)
                self._filled = len(buffer) - begin
                whole[: self._filled] = buffer[begin:]
                self._large = memoryview(whole)
                start = len(buffer)
            break
        if start:
            del buffer[:start]

    def take(self) -> list[list[Any]]:
        """Return the messages that are complete."""
        messages, self._messages = self._messages, []
        return messages
