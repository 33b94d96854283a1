"""Reading what a client sends: bounded in bytes and time while it streams in, then one msgpack map.

Bodies are gathered in memory, so they are bounded together, too: those of a token, and those of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from lakeshore.planes import protocol
from lakeshore.planes.protocol_values import SMALL_LIMIT
from lakeshore.server.answers import Refusal
from lakeshore.server.options import Options

_SLOWEST: Final = 1024
"""Bytes a second below which a body is given up."""
_SPARE: Final = 4
"""A share of the bounds (one in so many) that is left to bodies without payload: heartbeats go on."""
_HELD: Final = "lakeshore.held_bytes"


class Bodies:
    """The bodies that one server has in memory: from their first byte until their request is answered."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._all = 0
        self._of: dict[str, int] = {}

    @property
    def held(self) -> int:
        """The bytes that bodies hold, or will have held once they are whole."""
        return self._all

    def hold(self, request: Request, size: int, *, small: bool = False) -> None:
        """Count bytes that a request is about to hold, beside what it does; `let_go` is called at its end.

        Parameters
        ----------
        small : bool
            Whether it carries no payload, and so may have what is spared for such.

        Raises
        ------
        Refusal
            When those of its token (429), or of all (503), would be more than may be.
        """
        owner = _owner(request)
        options = self._options
        spare = _SPARE if small else 0
        mine = self._of.get(owner, 0) + size
        most = options.token_bytes
        if mine > most + (most // spare if spare else 0):
            raise Refusal(
                "too_many",
                f"the requests under way with this token hold {mine - size:,} bytes, and may hold {most:,}; "
                f"this one would add {size:,}. Send it again once some are answered, or fewer at once.",
                retry_after=1,
            )
        most = options.all_bytes
        if self._all + size > most + (most // spare if spare else 0):
            raise Refusal(
                "plane_unavailable",
                f"the requests under way hold {self._all:,} bytes, and all may hold {most:,}; this one would "
                f"add {size:,}. Send it again.",
                retry_after=1,
            )
        self._of[owner] = mine
        self._all += size
        _, held = request.scope.get(_HELD, (owner, 0))
        request.scope[_HELD] = owner, held + size

    def let_go(self, request: Request) -> None:
        """Forget what a request held: it is answered."""
        owner, held = request.scope.pop(_HELD, ("", 0))
        if not held:
            return
        self._all -= held
        self._of[owner] -= held
        if not self._of[owner]:
            del self._of[owner]

    async def parts(self, request: Request) -> AsyncIterator[bytes]:
        """Yield a body's parts as they come.

        Raises
        ------
        Refusal
            When it comes too slowly, or nothing more comes (408).
        ClientDisconnect
            When its sender is gone.
        """
        clock, seconds = asyncio.get_running_loop().time, self._options.body_seconds
        began, size, more = clock(), 0, True
        while more:
            until = min(began + seconds + size / _SLOWEST, clock() + seconds)
            try:
                async with asyncio.timeout_at(until):
                    message = await request.receive()
            except TimeoutError:
                raise Refusal(
                    "timeout",
                    f"the body came too slowly: {size:,} bytes in {clock() - began:.0f} s, or nothing for "
                    f"{seconds:g} s. Send it again.",
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if part:
                yield part

    async def read(self, request: Request, most: int | None = None) -> bytes:
        """Return the body.

        Parameters
        ----------
        most : int, optional
            Its most bytes where the call carries no payload; without it, `Options.body_limit`.

        Raises
        ------
        Refusal
            When it is larger than the limit (at once where the header says so), comes too slowly, or is one
            too many to be held.
        """
        limit = self._options.body_limit if most is None else min(most, self._options.body_limit)
        said = request.headers.get("content-length", "")
        if said.isdigit() and (len(said) > 15 or int(said) > limit):
            raise _too_large(limit, most)
        counted = int(said) if said.isdigit() else 0
        self.hold(request, counted, small=most is not None)
        parts: list[bytes] = []
        size = 0
        async for part in self.parts(request):
            size += len(part)
            if size > limit:
                raise _too_large(limit, most)
            if size > counted:
                self.hold(request, size - counted, small=most is not None)
                counted = size
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_map(self, request: Request, most: int | None = None) -> dict[str, Any]:
        """Return the body, of at most `most` bytes, as a map; an empty one is an empty map.

        Raises
        ------
        ValueError
            When it is no msgpack map.
        """
        data = await self.read(request, most)
        if not data:
            return {}
        try:
            if len(data) > SMALL_LIMIT:
                return await asyncio.to_thread(protocol.unpack, data)
            return protocol.unpack(data)
        except ValueError as exc:
            raise ValueError(f"body: {exc}; wants a msgpack map ({protocol.MSGPACK})") from None


def _owner(request: Request) -> str:
    """Return what `Serving.caller` notes: the id of the token; "" for a caller without."""
    owner: str = request.scope.get("lakeshore.token", "")
    return owner


def _too_large(limit: int, most: int | None) -> Refusal:
    if limit == most:
        told = f"the body is over {limit:,} bytes, the most that this call takes: it carries no payload."
        return Refusal("too_large", told)
    return Refusal(
        "too_large",
        f"the body is over the limit of {limit:,} bytes (lakeshore serve --max-body). Write large data to a "
        "file or to storage, and send its key.",
    )
