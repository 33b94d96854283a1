"""What a body of the protocol may hold: so many values, since a byte can stand for 64."""

from __future__ import annotations

from typing import Any, Final

import msgpack

SMALL_LIMIT: Final = 64 * 1024
"""What a control plane takes in the body of a call that carries no payload."""
MOST_VALUES: Final = 4_000_000
"""The most values, and keys, of one body."""
LONGEST: Final = 1_000_000
"""The most values of one array in it."""


class Counted:
    """Unpacks msgpack of another's, and stops before its values fill the memory.

    Parameters
    ----------
    most : int
        The most values and keys.

    Attributes
    ----------
    over : bool
        Whether there were more, or more than `LONGEST` in one array.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self.over = False

    def unpack(self, data: bytes) -> Any:
        """Return the value; raises `ValueError`, with `over` set, for one of too many parts."""
        if len(data) <= SMALL_LIMIT:  # too few bytes for too many values
            return msgpack.unpackb(data, raw=False, strict_map_key=False)
        try:
            return msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=False,
                object_hook=self._take,
                list_hook=self._take,
                max_array_len=LONGEST,
                max_map_len=LONGEST // 2,
            )
        except ValueError as exc:
            self.over = self.over or "exceeds max_" in str(exc)
            raise

    def _take(self, value: Any) -> Any:
        self._left -= 1 + (2 * len(value) if isinstance(value, dict) else len(value))
        if self._left < 0:
            self.over = True
            raise ValueError("too many values")
        return value
