"""The routes of workers: claim, keep, report, end; ours and those in the field, who tell less.

What a client in the field does not say is looked up: who it is, by the token of the claim; its lease, by
`Options.field_lease`; where its frames begin, by the attempt; whether its ERROR is the last, by its ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import Route

from lakeshore.errors import ClaimLost
from lakeshore.planes import protocol
from lakeshore.planes.contract import Claimed, ClaimSpec, check_id, check_name, check_span
from lakeshore.planes.protocol import field
from lakeshore.planes.store_within import Holder, Once, Presence, Within, check_journal, stem_of
from lakeshore.server.answers import Refusal
from lakeshore.server.producing import held
from lakeshore.server.serving import EVERYONE, WORKERS, Call, Serving, revoked
from lakeshore.states import State
from lakeshore.wire import FrameKind

_Handed = tuple[Claimed, dict[str, Any]]
_MOST_CLAIMED: Final = 1000
_ERROR: Final = b"\x94" + bytes((FrameKind.ERROR,))


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    room = Working(serving)
    made = serving.route
    return [
        made(protocol.POLL, room.poll, WORKERS),
        made(protocol.ACK, room.end, WORKERS, most=None),
        made(protocol.CHUNK, room.chunk, EVERYONE, most=None),
        made(protocol.HEARTBEAT, room.heartbeat, WORKERS),
        made(protocol.RELEASE, room.release, WORKERS),
    ]


class Working:
    """What each route does, over the namespace of its call."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    # -- claims ------------------------------------------------------------------

    async def poll(self, call: Call) -> dict[str, Any]:
        """Hand out jobs, waiting for one as long as the client asks."""
        serving, body = self._serving, call.body
        spec = protocol.read_spec(body, serving.options.field_lease)
        worker = check_name(field(body, "worker_id", str), "worker_id")
        n = field(body, "capacity", int, 1)
        if not 1 <= n <= _MOST_CLAIMED:
            raise ValueError(f"capacity: wants 1 to {_MOST_CLAIMED:,}, got {n}")
        hold = held(serving, call)
        plane = serving.plane(call.ns, _presence(call), call.token)

        async def take() -> list[_Handed]:
            return await serving.write(self._take, plane, spec, worker, n, call)

        if serving.draining:
            return {"commands": []}
        taken = await take()
        if not taken and hold > 0:
            topic = plane.queue_topic(spec.queue)
            loop = asyncio.get_running_loop()
            end = loop.time() + hold

            def peek() -> bool:
                return plane.seconds_until_due(spec.queue) <= 0

            async with serving.listening(call, topic, peek, one=True) as (ear, gone):
                while not (gone.done() or serving.draining):
                    ear.clear()
                    due = await serving.read(plane.seconds_until_due, spec.queue)
                    if due <= 0 and not await serving.still_good(call):
                        serving.hearing.pass_on(topic)  # the job is another's to take
                        raise revoked()
                    taken = await take() if due <= 0 and not gone.done() else []
                    if taken:
                        serving.hearing.pass_on(topic)  # there may be more
                        break
                    left = end - loop.time()
                    if left <= 0:
                        break
                    await ear.wait(min(left, due) if 0 < due < 1 else left)
                if taken and gone.done():  # whoever asked is away: nobody else need wait for the lease
                    for claimed, _ in taken:
                        await serving.write(plane.release, claimed.id, worker, fence=claimed.fence)
                    taken = []
        return {"commands": [command for _, command in taken]}

    def _take(self, plane: Within, spec: ClaimSpec, worker: str, n: int, call: Call) -> list[_Handed]:
        once = _once(call.body)
        if once is None:
            taken = plane.claim_many(
                spec.queue, worker, n, kind=spec.kind, temperature=spec.temperature, lease=spec.lease
            )
        else:
            taken = plane.claim_once(spec, worker, n, once)
        return [self._hand(call, claimed) for claimed in taken]

    def _hand(self, call: Call, claimed: Claimed) -> _Handed:
        """Return a claim as the client is told of it."""
        plane = self._serving.plane(call.ns)
        row = plane.row_of(claimed.id)
        told = protocol.command(claimed, None if row is None else self._serving.notes.submission(row))
        if claimed.fence > 1:  # a worker's first frame, repeated, is known by its seq
            told["body"]["next_seqs"] = plane.next_seqs(claimed.id)
        return claimed, told

    def _hold_of(self, call: Call, plane: Within, id: str, verb: str) -> tuple[str, int | None, int]:
        """Return the worker and fence under which a call reports, and the row it is about; in a thread.

        A client in the field names neither: it reports for the claim that its token made.

        Raises
        ------
        ClaimLost
            When the claim is not, or not by what the caller knows, its own.
        """
        worker, fence = _guard(call.body)
        holder = plane.holder(check_id(id))
        if holder is None:
            raise ClaimLost(f"{verb}: there is no invocation {id!r} here. Drop this result.")
        if worker is not None:
            asked = holder.fence if fence is None else fence
            if not self._is_maker(call, holder.row, asked):
                raise _lost(verb, id, holder)
            return worker, fence, holder.row
        if fence not in (None, holder.fence) or not self._is_maker(call, holder.row, holder.fence):
            raise _lost(verb, id, holder)
        return holder.worker_id or "-", holder.fence, holder.row

    def _is_maker(self, call: Call, row: int, fence: int) -> bool:
        return self._serving.is_maker(call.token, row, fence)

    async def heartbeat(self, call: Call) -> dict[str, Any]:
        """Extend a lease."""
        id = field(call.body, "invocation_id", str)
        lease = check_span(field(call.body, "lease", (int, float), 30.0), "lease")
        plane = self._serving.plane(call.ns)

        def keep() -> None:
            worker, fence, _ = self._hold_of(call, plane, id, "heartbeat")
            plane.heartbeat(id, worker, lease=lease, fence=fence)

        await self._serving.write(keep)
        return {"ok": True}

    async def release(self, call: Call) -> dict[str, Any]:
        """Take a job back unharmed."""
        id = field(call.body, "invocation_id", str)
        plane = self._serving.plane(call.ns)

        def hand_back() -> None:
            worker, fence, _ = self._hold_of(call, plane, id, "release")
            plane.release(id, worker, fence=fence)

        await self._serving.write(hand_back)
        return {"ok": True}

    # -- endings -----------------------------------------------------------------

    async def end(self, call: Call) -> dict[str, Any]:
        """End a job, and hand out the next one in the same commit where the client asks for it."""
        body = call.body
        id = field(body, "invocation_id", str)
        state = field(body, "state", str)
        if state not in (State.SUCCEEDED, State.FAILED):
            raise ValueError(f"state: wants succeeded or failed, got {state[:40]!r}")
        asked: dict[str, Any] | None = field(body, "next", dict, None)
        spec = None if asked is None else protocol.read_spec(asked, self._serving.options.field_lease)
        frame: bytes | None = field(body, "frame", bytes, None)
        plane = self._serving.plane(call.ns, _presence(call), call.token)
        ending = self._succeed if state == State.SUCCEEDED else self._fail
        following = await self._serving.write(ending, call, plane, id, frame, spec)
        return {"ok": True, "commands": [] if following is None else [following[1]]}

    def _succeed(
        self, call: Call, plane: Within, id: str, frame: bytes | None, spec: ClaimSpec | None
    ) -> _Handed | None:
        result: bytes | None = field(call.body, "result_blob", bytes, None)
        try:
            worker, fence, _ = self._hold_of(call, plane, id, "ack")
            following = plane.ack(id, worker, result=result, fence=fence, frame=frame, next=spec)
        except ClaimLost:
            if _guard(call.body) == (None, None) and self._had_landed(call, plane, id, result):
                return None
            raise
        return None if following is None else self._hand(call, following)

    def _fail(
        self, call: Call, plane: Within, id: str, frame: bytes | None, spec: ClaimSpec | None
    ) -> _Handed | None:
        error, retry = protocol.read_nack(call.body)
        delay = check_span(field(call.body, "delay", (int, float), 0.0), "delay")
        worker, fence, row = self._hold_of(call, plane, id, "nack")
        if frame is None and not retry and _guard(call.body)[1] is None and fence is not None:
            frame = self._serving.notes.held(row, fence)
        following = plane.nack(
            id, worker, error=error, retry=retry, delay=delay, fence=fence, frame=frame, next=spec
        )
        return None if following is None else self._hand(call, following)

    def _had_landed(self, call: Call, plane: Within, id: str, result: bytes | None) -> bool:
        """Whether an ending that names no claim is the repeat of the one that made the row what it is."""
        ended, row = plane.get(id), plane.row_of(id)
        return (
            ended is not None
            and row is not None
            and ended["state"] == State.SUCCEEDED
            and (ended["result"] or b"") == (result or b"")
            and self._is_maker(call, row, ended["fence"])
        )

    # -- frames ------------------------------------------------------------------

    async def chunk(self, call: Call) -> dict[str, Any]:
        """Append frames to a job's journal, or to a topic's."""
        body = call.body
        journal = check_journal(field(body, "invocation_id", str))
        frames = _frames(body)
        plane = self._serving.plane(call.ns)
        seq, duplicate = await self._serving.write(self._append, call, plane, journal, frames)
        return {"seq": seq, "duplicate": duplicate}

    def _append(
        self, call: Call, plane: Within, journal: str, frames: list[tuple[int | None, bytes, bool]]
    ) -> tuple[int, bool]:
        stem = stem_of(journal)
        holder = None if stem is None else plane.holder(stem)
        if stem is None or holder is None:
            worker, fence = _guard(call.body)
            if stem is None and (worker, fence) != (None, None):
                raise ClaimLost(f"result-chunk: no invocation is named {journal!r}. Drop this frame.")
            return plane.journal_put(journal, frames, worker_id=worker, fence=fence, once=_once(call.body))
        token = call.token
        if token is not None and token.role not in WORKERS:
            raise Refusal("forbidden", f"a {token.role} token may not append to a job's journal.")
        worker, fence, row = self._hold_of(call, plane, stem, "result-chunk")
        if _is_ours(call.body):
            return plane.journal_put(journal, frames, worker_id=worker, fence=fence, once=_once(call.body))
        lease = self._serving.options.field_lease
        guard: dict[str, Any] = {"worker_id": worker, "fence": fence, "in_attempt": True, "lease": lease}
        seq, data, final = frames[-1]
        if final and data.startswith(_ERROR) and journal == stem and holder.state == State.RUNNING:
            # The nack that follows says whether the job is tried again; until then no reader may see it.
            plane.journal_put(journal, frames[:-1], **guard)
            self._serving.notes.hold(row, holder.fence, data)
            return (0 if seq is None else seq), False
        return plane.journal_put(journal, frames, **guard)


def _guard(body: Mapping[str, Any]) -> tuple[str | None, int | None]:
    worker: str | None = field(body, "worker_id", str, None)
    fence: int | None = field(body, "fence", int, None)
    return (None if worker is None else check_name(worker, "worker_id")), fence


def _once(body: Mapping[str, Any]) -> Once | None:
    """Return which call this is, where the client can say."""
    nonce: bytes | None = field(body, "nonce", bytes, None)
    if nonce is None:
        return None
    if len(nonce) != protocol.NONCE_BYTES:
        raise ValueError(f"nonce: wants {protocol.NONCE_BYTES} bytes, got {len(nonce)}")
    return Once(nonce, field(body, "again", bool, False))


def _is_ours(body: Mapping[str, Any]) -> bool:
    """Whether seqs are the journal's own; clients in the field count within their attempt."""
    return body.get("fence") is not None or "namespace" in body


def _frames(body: Mapping[str, Any]) -> list[tuple[int | None, bytes, bool]]:
    """Read the frames of a chunk; raises `ValueError` naming the field."""
    many: list[Any] | None = field(body, "frames", list, None)
    if many is None:
        seq: int | None = field(body, "seq", int, None)
        return [(seq, field(body, "bytes", bytes), field(body, "final", bool, False))]
    frames: list[tuple[int | None, bytes, bool]] = []
    for n, each in enumerate(many):
        if not isinstance(each, list) or len(each) != 3:
            raise ValueError(f"frames[{n}]: wants a list of seq, bytes, final")
        told = dict(zip(("seq", "bytes", "final"), each, strict=True))
        try:
            frames.append(
                (
                    field(told, "seq", int, None),
                    field(told, "bytes", bytes),
                    field(told, "final", bool, False),
                )
            )
        except ValueError as exc:
            raise ValueError(f"frames[{n}].{exc}") from None
    if not frames:
        raise ValueError("frames: wants one at least")
    return frames


def _presence(call: Call) -> Presence:
    """Return who claims, as it says; where it does not, from where."""
    client = call.request.client
    told: dict[str, Any] = field(call.body, "worker", dict, {})
    host: str = field(told, "host", str, "") or (client.host if client else "")
    pid: int = field(told, "pid", int, 0)
    return Presence(host[:255], pid if 0 <= pid < 2**31 else 0, field(told, "version", str, "")[:40])


def _lost(verb: str, id: str, holder: Holder) -> ClaimLost:
    now = f"it is {holder.state}"
    if holder.state == State.RUNNING:
        now = f"attempt {holder.attempt} runs under a claim that is not this caller's"
    return ClaimLost(f"{verb}: invocation {id!r} is not held by this caller ({now}). Drop this result.")
