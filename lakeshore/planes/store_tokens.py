"""Tokens of a control plane: who may speak to it, as what, where, until when; only their SHA-256 is kept.

A token is a row of the store's reserved namespace: its id is the digest, its envelope says what it may, and
`cancel` revokes it. So every server of a store sees the same tokens, and a backup holds them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Final

from lakeshore.errors import DispatchError, WaitTimeout
from lakeshore.planes import protocol
from lakeshore.planes.contract import check_name
from lakeshore.planes.store import Store
from lakeshore.planes.store_within import Within, reserved
from lakeshore.states import State

ROLES: Final = ("producer", "worker", "admin")
EVERYWHERE: Final = "*"
"""The namespace of a token that is good in all of them."""
PREFIX: Final = "lsk_"
"""How every token begins, so that a scanner of commits and logs can find one."""
_CHOSEN: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{32,200}}")
_QUEUE: Final = "tokens"
_TRUST_SECONDS: Final = 1.0
"""How long a look at the store is believed: a revoked token is refused after this at the latest."""
_USED_SECONDS: Final = 60.0
_KEPT: Final = 10_000
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; the token itself is not.

    Attributes
    ----------
    digest : str
        SHA-256 of the token, hex; its first 12 characters name it for people.
    ns, role : str
        Where it is good, `EVERYWHERE` or one namespace, and as what.
    name : str
        What it is for, "" for nothing said.
    created_at, expires_at, last_used_at : float or None
        Unix seconds.
    revoked : bool
        Whether it was taken back.
    """

    digest: str
    ns: str
    role: str
    name: str = ""
    created_at: float = 0.0
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked: bool = False

    @property
    def id(self) -> str:
        """The name that people and logs give it; tells nothing of the token."""
        return self.digest[:12]

    @property
    def live(self) -> bool:
        """Whether it still opens anything."""
        return not self.revoked and (self.expires_at is None or time.time() < self.expires_at)


class Tokens:
    """The tokens of one store.

    Parameters
    ----------
    engine : Store
        The store they are in.
    """

    def __init__(self, engine: Store) -> None:
        self._rows: Within = reserved(engine)
        self._known: dict[str, tuple[float, Token]] = {}
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    def create(
        self, *, ns: str, role: str, expires: float | None = None, name: str = ""
    ) -> tuple[str, Token]:
        """Make a token; returns it, for the only time, and what is kept of it.

        Parameters
        ----------
        ns : str
            The namespace it is good in; `EVERYWHERE` for an admin of all.
        role : {"producer", "worker", "admin"}
            What it may do there.
        expires : float, optional
            Seconds until it is refused.

        Raises
        ------
        ValueError
            When an argument cannot be.
        """
        text = PREFIX + secrets.token_urlsafe(32)
        now = time.time()
        token = Token(digest(text), ns, role, name, now, None if expires is None else now + expires)
        self._keep(token)
        return text, token

    def declare(self, text: str, *, ns: str, role: str, name: str = "") -> Token:
        """Take a token that was chosen elsewhere, in a deployment's secrets, say; once more does nothing.

        Parameters
        ----------
        text : str
            The token: ``lsk_`` and 32 or more of ``A-Z a-z 0-9 _ -``, so that none is guessed.
        ns, role, name : str
            As for `create`. It never expires; `revoke` takes it back.

        Raises
        ------
        ValueError
            When an argument cannot be. The message repeats nothing of the token.
        DispatchError
            When the token was revoked, or is known as good elsewhere or as something else.
        """
        if not _CHOSEN.fullmatch(text):
            raise ValueError(
                f"token: wants {PREFIX} and 32 to 200 of A-Z a-z 0-9 _ - behind it. Make one: "
                f"echo {PREFIX}$(openssl rand -hex 32)"
            )
        wanted = Token(digest(text), ns, role, name)
        known = self._look(wanted.digest)
        if known is None:
            self._keep(wanted)
            known = self._look(wanted.digest) or wanted
        if not known.live:
            raise DispatchError(f"token {known.id}: was revoked or has expired. Declare another.")
        if (known.ns, known.role) != (ns, role):
            raise DispatchError(
                f"token {known.id}: is known already, as {known.role} in {known.ns!r}, not as {role} in "
                f"{ns!r}. Declare another token for that."
            )
        return known

    def _keep(self, token: Token) -> None:
        """Write a new token's row, once its words are checked."""
        if token.role not in ROLES:
            raise ValueError(f"role {token.role!r}: wants one of {', '.join(ROLES)}")
        if token.ns != EVERYWHERE:
            check_name(token.ns, "namespace")
        elif token.role != "admin":
            raise ValueError(
                f"namespace {token.ns!r}: only an admin is good in all; name one for a {token.role}"
            )
        if token.name:
            check_name(token.name, "name")
        told = {"ns": token.ns, "role": token.role, "name": token.name, "expires_at": token.expires_at}
        self._rows.submit(_QUEUE, protocol.pack(told), id=token.digest)

    def find(self, text: str) -> Token | None:
        """Return what a token is known as, None for one that is unknown, revoked or expired."""
        wanted = digest(text)
        token = self._look(wanted)
        if token is None or not hmac.compare_digest(token.digest, wanted) or not token.live:
            return None
        self._remember(token)
        return token

    def is_live(self, wanted: str) -> bool:
        """Whether the token of this digest still opens anything, as seen within the last second."""
        at, token = self._known.get(wanted, (0.0, None))
        if token is None or time.monotonic() - at > _TRUST_SECONDS:
            token = self._look(wanted)
            if token is not None:
                self._remember(token)
        return token is not None and token.live

    def _remember(self, token: Token) -> None:
        with self._lock:
            if len(self._known) > _KEPT:
                self._known.clear()
            self._known[token.digest] = (time.monotonic(), token)

    def remembered(self, text: str) -> Token | None:
        """Return what `find` found within the last second; asks nobody."""
        wanted = digest(text)
        at, token = self._known.get(wanted, (0.0, None))
        if token is None or not hmac.compare_digest(token.digest, wanted) or not token.live:
            return None
        return token if time.monotonic() - at <= _TRUST_SECONDS else None

    def used(self, token: Token) -> bool:
        """Whether a use of `token` is to be noted now: once a minute is enough."""
        now = time.monotonic()
        if now - self._used.get(token.digest, -_USED_SECONDS) < _USED_SECONDS:
            return False
        self._used[token.digest] = now
        return True

    def note_use(self, token: Token) -> None:
        """Write down that `token` was used just now."""
        self._rows.journal_append(token.digest, None, protocol.pack({"at": time.time()}))
        self._rows.journal_trim(token.digest, keep_last=1)

    def revoke(self, id: str) -> Token:
        """Take a token back for good; every server of the store refuses it within a second.

        Parameters
        ----------
        id : str
            The first characters of its id, at least 4, as `list` shows it; or the token itself.

        Raises
        ------
        DispatchError
            When no token, or more than one, begins so.
        """
        start = digest(id) if id.startswith(PREFIX) else id
        found = [token for token in self.list() if len(start) >= 4 and token.digest.startswith(start)]
        if len(found) != 1:
            shown = "it" if id.startswith(PREFIX) else repr(id)
            said = "no token" if not found else f"{len(found)} tokens"
            raise DispatchError(f"token revoke: {said} of id {shown}. See: lakeshore token list")
        self._rows.cancel(found[0].digest)
        self._known.pop(found[0].digest, None)
        return found[0]

    def list(self) -> list[Token]:
        """Return every token, newest first."""
        rows = self._rows.invocations(_QUEUE, limit=_MOST)
        return [token for row in rows if (token := self._look(row["id"])) is not None]

    def _look(self, wanted: str) -> Token | None:
        row = self._rows.get(wanted)
        envelope = self._rows.envelope(wanted) if row is not None else None
        if row is None or envelope is None:
            return None
        told = protocol.unpack(envelope)
        return Token(
            wanted,
            str(told["ns"]),
            str(told["role"]),
            str(told["name"]),
            row["submitted_at"],
            told["expires_at"],
            self._last_used(wanted),
            row["state"] != State.QUEUED,
        )

    def _last_used(self, wanted: str) -> float | None:
        at: float | None = None
        try:
            for _, data in self._rows.journal_read(wanted, timeout=0):
                at = float(protocol.unpack(data)["at"])
        except WaitTimeout:
            pass  # that was all there is
        return at


def digest(text: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
