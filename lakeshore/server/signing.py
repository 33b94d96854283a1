"""Signed URLs of the file side channel: what one allows, and the segment that says so and proves it."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass

from lakeshore.server.answers import Refusal
from lakeshore.server.filing import Place


@dataclass(frozen=True, slots=True)
class Grant:
    """What a signed URL allows: one operation on one file, up to a size, until a time (Unix seconds).

    It is good while the `token` is (its digest) with which it was asked for; "" for a caller without. With a
    `claim` (invocation and fence) it is good while that claim is: a worker that lost its job keeps no URL to
    write over what the next one wrote.
    """

    place: Place
    operation: str
    limit: int
    until: float
    claim: tuple[str, int] | None = None
    token: str = ""


class Signer:
    """Makes and reads the one segment of a signed URL."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, grant: Grant) -> str:
        """Return the segment for a grant."""
        place = grant.place
        told = [place.ns, place.storage, place.key, grant.operation, grant.limit, grant.until, grant.token]
        told += grant.claim or ()
        body = json.dumps(told, separators=(",", ":")).encode()
        return f"{_text(body)}.{_text(self._mac(body))}"

    def read(self, signed: str, now: float) -> Grant:
        """Return the grant of a segment.

        Raises
        ------
        Refusal
            When this server did not sign it, or its time is over.
        """
        body, dot, mac = signed.partition(".")
        try:
            data, given = _bytes(body), _bytes(mac)
        except (binascii.Error, ValueError):
            data, given = b"", b""
        if not dot or not hmac.compare_digest(self._mac(data), given):
            raise Refusal("forbidden", "this server did not sign the URL. Ask for one with presign.")
        ns, storage, key, operation, limit, until, token, *claim = json.loads(data)
        if now > until:
            raise Refusal("forbidden", "the URL has expired. Ask for another with presign.")
        held = (claim[0], claim[1]) if claim else None
        return Grant(Place(ns, storage, key), operation, limit, until, held, token)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"lakeshore file url 2\0" + body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
