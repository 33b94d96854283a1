"""The first start's admin token: made and printed once, and left for this user's clients here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lakeshore.errors import DispatchError
from lakeshore.planes.http_address import keep_token, stored_token, token_file
from lakeshore.planes.store import Store
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What a start has to say of tokens.

    Attributes
    ----------
    file : Path
        Where this user's clients find theirs.
    text : str or None
        The token, where the store had none for an admin before.
    """

    file: Path
    text: str | None

    def __repr__(self) -> str:
        return f"FirstToken({str(self.file)!r})"


def first_token(engine: Store, home: Path, url: str) -> FirstToken:
    """See to it that a token for `url` lies in `home`, and that the store has an admin's.

    Raises
    ------
    DispatchError
        When the token cannot be kept there.
    """
    tokens = Tokens(engine)
    first = not any(token.live and token.role == "admin" for token in tokens.list())
    urls = [url]
    if "//127.0.0.1:" in url:
        urls.append(url.replace("//127.0.0.1:", "//localhost:"))
    made: str | None = None
    try:
        for each in urls:
            kept = stored_token(home, each)
            if kept is not None and tokens.find(kept) is not None:
                continue
            if made is None:
                made, _ = tokens.create(ns=EVERYWHERE, role="admin", name=f"this machine, {url}"[:200])
            keep_token(home, each, made)
    except OSError as exc:
        raise DispatchError(
            f"serve: the token cannot be kept in {str(home)!r} ({exc.strerror or exc}). Set LAKESHORE_HOME "
            "to a directory of yours."
        ) from exc
    return FirstToken(token_file(home, url), made if first else None)
