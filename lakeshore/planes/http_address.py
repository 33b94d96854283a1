"""Where a control plane is and what opens it: the base URL, the token that nothing shows, its file.

A URL or token that may not be used is refused here, before anything is sent.
"""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus, urlsplit

from lakeshore.errors import DispatchError

_LOGGERS: Final = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
)
_BEARER: Final = re.compile(
    r"(?i)\b(bearer|basic)(\s+|%20|\+)(?!(?-i:TOKEN)(?![^\s\"'<>,;&().]))[^\s\"'<>,;&]+"
)
"""A credential, though not the word TOKEN that stands for one in a server's advice."""

_SHORT: Final = 8


class AddressError(DispatchError, ValueError):
    """A base URL or token that a client may not use."""


@dataclass(frozen=True, slots=True)
class Address:
    """A checked base URL.

    Attributes
    ----------
    url : str
        Without a trailing slash.
    loopback : bool
        Whether it is this machine.
    secure : bool
        Whether it is https.
    """

    url: str
    loopback: bool
    secure: bool

    @classmethod
    def read(cls, base_url: object, *, insecure: bool = False) -> Address:
        """Check a base URL.

        Raises
        ------
        AddressError
            When it is no http or https URL, holds a user or password, a query or a fragment, or is plain
            http to another machine without `insecure`. No message repeats what may be a secret.
        """
        if not isinstance(base_url, str):
            raise AddressError(f"base_url: wants a str, got {type(base_url).__name__}")
        base_url = base_url.strip()  # a file that it was read from ends in a newline
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise AddressError(
                "base_url: no URL that can be read. Write https://HOST[:PORT][/PREFIX]."
            ) from None
        if "@" in parts.netloc:
            raise AddressError(
                "base_url: holds a user or password, which logs and proxies would see. "
                "Write the URL without it, and pass token=."
            )
        if parts.query or parts.fragment or "?" in base_url or "#" in base_url:
            raise AddressError("base_url: holds a query or fragment. Write https://HOST[:PORT][/PREFIX].")
        text = base_url[:100]
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise AddressError(
                f"base_url {text!r}: wants https://HOST[:PORT][/PREFIX], or http:// on loopback"
                f"{_meant(base_url)} (--url, LAKESHORE_URL)."
            )
        _check_host(text, parts.hostname)
        if not base_url.isascii() or re.search(r"[\x00-\x20\x7f\\\"<>^`{|}]|%(?![0-9A-Fa-f]{2})", base_url):
            raise AddressError(f"base_url {text!r}: holds characters that a URL cannot. Percent-encode them.")
        if any(part.replace("%2e", ".").replace("%2E", ".") in (".", "..") for part in parts.path.split("/")):
            raise AddressError(f"base_url {text!r}: its path climbs. Write it without . and ..")
        loopback, secure = is_loopback(parts.hostname), parts.scheme == "https"
        if not (secure or loopback or insecure):
            raise AddressError(
                f"base_url {text!r}: plain http would show the token and every job to the network. "
                "Use https://, or allow it where the network itself is trusted: insecure=True, "
                "--insecure or LAKESHORE_INSECURE=1."
            )
        return cls(f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}", loopback, secure)


def _meant(text: str) -> str:
    """Return what was probably meant by an address without a scheme, or in quotes."""
    bare = text.strip("'\"")
    if bare == text and ("//" in text or not re.fullmatch(r"[\w.-]+(:\d+)?(/[\w./-]*)?", text)):
        return ""
    host = bare.partition("/")[0].rpartition(":")[0] or bare.partition("/")[0]
    if "//" not in bare:
        bare = f"{'http' if is_loopback(host) else 'https'}://{bare}"
    return f": {bare[:100]}"


def _check_host(text: str, host: str) -> None:
    """Raise `AddressError` for a host's name that none can have."""
    if not host.isascii():
        try:
            spelled = host.encode("idna").decode()
        except UnicodeError:
            raise AddressError(f"base_url {text!r}: no host can have this name. Correct it.") from None
        raise AddressError(f"base_url {text!r}: write the host's name as DNS has it, {spelled}.")
    labels = host.removesuffix(".").split(".")
    if ":" not in host and not (len(host) <= 253 and all(0 < len(label) < 64 for label in labels)):
        raise AddressError(
            f"base_url {text!r}: no host can have this name: its parts between dots have 1 to 63 letters. "
            "Correct it."
        )


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL: what a token may be sent to."""
    parts = urlsplit(url.strip())
    standard = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or standard


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Secret:
    """A token that no repr, log record or message shows.

    Parameters
    ----------
    token : str or None
        None for a control plane without tokens.

    Raises
    ------
    AddressError
        When it cannot be a header's value; the message does not repeat it.
    """

    __slots__ = ("_pattern", "_token")

    def __init__(self, token: str | None) -> None:
        if token is not None and not isinstance(token, str):
            raise AddressError(f"token: wants a str or None, got {type(token).__name__}")
        token = token.strip() if token else None
        if token and re.search(r"[^\x21-\x7e]", token):
            raise AddressError("token: holds a character that no token has. Copy it again, on one line.")
        self._token = token or None
        self._pattern = None if self._token is None else _spellings(self._token)
        if self._pattern is not None:
            _hush(self._pattern)

    def __repr__(self) -> str:
        return "Secret(***)" if self._token else "Secret(None)"

    def __reduce__(self) -> str:
        raise TypeError("a token is not pickled: make the HttpDispatch where it is used")

    def headers(self) -> dict[str, str]:
        """Return the one header that carries the token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def scrub(self, text: str) -> str:
        """Return `text` without the token, however it is spelled."""
        if self._pattern is not None:
            text = self._pattern.sub("***", text)
        return _BEARER.sub(r"\1 ***", text)


def _spellings(token: str) -> re.Pattern[str]:
    spelled = {
        token,
        quote(token, safe=""),
        quote_plus(token),
        html.escape(token),
        json.dumps(token)[1:-1],
        repr(token)[1:-1],
        base64.b64encode(token.encode()).decode().rstrip("="),
    }
    pattern = "|".join(re.escape(each) for each in sorted(spelled, key=len, reverse=True))
    if len(token) < _SHORT:  # within other words it is no token, and they would not be read any more
        pattern = f"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])"
    return re.compile(pattern, re.IGNORECASE)


class _Hush(logging.Filter):
    """Takes tokens out of what the HTTP library logs: at DEBUG it shows the headers a server echoed."""

    def __init__(self) -> None:
        super().__init__()
        self.patterns: dict[str, re.Pattern[str]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.getMessage()
        clean = told
        for pattern in list(self.patterns.values()):
            clean = pattern.sub("***", clean)
        if clean != told:
            record.msg, record.args = clean, None
        return True


_HUSH: Final = _Hush()


def _hush(pattern: re.Pattern[str]) -> None:
    _HUSH.patterns[pattern.pattern] = pattern
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_HUSH)


def token_file(home: Path, url: str) -> Path:
    """Return where the token for the control plane at `url` is kept on its own machine."""
    return home / "tokens" / quote(Address.read(url, insecure=True).url, safe="")


def stored_token(home: Path, url: str) -> str | None:
    """Return the token that a control plane on this machine left for its own user, or None.

    Raises
    ------
    DispatchError
        When the file is there, but is not the user's own or others may read it.
    """
    path = token_file(home, url)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise DispatchError(
            f"token file {path}: cannot be read ({exc.strerror}). Remove it, or fix it."
        ) from exc
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise DispatchError(f"token file {path}: others could read or replace it. Run chmod 600 on it.")
        text = file.read(4097)
    if len(text) > 4096 or not text.isascii():
        raise DispatchError(f"token file {path}: holds no token. Remove it, or write the token again.")
    return text.decode().strip() or None


def keep_token(home: Path, url: str, token: str) -> Path:
    """Leave a control plane's token for its own user's clients on this machine; returns the file, mode 0600.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    path = token_file(home, url)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{os.getpid()}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, 0o600)  # whatever the umask
        file.write(f"{token}\n")
    new.rename(path)
    return path
