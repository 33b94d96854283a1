"""A control plane as one stands in the field: its routes alone, no header of ours, 404 for the rest."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Any
from urllib.parse import unquote

import msgpack
from unit.planes_http.loopback import Loopback, Request

from lakeshore import wire
from lakeshore.planes.protocol import FRAMES

_OPEN = ("pending", "running")


def frame(seq: int, body: Any, kind: int = 0) -> bytes:
    return msgpack.packb([kind, seq, body, None])


class Field(Loopback):
    """Rows in memory; every hold is at most a few hundred milliseconds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.chunks: dict[str, dict[int, bytes]] = {}
        self.queue: deque[str] = deque()
        super().__init__(*args, **options)

    def done(self, id: str, value: Any) -> None:
        self.rows[id] = {"state": "succeeded", "result_blob": wire.pack(value)}

    def hold(self, id: str, seconds: float) -> None:
        end = time.monotonic() + min(seconds, 0.2)
        while self.rows.get(id, {}).get("state") in _OPEN and time.monotonic() < end:
            self.stopping.wait(0.01)

    def serve(self, request: Request) -> None:
        body, path = request.body, request.path
        id = body.get("invocation_id") if isinstance(body, dict) else None
        if re.fullmatch(r"/v1/namespaces/[^/]+/producer/submit", path):
            if id not in self.rows:
                self.rows[id] = {"state": "pending", "envelope": body["args_blob"], "attempt": 0}
                self.queue.append(id)
            request.send({"invocation_id": id})
        elif re.fullmatch(r"/v1/namespaces/[^/]+/producer/await", path):
            self.hold(id, body["timeout_s"])
            row = self.rows.get(id, {"state": None})
            shown = {name: row[name] for name in ("state", "result_blob", "error") if name in row}
            request.send(shown)
        elif match := re.fullmatch(r"/v1/namespaces/[^/]+/producer/invocations/([^/]+)/result/stream", path):
            self.stream(request, unquote(match[1]))
        elif path == "/v1/daemon/poll":
            self.poll(request)
        elif path == "/v1/daemon/ack":
            self.ack(request, id)
        elif path == "/v1/daemon/result-chunk":
            if not isinstance(body.get("seq"), int):
                request.reply(400, b"seq: wants an integer")
                return
            known = self.chunks.setdefault(id, {})
            duplicate = body["seq"] in known
            known.setdefault(body["seq"], body["bytes"])
            request.send({"seq": body["seq"], "duplicate": duplicate})
        else:
            request.reply(404, b"no such route")

    def stream(self, request: Request, id: str) -> None:
        since = int(request.query["since"])
        request.start(FRAMES)
        self.hold(id, 0.05)
        for seq, data in sorted(self.chunks.get(id, {}).items()):
            if seq > since:
                request.chunk(wire.reseq(data, seq))
        request.finish()

    def poll(self, request: Request) -> None:
        if not self.queue:
            self.stopping.wait(min(request.body["timeout_s"], 0.05))
            request.send({"commands": []})
            return
        id = self.queue.popleft()
        row = self.rows[id]
        row["state"], row["attempt"] = "running", row["attempt"] + 1
        body = {"invocation_id": id, "args_blob": row["envelope"], "attempt": row["attempt"]}
        request.send({"commands": [{"kind": "run", "body": body}]})

    def ack(self, request: Request, id: str) -> None:
        row = self.rows.get(id, {})
        if row.get("state") != "running":
            request.reply(409, b"not running")
            return
        body = request.body
        if body["state"] == "failed" and body["error"]["retry"]:
            row["state"] = "pending"
            self.queue.append(id)
        else:
            row.update(state=body["state"], result_blob=body.get("result_blob"), error=body.get("error"))
        request.send({"ok": True})
