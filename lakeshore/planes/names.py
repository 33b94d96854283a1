"""What people call a job: read from its envelope, since a row has no name."""

from __future__ import annotations

from typing import Protocol

from lakeshore import wire
from lakeshore.errors import UnpackError

NAMED = 1 << 20
"""The largest envelope that is opened for a name, bytes."""


class HasEnvelopes(Protocol):
    """What is asked of a plane here."""

    def envelope(self, inv_id: str) -> bytes | None:
        """Return what was submitted, or None."""
        ...


def name_of(plane: HasEnvelopes, id: str, *, most: int = NAMED) -> str | None:
    """Return a job's own name, else its function's.

    Parameters
    ----------
    most : int
        The largest envelope that is opened, bytes.

    Returns
    -------
    str or None
        None for a plain payload, an envelope over `most`, and one that cannot be read.
    """
    data = plane.envelope(id)
    if data is None or len(data) > most:
        return None
    try:
        envelope = wire.Envelope.from_bytes(data)
    except UnpackError:
        return None
    name = envelope.cfg.get("name") or envelope.fn.get("qualname")
    return name if isinstance(name, str) else None
