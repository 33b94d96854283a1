"""Many journals and rows in one held request: what the panels of a notebook ask, however many there are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from starlette.routing import Route

from lakeshore.planes import protocol
from lakeshore.planes.contract import check_id
from lakeshore.planes.protocol import field
from lakeshore.planes.store_watching import marks, reached
from lakeshore.planes.store_within import Within, check_journal
from lakeshore.server.answers import Refusal
from lakeshore.server.producing import held
from lakeshore.server.serving import EVERYONE, Call, Serving, revoked
from lakeshore.server.streams import SEQ_LIMIT, part

MOST_LOOKED_AT: Final = 1000
"""Journals and rows in one request."""
_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""What one answer brings, about; the rest comes with the next."""
_LOOK_SECONDS: Final = 0.25
"""Between two looks: what other servers and processes wrote, and a state that changed, ring no bell here."""
_REST: Final = 10.0
"""A look waits for so many times what the last one took."""
MOST_OF_A_TOKEN: Final = 10_000
"""Journals and rows in all the requests of one token at a time."""

_Cursor = tuple[str, int, bool]
_Known = tuple[str, int | None]


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    room = Looking(serving)
    return [serving.route(protocol.LOOK, room.look, EVERYONE)]


class Looking:
    """What the route does. Looks have a thread of their own: whoever makes many delays no other call."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._asked: dict[str, int] = {}
        self._open = 0

    async def look(self, call: Call) -> dict[str, Any]:
        """Answer once there is news of one, or the hold is over."""
        cursors, known = _cursors(call), _known(call)
        hold = held(self._serving, call)
        with self._counted(call, len(cursors) + len(known)):
            return await self._held(call, cursors, known, hold)

    async def _held(
        self, call: Call, cursors: list[_Cursor], known: list[_Known], hold: float
    ) -> dict[str, Any]:
        serving, plane = self._serving, self._serving.plane(call.ns)
        loop = asyncio.get_running_loop()
        end = loop.time() + hold
        told, took = await serving.look(_timed, plane, cursors, known)
        if _is_news(told) or hold <= 0 or serving.draining:
            return told
        topics = [
            *(plane.journal_topic(journal) for journal, _, _ in cursors),
            *(plane.end_topic(id) for id, _ in known),
        ]
        async with serving.listening(call, topics, _nothing) as (ear, gone):
            while not (_is_news(told) or gone.done() or serving.draining):
                rest = loop.time() + took * _REST
                left = end - loop.time()
                if left <= 0:
                    break
                await ear.wait(min(left, max(_LOOK_SECONDS, took * _REST * self._open)))
                if not (gone.done() or serving.draining):
                    await asyncio.sleep(min(rest, end) - loop.time())
                ear.clear()
                told, took = await serving.look(_timed, plane, cursors, known)
        if not await serving.still_good(call):
            raise revoked()
        return told

    @contextlib.contextmanager
    def _counted(self, call: Call, n: int) -> Iterator[None]:
        """Count what one request looks at; raises `Refusal` (429) where its token looks at too much."""
        owner = "" if call.token is None else call.token.digest
        count = self._asked.get(owner, 0)
        if count + n > MOST_OF_A_TOKEN:
            raise Refusal(
                "too_many",
                f"{count:,} journals and rows are looked at with this token; {MOST_OF_A_TOKEN:,} may be. "
                "Close some panels, or take another token.",
                retry_after=2,
            )
        self._asked[owner] = count + n
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._asked[owner] -= n
            if not self._asked[owner]:
                del self._asked[owner]


def _nothing() -> bool:
    return False


def _is_news(told: dict[str, Any]) -> bool:
    return bool(told["journals"] or told["rows"])


def _timed(plane: Within, cursors: list[_Cursor], known: list[_Known]) -> tuple[dict[str, Any], float]:
    """Return what `looked` does, and how many seconds it took here, waits for the thread aside."""
    began = time.monotonic()
    return looked(plane, cursors, known), time.monotonic() - began


def looked(plane: Within, cursors: list[_Cursor], known: list[_Known]) -> dict[str, Any]:
    """Return what is new beyond the cursors, and the rows that are not as they are known. Blocks."""
    journals: dict[str, Any] = {}
    size = 0
    for (journal, since, finished), far in zip(
        cursors, reached(plane, [(journal, since) for journal, since, _ in cursors]), strict=True
    ):
        if size >= _ANSWER_BYTES:
            break
        frames, ended = part(plane, journal, since) if far.more else ([], far.finished)
        if frames or ended is not finished:
            journals[journal] = {"frames": frames, "finished": ended}
            size += sum(len(data) for _, data in frames)
    rows: dict[str, Any] = {}
    found = marks(plane, [id for id, _ in known])
    for id, mark in known:
        now = found.get(id, 0)
        if now != mark and size < _ANSWER_BYTES:
            row = None if id not in found else plane.get(id)
            rows[id] = {"mark": now, "row": row}
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
