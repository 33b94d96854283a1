"""What a control plane allows: limits, holds and leases, in one frozen dataclass with the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from lakeshore.planes.protocol import BODY_LIMIT, HOLD_SECONDS, KEEPALIVE_SECONDS


@dataclass(frozen=True, slots=True)
class Options:
    """The limits of a control plane.

    Attributes
    ----------
    auth : bool
        Whether every request wants a token.
    body_limit : int
        The most bytes of one body, default 64 MiB.
    held_bytes : int, optional
        The most bytes of bodies in memory, of all requests under way; default eight times `body_limit`. A
        token may hold a quarter of it, and one body always.
    field_lease : float
        The lease of a claim that asks for none, since its worker cannot renew it; seconds, default 6 h.
    hold : float
        The longest a poll is held, seconds.
    keepalive : float
        A quiet stream of rows sends a nil so often, seconds.
    streams : int
        Open streams of one token (with `auth` off: of all), default 1000.
    body_seconds : float
        How long a body may take to arrive, beside a second for each KiB, and how long nothing of it may come.
    header_bytes, header_seconds
        The most bytes of a request's line and headers, and how long they may take to arrive.
    stall_seconds : float
        A client that takes nothing of its answer for so long is cut off.
    connections : int
        The most connections at once, default 10,000, or fewer where the process may open fewer files; one
        more closes the one that has been idle longest.
    hosts : tuple of str
        Names in the Host header that are answered beside loopback, addresses and this machine's own.
    storage : str or None
        Where files are kept: a folder, or what fsspec reaches (``s3://bucket/path``). None is
        ``storage`` in LAKESHORE_HOME.
    """

    auth: bool = True
    body_limit: int = BODY_LIMIT
    held_bytes: int | None = None
    field_lease: float = 6 * 3600.0
    hold: float = HOLD_SECONDS
    keepalive: float = KEEPALIVE_SECONDS
    streams: int = 1000
    body_seconds: float = 30.0
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    stall_seconds: float = 60.0
    connections: int = 10_000
    hosts: tuple[str, ...] = ()
    storage: str | None = None

    @property
    def all_bytes(self) -> int:
        """The most bytes of bodies in memory."""
        return 8 * self.body_limit if self.held_bytes is None else max(self.held_bytes, self.body_limit)

    @property
    def token_bytes(self) -> int:
        """The most bytes of bodies in memory that came with one token."""
        return max(self.all_bytes // 4, self.body_limit)
