"""The protocol's side channel for files: routes, and the few headers of HTTP that uploads and resumes need.

An upload is a PUT of the whole, or of parts (`Content-Range`) that may be sent again in any order; the digest
of the whole (`Repr-Digest`, RFC 9530) names it. ``bytes */TOTAL`` without a body asks how far it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from lakeshore.planes.protocol import Route

PRESIGN: Final = Route("POST", "/v1/namespaces/{ns}/storages/{name}/presign")
LOOKUP: Final = Route("GET", "/v1/namespaces/{ns}/code-repos/lookup")
REGISTER: Final = Route("POST", "/v1/namespaces/{ns}/code-repos")
FILE_PATH: Final = "/v1/files/{signed}"
"""What a signed URL of ours leads to; its one segment says all, and is its own proof."""

PART_BYTES: Final = 8 * 1024 * 1024
"""The size of an upload's parts."""
OBJECT_BYTES: Final = 64 * 1024 * 1024 * 1024
"""What one file may have unless its URL says less."""
PART_LIMIT: Final = 64 * 1024 * 1024
FILE: Final = "application/octet-stream"
FOLDER: Final = "application/x-lakeshore-folder"
"""The media type of a folder, which travels as an archive."""

_DIGEST: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{43,44}):\s*(?:,|$)")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:\*|(\d{1,15})-(\d{1,15}))/(\d{1,15})")
_RANGE: Final = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")


def digest_header(hex_digest: str) -> str:
    """Return the value of ``Repr-Digest`` for a SHA-256 in hexadecimal."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(hex_digest)).decode()}:"


def read_digest(header: str | None) -> str | None:
    """Return the SHA-256 of a ``Repr-Digest`` in hexadecimal; None for an absent one.

    Raises
    ------
    ValueError
        When it holds no SHA-256.
    """
    if not header:
        return None
    found = _DIGEST.search(header)
    try:
        raw = b"" if found is None else base64.b64decode(found[1], validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 32:
        raise ValueError("Repr-Digest: wants sha-256=:BASE64:")
    return raw.hex()


def read_content_range(header: str) -> tuple[tuple[int, int] | None, int]:
    """Return ``(first, last)`` of a part (None for a question) and the size of the whole.

    Raises
    ------
    ValueError
        When it is no range of bytes.
    """
    found = _CONTENT_RANGE.fullmatch(header.strip())
    if found is None:
        raise ValueError("Content-Range: wants bytes FIRST-LAST/TOTAL, or bytes */TOTAL")
    total = int(found[3])
    if found[1] is None:
        return None, total
    first, last = int(found[1]), int(found[2])
    if not first <= last < total:
        raise ValueError(f"Content-Range: {first}-{last} is no part of {total} bytes")
    return (first, last), total


def read_range(header: str | None) -> tuple[int, int | None] | None:
    """Return first and last byte that a ``Range`` asks for; None for the whole, or a form we do not serve."""
    found = _RANGE.fullmatch((header or "").strip())
    if found is None:
        return None
    last = int(found[2]) if found[2] else None
    first = int(found[1])
    return None if last is not None and last < first else (first, last)


def arrived(header: str | None) -> int:
    """Return how many bytes an answer's ``Range: bytes=0-N`` says have arrived."""
    found = _RANGE.fullmatch((header or "").strip())
    return 0 if found is None or not found[2] else int(found[2]) + 1
