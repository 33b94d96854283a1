"""The environment, read into one frozen dataclass; nobody else reads a LAKESHORE_ variable."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MAX_PAYLOAD_DEFAULT = 256 * 1024 * 1024
_URL = "LAKESHORE_URL"
_TOKEN = "LAKESHORE_CLIENT_TOKEN"  # noqa: S105 - the name of its variable
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    Attributes
    ----------
    home : Path
        ``LAKESHORE_HOME``, default ``~/.lakeshore``.
    url : str or None
        ``LAKESHORE_URL``: the control plane; None means the local file.
    token : str or None
        ``LAKESHORE_CLIENT_TOKEN``; never shown in the repr.
    namespace : str
        ``LAKESHORE_NAMESPACE``, default ``"default"``.
    queue, root : str or None
        ``LAKESHORE_QUEUE``, ``LAKESHORE_ROOT``: the daemon's fall-backs.
    runtime_policy : str
        ``LAKESHORE_RUNTIME_POLICY``: strict | minor | off, default ``"minor"``.
    max_payload : int
        ``LAKESHORE_MAX_PAYLOAD`` in bytes, default 256 MiB.
    keep : float or None
        ``LAKESHORE_KEEP`` (``30d``, ``12h``) in seconds; None keeps everything.
    allow_network_fs : bool
        ``LAKESHORE_ALLOW_NETWORK_FS=1``.
    insecure : bool
        ``LAKESHORE_INSECURE=1``: plain http to a control plane on another machine.
    """

    home: Path
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    namespace: str = "default"
    queue: str | None = None
    root: str | None = None
    runtime_policy: str = "minor"
    max_payload: int = MAX_PAYLOAD_DEFAULT
    keep: float | None = None
    allow_network_fs: bool = False
    insecure: bool = False

    @property
    def database(self) -> Path:
        """The default local plane's file."""
        return self.home / "dispatch.sqlite"


def duration(text: str) -> float:
    """Read a duration such as ``"30d"``, ``"1.5h"``, ``"90"`` (seconds).

    Raises
    ------
    ValueError
        When the text is not a number with an optional unit s, m, h, d or w.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw]?)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration; write seconds, or a number with s, m, h, d or w ('30d')")
    return float(match[1]) * _UNITS[match[2] or "s"]


@cache
def _max_payload(raw: str | None) -> int:
    if raw is None:
        return MAX_PAYLOAD_DEFAULT
    if not raw.isdecimal() or int(raw) < 1:
        raise ValueError(f"LAKESHORE_MAX_PAYLOAD={raw!r}: wants a number of bytes, 1 or more")
    return int(raw)


def max_payload() -> int:
    """Return `Settings.max_payload` alone, as every submit asks for it.

    Raises
    ------
    ValueError
        When LAKESHORE_MAX_PAYLOAD is no number of bytes.
    """
    return _max_payload(os.environ.get("LAKESHORE_MAX_PAYLOAD") or None)


def without_token() -> dict[str, str]:
    """Return the environment for a process that has no business with what opens the plane.

    The token is not in it, and LAKESHORE_URL is without its password: so what a body submits is refused by
    the plane that was meant, and does not go to a local file that nobody looks at.
    """
    environment = {name: value for name, value in os.environ.items() if name != _TOKEN}
    if (url := environment.get(_URL)) is not None:
        environment[_URL] = _without_password(url)
    return environment


def forget_token() -> None:
    """Take what opens the plane out of this process's environment, and so out of its children's."""
    os.environ.pop(_TOKEN, None)
    if (url := os.environ.get(_URL)) is not None and (bare := _without_password(url)) != url:
        os.environ[_URL] = bare


def _without_password(url: str) -> str:
    head, sep, rest = url.partition("://")
    if not sep:
        return url
    place, slash, tail = re.fullmatch(r"([^/?#]*)([/?#]?)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    user, at, host = place.rpartition("@")
    kept = f"{user.partition(':')[0]}{at}{host}"
    tail = re.sub(r"(?i)(^|(?<=[?&]))(?:password|sslpassword)=[^&#]*&?", "", slash + tail)
    return f"{head}://{kept}{tail.rstrip('?&')}"


def read() -> Settings:
    """Read the environment as it is now. Touches no file.

    Raises
    ------
    ValueError
        When a variable has a value it cannot have; the message names it.
    """
    env = os.environ

    def text(name: str) -> str | None:
        return env.get(name) or None

    policy = text("LAKESHORE_RUNTIME_POLICY") or "minor"
    if policy not in ("strict", "minor", "off"):
        raise ValueError(f"LAKESHORE_RUNTIME_POLICY={policy!r}: wants strict, minor or off")
    keep = text("LAKESHORE_KEEP")
    home = text("LAKESHORE_HOME")
    return Settings(
        home=Path(home).expanduser() if home else Path.home() / ".lakeshore",
        url=(text(_URL) or "").strip() or None,  # a file that they were read from ends in a newline
        token=(text(_TOKEN) or "").strip() or None,
        namespace=text("LAKESHORE_NAMESPACE") or "default",
        queue=text("LAKESHORE_QUEUE"),
        root=text("LAKESHORE_ROOT"),
        runtime_policy=policy,
        max_payload=max_payload(),
        keep=duration(keep) if keep else None,
        allow_network_fs=text("LAKESHORE_ALLOW_NETWORK_FS") == "1",
        insecure=text("LAKESHORE_INSECURE") == "1",
    )
