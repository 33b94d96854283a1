"""Which code is stored already: rows by remote and commit, in the store that all servers share."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from lakeshore.codebase.git import clean_url
from lakeshore.errors import WaitTimeout
from lakeshore.planes.engine import check_whole
from lakeshore.planes.protocol import field
from lakeshore.planes.protocol_files import LOOKUP, REGISTER
from lakeshore.planes.store_within import Within, reserved
from lakeshore.server.answers import Refusal, in_json
from lakeshore.server.serving import EVERYONE, PRODUCERS, Call, Serving
from lakeshore.server.storages import check_key, read_json

_QUEUE: Final = "code-repos"
LINE_BYTES: Final = 2048
"""The most bytes of a text of a row."""
_SUBMODULES_BYTES: Final = 64 * 1024


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    room = CodeRepos(serving)
    return [
        serving.route(LOOKUP, room.lookup, EVERYONE),
        serving.route(REGISTER, room.register, PRODUCERS, body=False),
    ]


class CodeRepos:
    """What each route does."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._rows = reserved(serving.engine)

    async def lookup(self, call: Call) -> Response:
        """Answer with the row of a commit."""
        remote, commit = _remote(call.query("remote")), _text("commit", call.query("commit"))
        row = await self._serving.read(_find, self._rows, _id(call.ns, remote, commit))
        if row is None:
            raise Refusal("not_found", "no code of this remote and commit is stored. Register it.")
        return in_json(row)

    async def register(self, call: Call) -> Response:
        """Keep a row; a later one of the same remote and commit takes its place."""
        body = await read_json(call.request, self._serving)
        row: dict[str, Any] = {
            "remote": _remote(field(body, "remote", str)),
            "commit": _text("commit", field(body, "commit", str)),
            "branch": field(body, "branch", str, None),
            "backend": _text("backend", field(body, "backend", str, "git")),
            "archiveKey": check_key(field(body, "archiveKey", str)),
            "storageName": _text("storageName", field(body, "storageName", str, "code")),
            "sizeBytes": check_whole(field(body, "sizeBytes", int, 0), "sizeBytes", 0),
            "submodules": field(body, "submodules", (list, dict), []),
            "dirty": field(body, "dirty", bool, False),
        }
        if row["sizeBytes"] >= 2**63:
            raise ValueError("sizeBytes: is more than any file has")
        if row["branch"] is not None:
            _text("branch", row["branch"])
        if len(json.dumps(row["submodules"])) > _SUBMODULES_BYTES:
            raise ValueError(f"submodules: wants at most {_SUBMODULES_BYTES:,} bytes")
        await self._serving.write(_keep, self._rows, _id(call.ns, row["remote"], row["commit"]), row)
        return in_json(row)


def _remote(value: str | None) -> str:
    remote = clean_url(_text("remote", value))
    if not remote:
        raise ValueError("remote: wants the URL of a repository, or a word for it")
    return remote


def _text(name: str, value: str | None) -> str:
    if not value or len(value.encode("utf-8", "surrogatepass")) > LINE_BYTES or not value.isprintable():
        raise ValueError(f"{name}: wants a text of 1 to {LINE_BYTES} printable bytes")
    return value


def _id(ns: str, remote: str, commit: str) -> str:
    told = "\0".join(f"{len(each)}:{each}" for each in (ns, remote, commit))
    return "code-" + hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _find(rows: Within, id: str) -> dict[str, Any] | None:
    """Return the last row that was kept under an id: in its journal, since a row's envelope stays."""
    last = rows.envelope(id)
    if last is None:
        return None
    try:
        for _, data in rows.journal_read(id, timeout=0):
            last = data
    except WaitTimeout:
        pass  # that was all there is
    found: dict[str, Any] = json.loads(last)
    return found


def _keep(rows: Within, id: str, row: dict[str, Any]) -> None:
    told = json.dumps(row).encode()
    if _find(rows, id) == row:
        return
    if rows.envelope(id) is None:
        rows.submit(_QUEUE, told, id=id, key=id)
        if _find(rows, id) == row:
            return
    rows.journal_append(id, None, told)
    rows.journal_trim(id, keep_last=1)
