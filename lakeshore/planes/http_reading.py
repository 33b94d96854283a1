"""How much of an answer is taken: a control plane, or what stands before it, may be anybody's.

An answer over its bound is given up, never cut and read: half of one would be taken for a broken whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from lakeshore import settings
from lakeshore.planes.http_tries import BINARY, Answer, Broken

_ERROR_PART: Final = 64 * 1024
_MOST_AT_ONCE: Final = 1024 * 1024 * 1024
"""What several payloads in one answer may have."""
_SLACK: Final = 16 * 1024 * 1024
_PLAIN: Final = ("", "identity")
_INFLATED: Final = ("gzip", "x-gzip", "deflate")


class Head(Protocol):
    """What is known of an answer before its body."""

    status: int
    headers: Mapping[str, str]

    @property
    def media(self) -> str:
        """The media type without parameters."""
        ...


class Reading:
    """An answer on its way: what has come, and how much may."""

    def __init__(self, opened: Head, payloads: int) -> None:
        self._opened, self._fine = opened, opened.status < 400
        one = settings.max_payload()
        limit = max(one, min(one * payloads, _MOST_AT_ONCE)) + _SLACK
        self._wanted = limit if self._fine and opened.media in BINARY else _ERROR_PART
        self._parts: list[bytes] = []
        self._broken: Broken | None = None
        self.size, self.goes_on = 0, True

    def take(self, part: bytes | Broken | None) -> None:
        """Take the next part, or the end."""
        if isinstance(part, Broken) and self._fine:  # of an error the status says enough
            self._broken = part
        if not isinstance(part, bytes):
            self.goes_on = False
            return
        self._parts.append(part)
        self.size += len(part)
        if self.size > self._wanted:
            self.goes_on = False
            if self._wanted > _ERROR_PART:
                why = f"its answer has more than {self._wanted:,} bytes: see LAKESHORE_MAX_PAYLOAD"
                self._broken = Broken(why, landed=True, hopeless=True)

    @property
    def outcome(self) -> Answer | Broken:
        """What came of it."""
        return self._broken or Answer(self._opened.status, self._opened.headers, b"".join(self._parts))


def squeezed(answer: Head) -> Broken | None:
    """Return why a compressed answer is not read; an error's page may be, as far as it is wanted."""
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding in _PLAIN or (answer.status >= 400 and coding in _INFLATED):
        return None
    why = (
        f"its answer of status {answer.status} is compressed ({coding[:40]}), which was not asked for. What "
        "stands before it does that: switch compression off there for application/x-msgpack and "
        "application/octet-stream"
    )
    return Broken(why, landed=True, hopeless=True)
