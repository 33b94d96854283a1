"""`HttpDispatch`: a plane on a control plane over HTTP. The only importer of httpx, at first construction.

What the HTTP library raises ends here: a try comes out as an answer or as `Broken`, a value without the
request (and so without the token) that its exceptions hold on to.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakeshore.errors import DispatchError, PlaneUnavailable
from lakeshore.planes.contract import check_name, check_number
from lakeshore.planes.http_address import Address, Secret
from lakeshore.planes.http_async import AsyncWaits
from lakeshore.planes.http_files import Filing
from lakeshore.planes.http_producing import Producing
from lakeshore.planes.http_tries import BINARY, Answer, Broken, Line, Tries
from lakeshore.planes.http_working import Working
from lakeshore.planes.protocol import MSGPACK
from lakeshore.version import __version__

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS: Final = 10.0
_WRITE_SECONDS: Final = 60.0
_PART: Final = 1024 * 1024
_ERROR_PART: Final = 64 * 1024
_ANSWER_LIMIT: Final = 1024 * 1024 * 1024
_SLOWEST: Final = 1024
"""Bytes a second below which a body is given up."""


class HttpDispatch(Producing, Working, Filing):
    """A plane on a control plane, spoken to over HTTP.

    Connect errors, dropped connections, 429 and 502 to 504 are tried again with jittered backoff. Every
    verb blocks; threads may share the object, and a forked child gets connections of its own.

    Parameters
    ----------
    base_url : str
        ``https://HOST[:PORT][/PREFIX]``. Plain ``http://`` is taken on loopback only.
    token : str, optional
        Sent in the Authorization header and shown nowhere.
    namespace : str
        Default ``"default"``.
    timeout : float
        Seconds for which a verb is tried while the control plane does not answer, default 30. A wait that
        a verb asks for (`result`, `claim`, `journal_read`) comes on top.
    insecure : bool
        Take plain ``http://`` to another machine: token and jobs cross the network in clear.

    Raises
    ------
    DispatchError
        When the URL or the token may not be used (a `ValueError` too); nothing is sent.

    Notes
    -----
    Certificates are checked against the system-wide bundle that Python packages share, or against
    ``SSL_CERT_FILE`` / ``SSL_CERT_DIR`` where set. ``HTTPS_PROXY`` and ``NO_PROXY`` are honoured, but for
    loopback. Against a control plane that does not send ``Lakeshore-Protocol``, leases cannot be extended,
    delays and listings raise `NotSupported`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        namespace: str = "default",
        timeout: float = 30.0,
        insecure: bool = False,
    ) -> None:
        address = Address.read(base_url, insecure=insecure)
        namespace = check_name(namespace, "namespace")
        timeout = check_number(timeout, "timeout", minimum=0)
        secret = Secret(token)
        super().__init__(Tries(HttpxLine(address, secret), address, secret, timeout), namespace)

    @property
    def trusted(self) -> bool:
        """False: whoever may submit over the network is not this user."""
        return False

    @property
    def namespace(self) -> str:
        """The namespace whose jobs these are."""
        return self._ns

    @property
    def native_async(self) -> AsyncWaits:
        """The verbs that wait (`result`, `claim`, `claim_many`, `journal_read`), to be awaited.

        They hold no thread: use them where an event loop runs, with as many waits at once as it takes.
        """
        line = self._tries.line
        assert isinstance(line, HttpxLine)
        return AsyncWaits(self, AsyncLine(line))

    def close(self) -> None:
        """Close every connection. Verbs after this raise `DispatchError`; a second close does nothing."""
        self._tries.line.close()

    def __repr__(self) -> str:
        return f"HttpDispatch({self._tries.address.url!r}, namespace={self._ns!r})"

    def __reduce__(self) -> str:
        raise TypeError("a control plane's client is not pickled: make an HttpDispatch where it is used")


class HttpxLine(Line):
    """The pooled client of this process."""

    def __init__(self, address: Address, secret: Secret) -> None:
        self._address, self._secret = address, secret
        self._closed = False
        self._verify: ssl.SSLContext | bool | None = None
        self._client = self._connect()
        self._pid = os.getpid()
        self._inherited: list[httpx.Client] = []
        self._tokenless: httpx.Client | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        return self._address.url

    def options(self) -> dict[str, Any]:
        """Return what every client of this line is made with."""
        if self._closed:
            raise DispatchError("this HttpDispatch cannot be used: it was closed. Make a new one.")
        return {
            "headers": {"User-Agent": f"lakeshore/{__version__}", **self._secret.headers()},
            "verify": self._verify,
            "trust_env": not self._address.loopback,
            "follow_redirects": False,
        }

    def _connect(self) -> httpx.Client:
        import httpx

        problem = ""
        try:
            if self._verify is None:
                self._verify = _certificates() if self._address.secure else False
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0)
            return httpx.Client(**self.options(), limits=limits)
        except (
            OSError,
            ImportError,
            ValueError,
            httpx.InvalidURL,
        ) as exc:  # a proxy's URL may hold a password
            problem = type(exc).__name__
        raise PlaneUnavailable(
            f"HttpDispatch: the environment's certificates or proxy cannot be used ({problem}). "
            "Check SSL_CERT_FILE, SSL_CERT_DIR, HTTP_PROXY, HTTPS_PROXY and ALL_PROXY."
        )

    def _mine(self) -> httpx.Client:
        if self._pid != os.getpid():
            # The pool's lock may have been held as the process forked; its sockets are the parent's.
            self._inherited.append(self._client)
            self._client = self._connect()
            self._tokenless = None
            self._pid = os.getpid()
        if self._closed:
            raise DispatchError("this HttpDispatch cannot be used: it was closed. Make a new one.")
        return self._client

    def _strange(self) -> httpx.Client:
        """Return a client for another server's signed URLs: it has no token to give away."""
        import httpx

        if self._tokenless is None:
            agent = {"User-Agent": f"lakeshore/{__version__}"}
            self._tokenless = httpx.Client(headers=agent, verify=_certificates(), follow_redirects=False)
        return self._tokenless

    def close(self) -> None:
        """Close every connection."""
        if not self._closed:
            client = self._mine()
            self._closed = True
            client.close()
            if self._tokenless is not None:
                self._tokenless.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        accept: str,
        read_timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | Broken:
        """Make one try and read its answer whole."""
        opened = self.open(
            method, path, content=content, accept=accept, read_timeout=read_timeout, headers=headers
        )
        if isinstance(opened, Broken):
            return opened
        with opened:
            wanted = _ANSWER_LIMIT if opened.status < 400 and opened.media in BINARY else _ERROR_PART
            parts: list[bytes] = []
            size, began = 0, time.monotonic()
            while size < wanted:
                if time.monotonic() - began > read_timeout + size / _SLOWEST:
                    return Broken(f"the answer came too slowly: {size:,} bytes so far", landed=True)
                part = opened.read()
                if isinstance(part, Broken):
                    if opened.status < 400:
                        return part
                    break  # the status says enough
                if part is None:
                    break
                parts.append(part)
                size += len(part)
            return Answer(opened.status, opened.headers, b"".join(parts))

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
        if not path.startswith("/"):
            client, url = self._strange(), path
        else:
            url = self._address.url + path
        told = {"Accept": accept}
        if accept != MSGPACK:
            told["Accept-Encoding"] = "identity"  # a compressing proxy would hold frames back
        body: bytes | Iterable[bytes] | None = content
        if content is not None:
            told |= {"Content-Type": MSGPACK, "Content-Length": str(len(content))}
            if len(content) > _PART:
                body = _parts(content)
        seconds = max(read_timeout, 0.05)
        timeout = httpx.Timeout(
            connect=min(_CONNECT_SECONDS, seconds), read=seconds, write=_WRITE_SECONDS, pool=seconds
        )
        try:
            request = client.build_request(
                method, url, headers={**told, **(headers or {})}, content=body, timeout=timeout
            )
            response = client.send(request, stream=True)
        except (httpx.HTTPError, OSError) as exc:
            return self._broken(exc)
        except RuntimeError:  # closed by another thread since
            if not self._closed:
                raise
        else:
            return HttpxBody(self, response)
        self._mine()
        raise AssertionError("a closed client answered")

    def _broken(self, exc: Exception) -> Broken:
        import httpx

        why = self._secret.scrub(str(exc)) or "no reason given"
        certificate = "CERTIFICATE_VERIFY_FAILED" in why
        unsent = isinstance(
            exc, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        )
        hopeless = isinstance(exc, (httpx.UnsupportedProtocol, httpx.LocalProtocolError))
        if certificate:
            why += ". Set SSL_CERT_FILE to the certificate of the authority that signed it"
        return Broken(
            f"{type(exc).__name__}: {why}",
            landed=not (unsent or hopeless),
            hopeless=hopeless or certificate,
            silent=isinstance(exc, httpx.ReadTimeout),
        )


class HttpxBody:
    """An answer whose body is read in parts."""

    def __init__(self, line: HttpxLine, response: httpx.Response) -> None:
        self._line, self._response = line, response
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._parts = response.iter_bytes()

    def __enter__(self) -> HttpxBody:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def media(self) -> str:
        """The media type without parameters."""
        return self.headers.get("content-type", MSGPACK).partition(";")[0].strip().lower()

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
        self, method: str, path: str, *, content: bytes | None, accept: str, read_timeout: float
    ) -> Answer | Broken:
        """Make one try and read its answer whole."""
        opened = await self.open(method, path, content=content, accept=accept, read_timeout=read_timeout)
        if isinstance(opened, Broken):
            return opened
        try:
            parts: list[bytes] = []
            size = 0
            while size < (_ANSWER_LIMIT if opened.status < 400 and opened.media in BINARY else _ERROR_PART):
                part = await opened.read()
                if isinstance(part, Broken):
                    if opened.status < 400:
                        return part
                    break  # the status says enough
                if part is None:
                    break
                parts.append(part)
                size += len(part)
            return Answer(opened.status, opened.headers, b"".join(parts))
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
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if content is not None:
            headers["Content-Type"] = MSGPACK
        try:
            request = client.build_request(
                method, self._line.url + path, headers=headers, content=content, timeout=timeout
            )
            response = await client.send(request, stream=True)
        except (httpx.HTTPError, OSError) as exc:
            await client.aclose()
            return self._line._broken(exc)
        except BaseException:
            await client.aclose()
            raise
        return AsyncBody(self._line, client, response)


class AsyncBody:
    """An answer whose body is awaited in parts."""

    def __init__(self, line: HttpxLine, client: httpx.AsyncClient, response: httpx.Response) -> None:
        self._line, self._client, self._response = line, client, response
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._parts = response.aiter_bytes()

    @property
    def media(self) -> str:
        """The media type without parameters."""
        return self.headers.get("content-type", MSGPACK).partition(";")[0].strip().lower()

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


def _parts(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _PART):
        yield content[start : start + _PART]


def _certificates() -> ssl.SSLContext:
    import certifi

    env = os.environ
    file, folder = env.get("SSL_CERT_FILE"), env.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
