"""Many journals and rows in one held request: what the panels of a notebook ask, however many there are."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

from starlette.routing import Route

from lakeshore.planes import protocol
from lakeshore.planes.contract import check_id
from lakeshore.planes.protocol import field
from lakeshore.planes.store_within import Within, check_journal
from lakeshore.server.producing import held
from lakeshore.server.serving import EVERYONE, Call, Serving, revoked
from lakeshore.server.streams import SEQ_LIMIT, part

MOST_LOOKED_AT: Final = 1000
"""Journals and rows in one request."""
_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""What one answer brings, about; the rest comes with the next."""
_LOOK_SECONDS: Final = 0.25
"""Between two looks: what other servers and processes wrote, and a state that changed, ring no bell here."""
_SHOWN: Final = (
    *("state", "queue", "attempt", "fence", "losses", "worker_id", "error", "priority"),
    *("not_before", "started_at", "finished_at"),
)

_Cursor = tuple[str, int, bool]
_Known = tuple[str, int | None]


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""

    async def look(call: Call) -> dict[str, Any]:
        cursors, known = _cursors(call), _known(call)
        hold, plane = held(serving, call), serving.plane(call.ns)
        told = await serving.read(looked, plane, cursors, known)
        loop = asyncio.get_running_loop()
        end = loop.time() + hold
        if _is_news(told) or hold <= 0 or serving.draining:
            return told
        topics = [
            *(plane.journal_topic(journal) for journal, _, _ in cursors),
            *(plane.end_topic(id) for id, _ in known),
        ]
        async with serving.listening(call, topics, _nothing) as (ear, gone):
            while not (gone.done() or serving.draining):
                left = end - loop.time()
                if left <= 0:
                    break
                await ear.wait(min(left, _LOOK_SECONDS))
                ear.clear()
                told = await serving.read(looked, plane, cursors, known)
                if _is_news(told):
                    break
        if not await serving.still_good(call):
            raise revoked()
        return told

    return [serving.route(protocol.LOOK, look, EVERYONE)]


def _nothing() -> bool:
    return False


def _is_news(told: dict[str, Any]) -> bool:
    return bool(told["journals"] or told["rows"])


def looked(plane: Within, cursors: list[_Cursor], known: list[_Known]) -> dict[str, Any]:
    """Return what is new beyond the cursors, and the rows that are not as they are known. Blocks."""
    journals: dict[str, Any] = {}
    size = 0
    for journal, since, finished in cursors:
        if size >= _ANSWER_BYTES:
            break
        frames: list[tuple[int, bytes]] = []
        ended = False
        if plane.has_news(journal, since):
            frames, ended = part(plane, journal, since)
        if frames or ended is not finished:
            journals[journal] = {"frames": frames, "finished": ended}
            size += sum(len(data) for _, data in frames)
    rows: dict[str, Any] = {}
    for id, mark in known:
        seen = plane.look(id)
        found = 0 if seen is None else zlib.crc32(repr([seen[name] for name in _SHOWN]).encode())
        if found != mark and size < _ANSWER_BYTES:
            row = None if seen is None else plane.get(id)
            rows[id] = {"mark": found, "row": row}
            size += len((row or {}).get("result") or b"")
    return {"journals": journals, "rows": rows}


def _cursors(call: Call) -> list[_Cursor]:
    """Read ``[journal, since, finished]`` of each; raises `ValueError` naming the field."""
    cursors: list[_Cursor] = []
    for n, each in enumerate(_listed(call, "journals", 3)):
        told = dict(zip(("journal", "since", "finished"), each, strict=True))
        try:
            since = field(told, "since", int)
            if not -1 <= since < SEQ_LIMIT:
                raise ValueError(f"since: wants -1 or a seq below 2**62, got {since}")
            cursors.append((check_journal(field(told, "journal", str)), since, field(told, "finished", bool)))
        except ValueError as exc:
            raise ValueError(f"journals[{n}].{exc}") from None
    return cursors


def _known(call: Call) -> list[_Known]:
    """Read ``[id, mark]`` of each; raises `ValueError` naming the field."""
    known: list[_Known] = []
    for n, each in enumerate(_listed(call, "rows", 2)):
        told = dict(zip(("id", "mark"), each, strict=True))
        try:
            known.append((check_id(field(told, "id", str)), field(told, "mark", int, None)))
        except ValueError as exc:
            raise ValueError(f"rows[{n}].{exc}") from None
    return known


def _listed(call: Call, name: str, size: int) -> list[list[Any]]:
    listed: list[Any] = field(call.body, name, list, [])
    if len(listed) > MOST_LOOKED_AT:
        raise ValueError(f"{name}: wants at most {MOST_LOOKED_AT:,}, got {len(listed):,}. Ask in parts.")
    for n, each in enumerate(listed):
        if not isinstance(each, list) or len(each) != size:
            raise ValueError(f"{name}[{n}]: wants a list of {size}")
    return listed
