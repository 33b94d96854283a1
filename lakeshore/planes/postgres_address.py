"""Where a PostgreSQL database is: its address as given, and as it may be shown, which is without secrets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

import psycopg
from psycopg import conninfo

_SCHEMES = ("postgresql://", "postgres://")
_SECRET = ("password", "sslpassword", "passfile", "sslkey", "oauth_client_secret")
_DEFAULTS = {
    "application_name": "lakeshore",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""A peer that went without a word is noticed within 20 s, so that a call has time left to try another."""
_SEVERAL = {"target_session_attrs": "read-write"}
"""Of several hosts the one that takes writes is meant."""
_NO_PARAMETERS = (
    *("pool_size", "max_overflow", "pool_timeout", "pool_recycle", "connection_limit", "pgbouncer", "schema"),
    *("currentSchema", "charset", "ssl", "sslaccept", "prepared_statements", "statement_cache_size"),
)
"""What other programs put into an address."""
_HINT = "Give postgresql://user:password@host:5432/database; write @ : / ? # % in a password as %40 %3A %2F …"


@dataclass(frozen=True, slots=True)
class Address:
    """An address that was read.

    Attributes
    ----------
    host, database : str
        For messages.
    options : dict
        What libpq is given.
    """

    host: str
    database: str
    options: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"database {self.database!r} at {self.host}"

    @property
    def shown(self) -> str:
        """The address without user, password or options."""
        return f"postgresql://{self.host}/{quote(self.database)}"

    def without_secrets(self, text: str) -> str:
        """Return `text` with no password in it, as it is or as an address spells it."""
        for name in _SECRET[:2]:
            secret = str(self.options.get(name) or "")
            for spelling in {secret, quote(secret, safe="")} - {""}:
                text = text.replace(spelling, "***")
        return text


def read(dsn: object) -> Address:
    """Read a ``postgresql://…`` address.

    Raises
    ------
    ValueError
        When it is none. The message repeats nothing of it: what is misread may be a piece of the password.
    """
    if isinstance(dsn, str) and (scheme := re.match(r"postgres(?:ql)?\+[a-z0-9]+(?=://)", dsn)):
        raise ValueError(f"dsn: {scheme[0]}:// is the spelling of another program. Write postgresql://…")
    if not isinstance(dsn, str) or not dsn.startswith(_SCHEMES) or "\0" in dsn:
        raise ValueError(f"dsn: wants an address postgresql://…, got {type(dsn).__name__}. {_HINT}")
    try:
        given: dict[str, Any] = dict(conninfo.conninfo_to_dict(dsn))
    except (psycopg.ProgrammingError, UnicodeError):
        named = {name for name, _ in parse_qsl(dsn.partition("?")[2], keep_blank_values=True)}
        if foreign := sorted(named.intersection(_NO_PARAMETERS)):
            told = f"dsn: {', '.join(foreign)} in it is no parameter of PostgreSQL's. Leave it out."
            raise ValueError(told) from None
        raise ValueError(f"dsn: this address cannot be read. {_HINT}") from None
    host = str(given.get("host") or os.environ.get("PGHOST") or given.get("hostaddr") or "")
    port = str(given.get("port") or "")
    if "@" in host or not re.fullmatch(r"[0-9,]*", port):
        raise ValueError(f"dsn: host or port cannot be told from the password. {_HINT}")
    user = given.get("user") or os.environ.get("PGUSER") or ""
    database = str(given.get("dbname") or os.environ.get("PGDATABASE") or user)
    shown = (host or "the local socket") + (f":{port}" if port and not host.startswith("/") else "")
    several = _SEVERAL if "," in host else {}
    return Address(shown, database, {**_DEFAULTS, **several, **given, "client_encoding": "utf8"})
