"""The file side channel: signed URLs of this server, and what they lead to.

A URL says, under the server's signature, which file may be read or written, how large it may be and until
when. It is its own proof, so whoever has it needs no token; and it opens nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lakeshore import settings
from lakeshore.errors import ClaimLost, LakeshoreError
from lakeshore.keys import check_prefix
from lakeshore.planes import protocol
from lakeshore.planes.contract import check_id, check_name
from lakeshore.planes.engine import check_whole
from lakeshore.planes.files import JOBS, job_key, job_of
from lakeshore.planes.protocol_files import (
    FILE,
    FILE_PATH,
    FOLDER,
    OBJECT_BYTES,
    PART_LIMIT,
    PRESIGN,
    digest_header,
    read_content_range,
    read_digest,
    read_range,
)
from lakeshore.planes.store_within import reserved
from lakeshore.server.answers import PROTOCOL, Refusal, in_json, refused
from lakeshore.server.filing import Filing, Place, Record, wrong_digest
from lakeshore.server.serving import EVERYONE, Call, Serving
from lakeshore.server.shelf import FULL, shelf_at
from lakeshore.server.signing import Grant, Signer
from lakeshore.states import State

KEY_BYTES: Final = 1024
_log = logging.getLogger("lakeshore.server")
_EXPIRES: Final = 900.0
_LONGEST: Final = 3600.0
"""How long a URL is good at most, seconds; who asks for more gets this."""
_ASKED: Final = 86400.0
JSON_BYTES: Final = 256 * 1024
"""The most bytes of a JSON body."""
_MEDIA: Final = frozenset({FILE, FOLDER})
_TO_DISK: Final = 256 * 1024
"""How much of a file an upload holds in memory."""


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    room = Storages(serving)
    serving.every_so_often.append(room.sweep)

    async def endpoint(request: Request) -> Response:
        request.scope["lakeshore.route"] = FILE_PATH
        try:
            return await room.answer(request)
        except (Refusal, ValueError, LakeshoreError) as exc:
            return refused(request, exc)
        except OSError as exc:
            if exc.errno not in FULL:
                raise
            _log.error("storage: %s; a file was not kept. Free space there, or prune.", exc.strerror)
            return refused(request, Refusal("storage_full", _full(exc)))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        finally:
            serving.bodies.let_go(request)

    return [
        serving.route(PRESIGN, room.presign, EVERYONE, body=False),
        Route(FILE_PATH, endpoint, methods=["GET", "PUT"]),
    ]


class Storages:
    """What each route does. What it knows stands in the store and on the shelf."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._lock = threading.Lock()
        self._opened: tuple[Signer, Filing] | None = None

    def _open(self) -> tuple[Signer, Filing]:
        """Return signer and files; every server of the store has the same. Blocks at the first use."""
        with self._lock:
            if self._opened is None:
                rows = reserved(self._serving.engine)
                told = protocol.pack({"id": secrets.token_hex(8), "secret": secrets.token_bytes(32)})
                id = rows.submit("storage", told, id=f"storage-{secrets.token_hex(8)}", key="storage")
                kept = protocol.unpack(rows.envelope(id) or told)
                place = self._serving.options.storage
                if place is None:
                    shelf = shelf_at(settings.read().home / "storage" / str(kept["id"]))
                else:
                    shelf = shelf_at(f"{place.rstrip('/')}/{kept['id']}")
                self._opened = (Signer(kept["secret"]), Filing(shelf))
            return self._opened

    def sweep(self) -> None:
        """Remove the files of jobs that were pruned, and contents that no key names. Blocks."""
        _, filing = self._open()
        for ns in self._serving.namespaces():
            look = self._serving.plane(ns).holder

            def is_gone(storage: str, key: str, look: Callable[[str], object] = look) -> bool:
                id = job_of(key) if storage == JOBS else None
                return id is not None and look(id) is None

            filing.sweep(ns, is_gone)

    async def presign(self, call: Call) -> Response:
        """Answer with a URL for one operation on one file."""
        body = await read_json(call.request, self._serving)
        storage = check_name(call.names["name"], "storage")
        key = check_key(protocol.field(body, "key", str))
        operation = protocol.field(body, "operation", str)
        if operation not in ("get", "put"):
            raise ValueError(f"operation: wants get or put, got {operation[:40]!r}")
        seconds = float(protocol.field(body, "expiresIn", (int, float), _EXPIRES))
        if not 0 < seconds <= _ASKED:
            raise ValueError(f"expiresIn: wants more than 0 and at most {_ASKED:g} seconds, got {seconds:g}")
        limit = check_whole(protocol.field(body, "sizeBytes", int, OBJECT_BYTES), "sizeBytes", 0)
        if limit > OBJECT_BYTES:
            raise Refusal("too_large", f"sizeBytes: {limit:,}, and a file may have {OBJECT_BYTES:,} bytes.")
        claim = None
        if operation == "put" and body.get("invocation_id") is not None:
            claim = check_id(protocol.field(body, "invocation_id", str)), protocol.field(body, "fence", int)
            worker: str | None = protocol.field(body, "worker_id", str, None)
            await self._serving.read(self._check_claim, call.ns, claim, worker, call)
        if operation == "put" and storage == JOBS:
            claim = await self._serving.read(self._claim_of, call, key, claim)
        signer, _ = await asyncio.to_thread(self._open)
        until = time.time() + min(seconds, _LONGEST)
        token = "" if call.token is None else call.token.digest
        signed = signer.sign(Grant(Place(call.ns, storage, key), operation, limit, until, claim, token))
        return in_json({"url": f"{_origin(call.request)}/v1/files/{signed}", "expiresAt": until})

    def _claim_of(self, call: Call, key: str, claim: tuple[str, int] | None) -> tuple[str, int] | None:
        """Return the claim under which a key of `JOBS` is written: the job's own alone. Blocks.

        A client that names no claim writes under the one that its token made; an admin needs none.
        """
        if claim is not None:
            if not key.startswith(job_key(claim[0], "")):
                raise Refusal("forbidden", f"key: {key[:80]!r} is another job's than {claim[0]!r}.")
            return claim
        if call.token is None or call.token.role == "admin":
            return None
        id = job_of(key)
        holder = None if id is None else self._serving.plane(call.ns).holder(id)
        if id is None or holder is None:
            raise Refusal(
                "forbidden",
                f"key: {key[:80]!r} is of no job that runs, and storage {JOBS!r} holds what jobs wrote. Use "
                "another storage.",
            )
        claim = id, holder.fence
        self._check_claim(call.ns, claim, None, call)
        return claim

    def _check_claim(
        self, ns: str, claim: tuple[str, int], worker: str | None = None, call: Call | None = None
    ) -> None:
        """Raise `ClaimLost` unless the claim is current, and the caller's. Blocks."""
        id, fence = claim
        holder = self._serving.plane(ns).holder(id)
        if (
            holder is None
            or holder.state != State.RUNNING
            or holder.fence != fence
            or worker not in (None, holder.worker_id)
            or (call is not None and not self._serving.is_maker(call.token, holder.row, fence))
        ):
            now = "gone" if holder is None else f"{holder.state} at fence {holder.fence}"
            raise ClaimLost(
                f"put: invocation {id!r} is not held under fence {fence} by this caller (it is {now}), so "
                "its file was not kept. Drop this result."
            )

    async def answer(self, request: Request) -> Response:
        """Serve what a signed URL leads to."""
        signer, filing = await asyncio.to_thread(self._open)
        grant = signer.read(request.path_params["signed"], time.time())
        request.scope["lakeshore.ns"] = grant.place.ns
        if grant.token:
            request.scope["lakeshore.token"] = grant.token[:12]
        await self._serving.read(self._check_token, grant)
        if request.method == "PUT":
            if grant.operation != "put":
                raise Refusal("forbidden", "the URL is for reading. Ask for another with operation put.")
            return await self._put(request, filing, grant)
        if grant.operation != "get":
            raise Refusal("forbidden", "the URL is for writing. Ask for another with operation get.")
        return await self._get(request, filing, grant.place)

    # -- reading ------------------------------------------------------------------

    async def _get(self, request: Request, filing: Filing, place: Place) -> Response:
        record = await asyncio.to_thread(filing.find, place)
        if record is None:
            raise Refusal("not_found", f"storage {place.storage!r} has no file {place.key!r}.")
        wanted = request.headers.get("if-match", "").strip().strip('"')
        headers = _headers(record)
        if wanted and wanted not in ("*", record.digest):
            return Response(status_code=412, headers=headers)
        asked = read_range(request.headers.get("range"))
        first, size, status = 0, record.size, 200
        if asked is not None:
            first = asked[0]
            if first >= record.size:
                return Response(
                    status_code=416, headers={**headers, "Content-Range": f"bytes */{record.size}"}
                )
            last = record.size - 1 if asked[1] is None else min(asked[1], record.size - 1)
            size, status = last - first + 1, 206
            headers["Content-Range"] = f"bytes {first}-{last}/{record.size}"
        headers["Content-Length"] = str(size)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        parts = _in_threads(filing.parts(place, record, first, size))
        return StreamingResponse(parts, status, headers)

    # -- writing ------------------------------------------------------------------

    async def _put(self, request: Request, filing: Filing, grant: Grant) -> Response:
        headers, place = request.headers, grant.place
        may = functools.partial(self._check, grant)
        await self._serving.read(may)
        digest = read_digest(headers.get("repr-digest"))
        media = headers.get("content-type", FILE).partition(";")[0].strip().lower()
        media = media if media in _MEDIA else FILE
        said = headers.get("content-range")
        if said is None:
            return await self._whole(request, filing, grant, digest, media, may)
        part, total = read_content_range(said)
        if total > grant.limit:
            raise _too_large(grant.limit)
        if digest is None:
            raise ValueError("Repr-Digest: is wanted with a part; it names the upload that the part is of")
        if part is not None:
            size = part[1] - part[0] + 1
            if size > PART_LIMIT:
                raise Refusal("too_large", f"a part of {size:,} bytes; send parts of {PART_LIMIT:,} at most.")
            with _scratch(filing) as (path, file):
                got, _ = await self._receive(request, file, size)
                if got != size:
                    raise ValueError(f"body: has {got:,} bytes, and the part {size:,}. Send the part again.")
                await asyncio.to_thread(_closed, file)
                await asyncio.to_thread(filing.add, place, path, part[0], size, total, digest)
        record = await asyncio.to_thread(filing.known, place, total, digest, media, may)
        if record is not None:  # a part whose first answer was lost is one, too
            return _stored(place, record)
        have = await asyncio.to_thread(filing.so_far, place, total, digest)
        if have < total:
            told = {"Range": f"bytes=0-{have - 1}"} if have else {}
            return in_json({"receivedBytes": have, "totalBytes": total}, 202, told)
        record = await asyncio.to_thread(filing.finish, place, total, digest, media, may)
        return _stored(place, record)

    def _check_token(self, grant: Grant) -> None:
        """Raise `Refusal` once the token with which a URL was asked for is not good any more. Blocks."""
        serving = self._serving
        if serving.options.auth and not (grant.token and serving.tokens.is_live(grant.token)):
            raise Refusal(
                "forbidden",
                "the token that the URL was asked for with is revoked or expired. Ask with another.",
            )

    def _check(self, grant: Grant) -> None:
        """Raise what says that a file may not be written any more: its token's end, its claim's. Blocks."""
        self._check_token(grant)
        if grant.claim is not None:
            self._check_claim(grant.place.ns, grant.claim)

    async def _whole(
        self,
        request: Request,
        filing: Filing,
        grant: Grant,
        digest: str | None,
        media: str,
        may: Callable[[], None],
    ) -> Response:
        said = request.headers.get("content-length", "")
        if said.isdigit() and int(said[:20]) > grant.limit:
            raise _too_large(grant.limit)
        with _scratch(filing) as (path, file):
            size, found = await self._receive(request, file, grant.limit)
            await asyncio.to_thread(_closed, file)
            if digest is not None and digest != found:
                raise Refusal("bad_digest", wrong_digest(found, digest))
            record = await asyncio.to_thread(filing.publish, grant.place, path, size, found, media, may)
        return _stored(grant.place, record)

    async def _receive(self, request: Request, file: IO[bytes], limit: int) -> tuple[int, str]:
        """Write a body to a file; returns its bytes and SHA-256.

        Raises
        ------
        Refusal
            When it is over the limit, or comes too slowly.
        """
        hashed, size, held = hashlib.sha256(), 0, bytearray()
        self._serving.bodies.hold(request, _TO_DISK)
        async for part in self._serving.bodies.parts(request):
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            held += part
            if len(held) >= _TO_DISK:
                await asyncio.to_thread(_write, file, hashed, bytes(held))
                held.clear()
        await asyncio.to_thread(_write, file, hashed, bytes(held))
        return size, hashed.hexdigest()


def check_key(key: str) -> str:
    """Return a storage key in its normal form, as `run.write` has them; raises `ValueError`."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES:
        raise ValueError(f"key: is longer than {KEY_BYTES} bytes")
    if not key:
        raise ValueError("key: is empty")
    problem = ""
    try:
        return check_prefix(key)
    except LakeshoreError as exc:
        problem = str(exc)
    raise ValueError(problem.replace("prefix", "key", 1))


async def read_json(request: Request, serving: Serving) -> Mapping[str, Any]:
    """Return a JSON object that a client sent; raises `ValueError` for any other body."""
    data = await serving.bodies.read(request, JSON_BYTES)
    try:
        body = json.loads(data, parse_float=_number)
    except (ValueError, RecursionError):
        raise ValueError("body: wants a JSON object") from None
    if not isinstance(body, dict):
        raise ValueError(f"body: wants a JSON object, got {type(body).__name__}")
    return body


def _number(text: str) -> float:
    """Return a number of JSON, where 1.0 and 1e0 are whole numbers, too."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _origin(request: Request) -> str:
    """Return scheme and host as the client sees them; a proxy that ends TLS tells the scheme."""
    said = request.headers.get("x-forwarded-proto", "").strip().lower()
    scheme = said if said in ("http", "https") else request.scope["scheme"]
    return f"{scheme}://{request.headers['host']}"


def _headers(record: Record) -> dict[str, str]:
    return {
        **PROTOCOL,
        "Content-Type": record.media,
        "ETag": f'"{record.digest}"',
        "Repr-Digest": digest_header(record.digest),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-store",
        # a user's file comes from this origin, and must never run in it
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }


def _full(exc: OSError) -> str:
    return (
        f"the control plane's storage is full ({exc.strerror}), so the file was not kept. Free space or "
        "remove what is old with prune, then send it again."
    )


def _stored(place: Place, record: Record) -> Response:
    told = {"key": place.key, "sizeBytes": record.size, "digest": f"sha256:{record.digest}"}
    return in_json(told, 200, {"Repr-Digest": digest_header(record.digest), "ETag": f'"{record.digest}"'})


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"the file is over the limit of {limit:,} bytes that its URL allows.")


@contextlib.contextmanager
def _scratch(filing: Filing) -> Iterator[tuple[Path, IO[bytes]]]:
    with filing.shelf.scratch() as path, path.open("wb") as file:
        yield path, file


def _write(file: IO[bytes], hashed: Any, data: bytes) -> None:
    hashed.update(data)
    file.write(data)


def _closed(file: IO[bytes]) -> None:
    file.close()


async def _in_threads(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    try:
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # a thread reads on; it ends with its part
                close()
