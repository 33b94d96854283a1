"""What two servers in a row might read differently in a request: it is refused, and its connection closed.

Else what a proxy takes for one request's body is another request here, with whoever's rights come next.
"""

from __future__ import annotations

from collections.abc import Sequence

_VERSIONS = ("1.0", "1.1")


def ambiguity(
    version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], *, upgrades: bool
) -> str | None:
    """Return what may be read in two ways in a request's head, beside what its parser refuses itself.

    Parameters
    ----------
    version : str
        As the parser read it: ``1.1``.
    target : bytes
        As it was sent.
    headers : sequence of tuple
        Names in lower case, and values.
    upgrades : bool
        Whether it asks for another protocol, by ``Upgrade`` or by ``CONNECT``.
    """
    if version not in _VERSIONS:
        return f"HTTP/{version}: send HTTP/1.1."
    if upgrades:
        return "Upgrade: no other protocol is spoken here. Send the request without."
    if b"#" in target:
        return "the target holds a '#'. Send it as %23."
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return (
            "Transfer-Encoding: wants chunked, once, in HTTP/1.1. Send the body so, or with Content-Length."
        )
    if sum(name == b"host" for name, _ in headers) > 1:
        return "Host: is there twice. Send one."
    return None
