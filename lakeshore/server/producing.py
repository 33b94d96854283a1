"""The routes of those who submit, wait and look; no user's value is decoded."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from lakeshore.planes import protocol
from lakeshore.planes.contract import Submission
from lakeshore.planes.protocol import field
from lakeshore.server.answers import Refusal, in_json
from lakeshore.server.serving import EVERYONE, PRODUCERS, WORKERS, Call, Serving, revoked
from lakeshore.states import TERMINAL, State

_LIST_LIMIT: Final = 10_000
_ITEMS_LIMIT: Final = 100_000


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    rooms = Producing(serving)
    made = serving.route
    return [
        made(protocol.SUBMIT, rooms.submit, PRODUCERS, most=None),
        made(protocol.AWAIT, rooms.wait, EVERYONE),
        made(protocol.SUBMIT_MANY, rooms.submit_many, PRODUCERS, most=None),
        made(protocol.GET, rooms.get, EVERYONE),
        made(protocol.ENVELOPE, rooms.envelope, EVERYONE),
        made(protocol.INVOCATIONS, rooms.invocations, EVERYONE),
        made(protocol.QUEUES, rooms.queues, EVERYONE),
        made(protocol.COUNT, rooms.count, EVERYONE),
        made(protocol.WORKERS, rooms.workers, EVERYONE),
        made(protocol.CANCEL, rooms.cancel, PRODUCERS),
        made(protocol.REQUEUE, rooms.requeue, PRODUCERS),
        made(protocol.TRIM, rooms.trim, PRODUCERS),
        made(protocol.PRUNE, rooms.prune, PRODUCERS | WORKERS),
    ]


class Producing:
    """What each route does, over the namespace of its call."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def submit(self, call: Call) -> dict[str, Any]:
        """Queue one job."""
        queue, item = protocol.read_submission(call.body)
        return {"invocation_id": await self._serving.write(self._submit, call, queue, item)}

    def _submit(self, call: Call, queue: str, item: Submission) -> str:
        said = protocol.read_said(call.body)
        plane = self._serving.plane(call.ns)
        if said is not None:
            return plane.submit_saying(queue, item, said)
        return plane.submit(
            queue,
            item.envelope,
            id=item.id,
            key=item.key,
            priority=item.priority,
            parent=item.parent,
            delay=item.delay,
        )

    async def submit_many(self, call: Call) -> dict[str, Any]:
        """Queue many jobs in one transaction."""
        queue = field(call.body, "queue", str)
        bodies: list[Any] = field(call.body, "items", list)
        if len(bodies) > _ITEMS_LIMIT:
            raise ValueError(
                f"items: wants at most {_ITEMS_LIMIT:,}, got {len(bodies):,}. Send them in parts."
            )
        items = []
        for n, body in enumerate(bodies):
            if not isinstance(body, dict):
                raise ValueError(f"items[{n}]: wants a map, got {type(body).__name__}")
            try:
                items.append(protocol.read_submission({"queue": queue, **body})[1])
            except ValueError as exc:
                raise ValueError(f"items[{n}].{exc}") from None
        ids = await self._serving.write(self._serving.plane(call.ns).submit_many, queue, items)
        return {"invocation_ids": ids}

    async def wait(self, call: Call) -> dict[str, Any]:
        """Answer how a job stands, once it has ended or the hold is over."""
        serving, plane = self._serving, self._serving.plane(call.ns)
        id = field(call.body, "invocation_id", str)
        hold = held(serving, call)
        row = await serving.read(plane.get, id)
        if row is None or row["state"] in TERMINAL or hold <= 0 or serving.draining:
            return protocol.outcome_body(row)
        loop = asyncio.get_running_loop()
        end = loop.time() + hold
        async with serving.listening(call, plane.end_topic(id), lambda: plane.is_ended(id)) as (ear, gone):
            while True:
                ear.clear()
                row = await serving.read(plane.get, id)
                ended = row is None or row["state"] in TERMINAL
                if ended and not await serving.still_good(call):
                    raise revoked()
                if ended or gone.done() or serving.draining:
                    return protocol.outcome_body(row)
                if not await ear.wait(end - loop.time()):
                    return protocol.outcome_body(row)

    async def get(self, call: Call) -> dict[str, Any]:
        """Answer with a row, without its envelope."""
        row = await self._serving.read(self._serving.plane(call.ns).get, call.names["id"])
        return found(row, call.names["id"])

    async def envelope(self, call: Call) -> dict[str, Any]:
        """Answer with what was submitted, verbatim."""
        data = await self._serving.read(self._serving.plane(call.ns).envelope, call.names["id"])
        return found(None if data is None else {"envelope": data}, call.names["id"])

    async def invocations(self, call: Call) -> dict[str, Any]:
        """List rows, newest first."""
        limit = call.whole("limit", 100)
        rows = await self._serving.read(
            self._serving.plane(call.ns).invocations,
            call.query("queue"),
            state=call.query("state"),
            limit=min(limit, _LIST_LIMIT),
            before=call.query("before"),
        )
        return {"invocations": rows}

    async def queues(self, call: Call) -> dict[str, Any]:
        """Count the rows of every queue by state."""
        return {"queues": await self._serving.read(self._serving.plane(call.ns).queues)}

    async def count(self, call: Call) -> dict[str, Any] | Response:
        """Count a queue's rows in one state; in JSON for scalers, which read nothing else."""
        state, form = call.query("state", State.QUEUED), call.query("format", "msgpack")
        assert state is not None
        if form not in ("msgpack", "json"):
            raise ValueError(f"format: wants msgpack or json, got {form!r:.40}")
        plane = self._serving.plane(call.ns)
        found = {"count": await self._serving.read(plane.count, call.names["queue"], state)}
        return in_json(found) if form == "json" else found

    async def workers(self, call: Call) -> dict[str, Any]:
        """List the workers that asked for jobs."""
        return {
            "workers": await self._serving.read(self._serving.plane(call.ns).workers, call.query("queue"))
        }

    async def cancel(self, call: Call) -> dict[str, Any]:
        """End a queued or running job as cancelled."""
        return {"ok": await self._serving.write(self._serving.plane(call.ns).cancel, call.names["id"])}

    async def requeue(self, call: Call) -> dict[str, Any]:
        """Queue a failed or cancelled job again."""
        return {"ok": await self._serving.write(self._serving.plane(call.ns).requeue, call.names["id"])}

    async def prune(self, call: Call) -> dict[str, Any]:
        """Delete what ended long ago."""
        older_than = field(call.body, "older_than", (int, float))
        states: list[Any] = field(call.body, "states", list, sorted(TERMINAL))
        if not all(isinstance(state, str) for state in states):
            raise ValueError("states: wants a list of states' names")
        limit: int | None = field(call.body, "limit", int, None)
        plane = self._serving.plane(call.ns)
        count = await self._serving.write(plane.prune, older_than=older_than, states=states, limit=limit)
        return {"count": count}

    async def trim(self, call: Call) -> dict[str, Any]:
        """Drop all but the last frames of a journal."""
        keep = field(call.body, "keep_last", int, 0)
        plane = self._serving.plane(call.ns)
        return {"count": await self._serving.write(plane.journal_trim, call.names["id"], keep_last=keep)}


def found(answer: dict[str, Any] | None, id: str) -> dict[str, Any]:
    """Return an answer that there is, or raise `Refusal` (404)."""
    if answer is None:
        raise Refusal("not_found", f"no invocation {id[:140]!r} here. Check the id and the namespace.")
    return answer


def held(serving: Serving, call: Call) -> float:
    """Return the seconds for which a poll is to be held; raises `ValueError`."""
    seconds = float(field(call.body, "timeout_s", (int, float), 0.0))
    if not seconds >= 0:
        raise ValueError(f"timeout_s: wants 0 or more seconds, got {seconds}")
    return min(seconds, serving.options.hold)
