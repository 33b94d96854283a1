"""Messages between a worker and its child process: a length, then a packed list."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final

from lakeshore import wire

_HEAD: Final = struct.Struct(">Q")
_READ: Final = 1024 * 1024


def encode(message: list[Any]) -> bytes:
    """Return the bytes of one message."""
    body = wire.pack(message)
    return _HEAD.pack(len(body)) + body


class Inbox:
    """Takes bytes from a socket and gives whole messages."""

    __slots__ = ("_buffer", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def receive(self) -> bool:
        """Read what is there, waiting for at least a byte; False at the end of the line."""
        try:
            data = self._socket.recv(_READ)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def rest(self) -> None:
        """Read what is there without waiting; the other end is gone, though a copy of it may be open."""
        with contextlib.suppress(OSError):  # nothing is there
            while data := self._socket.recv(_READ, socket.MSG_DONTWAIT):
                self._buffer += data

    def take(self) -> list[list[Any]]:
        """Return the messages that are complete."""
        messages = []
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEAD.size:
            (size,) = _HEAD.unpack_from(buffer, start)
            end = start + _HEAD.size + size
            if len(buffer) < end:
                break
            messages.append(wire.unpack(bytes(buffer[start + _HEAD.size : end])))
            start = end
        if start:
            del buffer[:start]
        return messages
