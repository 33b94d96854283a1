"""What of the environment a connection goes by: the proxy before a host, and whose certificates are good.

Every fault names its variable; a proxy's value is not shown, since it may hold a password.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_AUTHORITIES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Each names a file of authorities, the first that is set."""


class WayError(ValueError):
    """A variable of the environment that cannot be used; the message names it, and how to mend it."""


def proxy_of(url: str) -> str | None:
    """Return the proxy for this URL, None where it is gone to directly.

    ``NO_PROXY`` holds names, ``.suffixes``, addresses (IPv6 in brackets or without), networks
    (``10.0.0.0/8``) and ``*``.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all") or ""
    if (
        not found.strip()
        or proxy_bypass(parts.netloc)
        or _is_among(parts.hostname or "", proxies.get("no", ""))
    ):
        return None
    found = found.strip()
    return found if "://" in found else f"http://{found}"


def _is_among(host: str, entries: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    for entry in entries.split(","):
        text = entry.strip()
        if text.startswith("["):
            text = text[1:].partition("]")[0]
        try:
            if address in ipaddress.ip_network(text, strict=False):
                return True
        except ValueError:
            continue  # a name
    return False


def refused_proxy(url: str, exc: Exception) -> WayError:
    """Say of a proxy that the HTTP library does not take which variable it comes from."""
    scheme = urlsplit(url).scheme
    name = f"{scheme.upper()}_PROXY" if scheme in getproxies() else "ALL_PROXY"
    if isinstance(exc, ImportError):
        return WayError(
            f"{name} is a SOCKS proxy, which needs one more package. Run: pip install 'httpx[socks]'"
        )
    return WayError(
        f"{name} is no address of a proxy ({type(exc).__name__}). "
        "Write http://HOST:PORT, or take this host out with NO_PROXY"
    )


def certificates() -> ssl.SSLContext:
    """Return whose certificates are good: what the environment names, else the usual bundle.

    Raises
    ------
    WayError
        When a variable names what is no file of certificates.
    """
    import certifi

    env = os.environ
    name = next((name for name in _AUTHORITIES if env.get(name)), None)
    file, folder = (env[name] if name else None), env.get("SSL_CERT_DIR") or None
    if file is not None and name != _AUTHORITIES[0] and Path(file).is_dir():
        file, folder = None, file
    try:
        return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
    except OSError as exc:  # an SSLError, too
        where = f"{name}={file!r}" if file else f"SSL_CERT_DIR={folder!r}"
        why = exc.strerror if exc.errno and not isinstance(exc, ssl.SSLError) else "it holds no certificate"
    raise WayError(f"{where}: no file of certificates ({why}). Name the authority's file in PEM, or unset it")
