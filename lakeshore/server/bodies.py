"""Reading what a client sends: bounded in bytes and time while it streams in, then one msgpack map."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from lakeshore.planes import protocol
from lakeshore.planes.protocol_values import SMALL_LIMIT
from lakeshore.server.answers import Refusal
from lakeshore.server.options import Options

_SLOWEST = 1024
"""Bytes a second below which a body is given up."""


async def read(request: Request, options: Options, most: int | None = None) -> bytes:
    """Return the body.

    Parameters
    ----------
    most : int, optional
        Its most bytes where the call carries no payload; without it, `Options.body_limit`.

    Raises
    ------
    Refusal
        When it is larger than the limit (at once where the header says so), or comes too slowly.
    """
    limit = options.body_limit if most is None else min(most, options.body_limit)
    said = request.headers.get("content-length", "")
    if said.isdigit() and (len(said) > 15 or int(said) > limit):
        raise _too_large(limit, most)
    parts: list[bytes] = []
    size = 0
    end = asyncio.get_running_loop().time() + options.body_seconds
    try:
        while True:
            async with asyncio.timeout_at(end + size / _SLOWEST):
                message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            if part:
                size += len(part)
                if size > limit:
                    raise _too_large(limit, most)
                parts.append(part)
            if not message.get("more_body", False):
                break
    except TimeoutError:
        raise Refusal(
            "timeout",
            f"the body came too slowly: {size:,} bytes in {options.body_seconds:g} s. Send it again.",
        ) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int, most: int | None) -> Refusal:
    if limit == most:
        told = f"the body is over {limit:,} bytes, the most that this call takes: it carries no payload."
        return Refusal("too_large", told)
    return Refusal(
        "too_large",
        f"the body is over the limit of {limit:,} bytes (lakeshore serve --max-body). Write large data to a "
        "file or to storage, and send its key.",
    )


async def read_map(request: Request, options: Options, most: int | None = None) -> dict[str, Any]:
    """Return the body, of at most `most` bytes, as a map; an empty one is an empty map.

    Raises
    ------
    ValueError
        When it is no msgpack map.
    """
    data = await read(request, options, most)
    if not data:
        return {}
    try:
        if len(data) > SMALL_LIMIT:
            return await asyncio.to_thread(protocol.unpack, data)
        return protocol.unpack(data)
    except ValueError as exc:
        raise ValueError(f"body: {exc}; wants a msgpack map ({protocol.MSGPACK})") from None
