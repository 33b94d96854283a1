"""The pooled connections of a control plane's client. The only importer of httpx, at first construction.

What the HTTP library raises ends here: a try comes out as an answer or as `Broken`, a value without the
request (and so without the token) that its exceptions hold on to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes.http_address import Address, Secret
from lakeshore.planes.http_clock import Clock, timed
from lakeshore.planes.http_headers import media_of
from lakeshore.planes.http_reading import Reading, squeezed
from lakeshore.planes.http_tries import Answer, Broken, Line
from lakeshore.planes.http_ways import WayError, certificates, proxy_of, refused_proxy
from lakeshore.planes.protocol import MSGPACK
from lakeshore.version import __version__

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
_PART: Final = 1024 * 1024
_URLS_KEPT: Final = 256
_SLOWEST: Final = 1024
"""Bytes a second below which a body is given up."""


class HttpxLine(Line):
    """The pooled client of this process."""

    def __init__(self, address: Address, secret: Secret) -> None:
        self._address, self._secret = address, secret
        self._closed = False
        self._verify: ssl.SSLContext | bool | None = None
        self._proxy: str | None = None
        self._urls: dict[str, httpx.URL] = {}
        self._clock = Clock()
        self._client = self._connect()
        self._pid = os.getpid()
        self._inherited: list[httpx.Client] = []
        self._tokenless: dict[str | None, httpx.Client] = {}

    @property
    def url(self) -> str:
        """The base URL."""
        return self._address.url

    def options(self) -> dict[str, Any]:
        """Return what every client of this line is made with."""
        if self._closed:
            raise DispatchError("this HttpDispatch cannot be used: it was closed. Make a new one.")
        return {
            "headers": {
                "User-Agent": f"lakeshore/{__version__}",
                "Accept-Encoding": "identity",  # what is small on the line and large here is not asked for
                **self._secret.headers(),
            },
            "verify": self._verify,
            "proxy": self._proxy,
            "trust_env": False,
            "follow_redirects": False,
        }

    def _connect(self) -> httpx.Client:
        import httpx

        try:
            if self._verify is None:
                self._verify = certificates() if self._address.secure else False
                self._proxy = None if self._address.loopback else proxy_of(self._address.url)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0)
            self._straight: httpx.HTTPTransport | None = None
            if self._address.loopback:
                self._straight = httpx.HTTPTransport(verify=self._verify, trust_env=False, limits=limits)
            client = httpx.Client(**self.options(), limits=limits, transport=self._straight)
            for transport in (client._transport, *client._mounts.values()):
                timed(transport, self._clock)
            return client
        except WayError as exc:
            problem = str(exc)
        except (ImportError, ValueError, httpx.InvalidURL) as exc:  # a proxy's URL may hold a password
            problem = str(refused_proxy(self._address.url, exc))
        raise PlaneUnavailable(f"HttpDispatch: {problem}.")

    def _mine(self) -> httpx.Client:
        if self._pid != os.getpid():
            # The pool's lock may have been held as the process forked; its sockets are the parent's.
            self._inherited.append(self._client)
            self._client = self._connect()
            self._tokenless = {}
            self._pid = os.getpid()
        if self._closed:
            raise DispatchError("this HttpDispatch cannot be used: it was closed. Make a new one.")
        return self._client

    def _strange(self, url: str) -> httpx.Client:
        """Return a client for another server's signed URL: it has no token to give away."""
        import httpx

        proxy = proxy_of(url)
        client = self._tokenless.get(proxy)
        if client is None:
            agent = {"User-Agent": f"lakeshore/{__version__}", "Accept-Encoding": "identity"}
            client = self._tokenless[proxy] = httpx.Client(
                headers=agent, verify=certificates(), proxy=proxy, trust_env=False, follow_redirects=False
            )
        return client

    def close(self) -> None:
        """Close every connection."""
        if not self._closed:
            client = self._mine()
            self._closed = True
            client.close()
            for each in self._tokenless.values():
                each.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        accept: str,
        read_timeout: float,
        headers: Mapping[str, str] | None = None,
        payloads: int = 1,
    ) -> Answer | Broken:
        """Make one try and read its answer whole."""
        opened = self.open(
            method, path, content=content, accept=accept, read_timeout=read_timeout, headers=headers
        )
        if isinstance(opened, Broken):
            return opened
        with opened:
            reading = Reading(opened, payloads)
            began = time.monotonic()
            while reading.goes_on:
                size = reading.size
                if time.monotonic() - began > read_timeout + size / _SLOWEST:
                    return Broken(f"the answer came too slowly: {size:,} bytes so far", landed=True)
                reading.take(opened.read())
            return reading.outcome

    def open(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        accept: str,
        read_timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpxBody | Broken:
        """Make one try and return its answer, to be read in parts."""
        import httpx

        client = self._mine()
        told = {"Accept": accept}
        body: bytes | Iterable[bytes] | None = content
        if content is not None:
            told |= {"Content-Type": MSGPACK, "Content-Length": str(len(content))}
            if len(content) > _PART:
                body = _parts(content)
        seconds = max(read_timeout, 0.05)
        limits = {"connect": min(_CONNECT_SECONDS, seconds), "read": seconds, "write": _WRITE_SECONDS}
        limits["pool"] = seconds
        told |= headers or {}
        try:
            if self._straight is not None and path.startswith("/"):
                ready = self._request(method, path, told, body, limits)
                with self._clock.headers():
                    response = self._straight.handle_request(ready)
            else:
                away = not path.startswith("/")
                url = path if away else self._address.url + path
                client = self._strange(path) if away else client
                timeout = httpx.Timeout(**limits)
                request = client.build_request(method, url, headers=told, content=body, timeout=timeout)
                with self._clock.headers():
                    response = client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as exc:
            return self._broken(exc)
        except RuntimeError:  # closed by another thread since
            if not self._closed:
                raise
        else:
            answer = HttpxBody(self, response)
            refused = squeezed(answer)
            if refused is not None:
                answer.close()
            return refused or answer
        self._mine()
        raise AssertionError("a closed client answered")

    def _request(
        self,
        method: str,
        path: str,
        told: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        limits: Mapping[str, float],
    ) -> httpx.Request:
        """Return a request as the client would build it, less what is the same for every one.

        To loopback there are no proxies, cookies, redirects or logins to see to, and a client's share of a
        short request is most of its time.
        """
        import httpx

        url = self._urls.get(path)
        if url is None:
            url = httpx.URL(self._address.url + path)
            if len(self._urls) >= _URLS_KEPT:
                self._urls.clear()
            self._urls[path] = url
        over = {name.lower().encode() for name in told}
        fields = [
            (b"Host", url.netloc),
            *(pair for pair in self._client.headers.raw if pair[0].lower() not in over),
        ]
        fields += [(name.encode(), value.encode("latin-1")) for name, value in told.items()]
        extensions = {"timeout": limits}
        if isinstance(body, bytes) or body is None:
            stream = httpx.ByteStream(body or b"")
            return httpx.Request(method, url, headers=fields, stream=stream, extensions=extensions)
        return httpx.Request(method, url, headers=fields, content=body, extensions=extensions)

    def _broken(self, exc: Exception) -> Broken:
        import httpx

        why = self._secret.scrub(str(exc)) or "no reason given"
        hint = _hint(str(exc))
        unsent = isinstance(
            exc, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        )
        unusable = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError)
        hopeless = isinstance(exc, unusable)
        return Broken(
            f"{type(exc).__name__}: {why}{hint and '. '}{hint}",
            landed=not (unsent or hopeless),
            hopeless=hopeless or bool(hint),
            silent=isinstance(exc, httpx.ReadTimeout),
        )


class HttpxBody:
    """An answer whose body is read in parts."""

    def __init__(self, line: HttpxLine, response: httpx.Response) -> None:
        self._line, self._response = line, response
        self.status = response.status_code
        self.headers: Mapping[str, str] = _read_headers(response)
        self._parts = response.iter_bytes()

    def __enter__(self) -> HttpxBody:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def media(self) -> str:
        """The media type without parameters."""
        return media_of(self.headers)

    def read(self) -> bytes | Broken | None:
        """Return the next part; None at a clean end."""
        import httpx

        try:
            return next(self._parts, None)
        except (httpx.HTTPError, httpx.StreamError, OSError) as exc:
            return self._line._broken(exc)

    def close(self) -> None:
        """Give the connection back, or up where the body was not read to its end."""
        import httpx

        with contextlib.suppress(httpx.HTTPError, OSError):  # it is given up either way
            self._response.close()


class AsyncLine:
    """As `HttpxLine`, awaited: a connection for each wait, so that nothing stays open when its loop ends."""

    def __init__(self, line: HttpxLine) -> None:
        self._line = line

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        accept: str,
        read_timeout: float,
        payloads: int = 1,
    ) -> Answer | Broken:
        """Make one try and read its answer whole."""
        opened = await self.open(method, path, content=content, accept=accept, read_timeout=read_timeout)
        if isinstance(opened, Broken):
            return opened
        try:
            reading = Reading(opened, payloads)
            began = time.monotonic()
            while reading.goes_on:
                size = reading.size
                if time.monotonic() - began > read_timeout + size / _SLOWEST:
                    return Broken(f"the answer came too slowly: {size:,} bytes so far", landed=True)
                reading.take(await opened.read())
            return reading.outcome
        finally:
            await opened.close()

    async def open(
        self, method: str, path: str, *, content: bytes | None, accept: str, read_timeout: float
    ) -> AsyncBody | Broken:
        """Make one try and return its answer, to be read in parts."""
        import httpx

        client = httpx.AsyncClient(**self._line.options())
        seconds = max(read_timeout, 0.05)
        timeout = httpx.Timeout(
            connect=min(_CONNECT_SECONDS, seconds), read=seconds, write=_WRITE_SECONDS, pool=seconds
        )
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = MSGPACK
        try:
            request = client.build_request(
                method, self._line.url + path, headers=headers, content=content, timeout=timeout
            )
            patience = min(_CONNECT_SECONDS, seconds) + len(content or b"") / _SLOWEST + seconds
            async with asyncio.timeout(patience):
                response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as exc:
            await client.aclose()
            return self._line._broken(exc)
        except BaseException:
            await client.aclose()
            raise
        answer = AsyncBody(self._line, client, response)
        refused = squeezed(answer)
        if refused is not None:
            await answer.close()
        return refused or answer


class AsyncBody:
    """An answer whose body is awaited in parts."""

    def __init__(self, line: HttpxLine, client: httpx.AsyncClient, response: httpx.Response) -> None:
        self._line, self._client, self._response = line, client, response
        self.status = response.status_code
        self.headers: Mapping[str, str] = _read_headers(response)
        self._parts = response.aiter_bytes()

    @property
    def media(self) -> str:
        """The media type without parameters."""
        return media_of(self.headers)

    async def read(self) -> bytes | Broken | None:
        """Return the next part; None at a clean end."""
        import httpx

        try:
            return await anext(self._parts, None)
        except (httpx.HTTPError, httpx.StreamError, OSError) as exc:
            return self._line._broken(exc)

    async def close(self) -> None:
        """Give the connection up."""
        import httpx

        with contextlib.suppress(httpx.HTTPError, OSError):  # it is given up either way
            await self._response.aclose()
        await self._client.aclose()


def _read_headers(response: httpx.Response) -> dict[str, str]:
    """Return the headers by lower-case name; what came twice is joined, as HTTP has it."""
    read: dict[str, str] = {}
    for raw, value in response.headers.raw:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        read[name] = f"{read[name]}, {text}" if name in read else text
    return read


def _parts(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _PART):
        yield content[start : start + _PART]


def _hint(why: str) -> str:
    """Return what mends a connection that can come to nothing as it is; empty for one that may."""
    if "CERTIFICATE_VERIFY_FAILED" in why:
        if re.search("(?i)hostname mismatch|IP address mismatch", why):
            return "Its certificate is for another host: use the name that stands in it"
        if "expired" in why or "not yet valid" in why:
            return "Have its certificate renewed, or set this machine's clock"
        return "Set SSL_CERT_FILE to the certificate of the authority that signed it"
    if re.search("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST", why):
        return "It speaks plain HTTP there: write http://, or name the port that has TLS"
    if "illegal request line" in why:  # so the library says of an answer that begins in binary, as TLS does
        return "What answers there speaks no HTTP: where it is TLS, write https://"
    return ""
