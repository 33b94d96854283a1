"""Our routes over a real plane: as much of a control plane as the client's verbs need, for tests alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from unit.planes_http.loopback import Loopback, Request

from lakeshore import Dispatch, WaitTimeout
from lakeshore.planes import protocol
from lakeshore.planes.contract import Claimed
from lakeshore.planes.protocol import FINISHED, HEADER, KEEPALIVE, ROWS, VERSION, Route, field
from lakeshore.states import TERMINAL

OURS = {HEADER: VERSION}
KEEPALIVE_SECONDS = 0.2


class Ours(Loopback):
    """Serves `plane`; `rows=False` answers streams with frames, as to a client in the field."""

    def __init__(self, plane: Dispatch | None = None, *, host: str = "127.0.0.1") -> None:
        self.plane = Dispatch(":memory:") if plane is None else plane
        self.rows = True
        self.routes: list[tuple[Route, Callable[..., Mapping[str, Any] | None]]] = [
            (protocol.SUBMIT, self.submit),
            (protocol.SUBMIT_MANY, self.submit_many),
            (protocol.AWAIT, self.wait),
            (protocol.GET, lambda r, id: self.plane.get(id)),
            (protocol.ENVELOPE, self.envelope),
            (protocol.INVOCATIONS, self.invocations),
            (protocol.QUEUES, lambda r: {"queues": self.plane.queues()}),
            (protocol.COUNT, lambda r, queue: {"count": self.plane.count(queue, r.query["state"])}),
            (protocol.WORKERS, lambda r: {"workers": self.plane.workers(r.query.get("queue"))}),
            (protocol.CANCEL, lambda r, id: {"ok": self.plane.cancel(id)}),
            (protocol.REQUEUE, lambda r, id: {"ok": self.plane.requeue(id)}),
            (protocol.PRUNE, lambda r: {"count": self.plane.prune(**r.body)}),
            (protocol.TRIM, lambda r, id: {"count": self.plane.journal_trim(id, **r.body)}),
            (protocol.POLL, self.poll),
            (protocol.ACK, self.ack),
            (protocol.CHUNK, self.chunk),
            (protocol.HEARTBEAT, self.heartbeat),
            (protocol.RELEASE, self.release),
        ]
        super().__init__(host=host)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.plane.close()

    def serve(self, request: Request) -> None:
        try:
            for route, serve in [(protocol.STREAM, self.stream), *self.routes]:
                pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.template))
                match = re.fullmatch(pattern, request.path)
                if match and route.method == request.method:
                    names = {name: unquote(value) for name, value in match.groupdict().items()}
                    names.pop("ns", None)
                    answer = serve(request, **names)
                    if route is protocol.STREAM:
                        return
                    if answer is None:
                        self.refuse(request, 404, {"error": {"code": "not_found", "message": "unknown id"}})
                    else:
                        request.send(answer, OURS)
                    return
        except (ValueError, RuntimeError) as exc:
            self.refuse(request, *protocol.error_answer(exc))
            return
        self.refuse(request, 404, {"error": {"code": "not_found", "message": "no such route"}})

    def refuse(self, request: Request, status: int, body: Mapping[str, Any]) -> None:
        request.reply(status, protocol.pack(body), {**OURS, "content-type": protocol.MSGPACK})

    # -- producers

    def submit(self, request: Request) -> dict[str, Any]:
        queue, item = protocol.read_submission(request.body)
        id = self.plane.submit(
            queue,
            item.envelope,
            id=item.id,
            key=item.key,
            priority=item.priority,
            parent=item.parent,
            delay=item.delay,
        )
        return {"invocation_id": id}

    def submit_many(self, request: Request) -> dict[str, Any]:
        items = [protocol.read_submission(item)[1] for item in request.body["items"]]
        return {"invocation_ids": self.plane.submit_many(request.body["queue"], items)}

    def wait(self, request: Request) -> dict[str, Any]:
        id, end = request.body["invocation_id"], time.monotonic() + request.body["timeout_s"]
        row = self.plane.get(id)
        while row and row["state"] not in TERMINAL and time.monotonic() < end and not self.stopping.is_set():
            try:
                self.plane.result(id, timeout=min(0.1, max(0.0, end - time.monotonic())))
            except (WaitTimeout, RuntimeError):
                pass
            row = self.plane.get(id)
        return protocol.outcome_body(row)

    def envelope(self, request: Request, id: str) -> dict[str, Any] | None:
        data = self.plane.envelope(id)
        return None if data is None else {"envelope": data}

    def invocations(self, request: Request) -> dict[str, Any]:
        query = {**request.query, "limit": int(request.query["limit"])}
        return {"invocations": self.plane.invocations(**query)}

    def stream(self, request: Request, id: str) -> None:
        since = int(request.query["since"])
        rows = self.rows and ROWS in request.headers["accept"]
        headers = dict(OURS)
        try:
            there = list(self.plane.journal_read(id, since=since, timeout=0))
            headers[FINISHED] = "1"
        except WaitTimeout:
            there = []
        request.start(ROWS if rows else protocol.FRAMES, headers)
        cursor, silence = since, 0.0 if request.query.get("wait") == "0" else KEEPALIVE_SECONDS
        while not self.stopping.is_set():
            fresh = self.plane.journal_read(id, since=cursor, timeout=silence)
            try:
                for seq, data in there or fresh:
                    cursor = seq
                    item = protocol.row_item(seq, data) if rows else protocol.frame_item(seq, data)
                    request.chunk(item or b"")
                break
            except WaitTimeout:
                if silence == 0:
                    break
                request.chunk(KEEPALIVE if rows else b"")
        request.finish()

    # -- workers

    def poll(self, request: Request) -> dict[str, Any]:
        spec = protocol.read_spec(request.body, 6 * 3600.0)
        taken = self.plane.claim_many(
            spec.queue,
            field(request.body, "worker_id", str),
            field(request.body, "capacity", int, 1),
            kind=spec.kind,
            temperature=spec.temperature,
            lease=spec.lease,
            wait=field(request.body, "timeout_s", (int, float), 0.0),
        )
        return {"commands": [protocol.command(claimed) for claimed in taken]}

    def ack(self, request: Request) -> dict[str, Any]:
        body = request.body
        asked = body.get("next")
        how: dict[str, Any] = {
            "fence": body.get("fence"),
            "frame": body.get("frame"),
            "next": asked and protocol.read_spec(asked, 30.0),
        }
        id, worker = body["invocation_id"], body["worker_id"]
        following: Claimed | None
        if body["state"] == "succeeded":
            following = self.plane.ack(id, worker, result=body.get("result_blob"), **how)
        else:
            error, retry = protocol.read_nack(body)
            following = self.plane.nack(
                id, worker, error=error, retry=retry, delay=body.get("delay", 0.0), **how
            )
        return {"ok": True, "commands": [protocol.command(following)] if following else []}

    def chunk(self, request: Request) -> dict[str, Any]:
        body = request.body
        id = field(body, "invocation_id", str)
        guard = {"worker_id": body.get("worker_id"), "fence": body.get("fence")}
        frames = body.get("frames") or [[body["seq"], body["bytes"], body["final"]]]
        if len(frames) > 1 and all(seq is None for seq, _, _ in frames):
            last = self.plane.journal_extend(id, [data for _, data, _ in frames], **guard)
        else:
            for seq, data, final in frames:
                last = self.plane.journal_append(id, seq, data, final=final, **guard)
        return {"seq": last, "duplicate": False}

    def heartbeat(self, request: Request) -> dict[str, Any]:
        body = request.body
        self.plane.heartbeat(
            body["invocation_id"], body["worker_id"], lease=body["lease"], fence=body["fence"]
        )
        return {"ok": True}

    def release(self, request: Request) -> dict[str, Any]:
        body = request.body
        self.plane.release(body["invocation_id"], body["worker_id"], fence=body["fence"])
        return {"ok": True}
