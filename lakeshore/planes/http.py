"""`HttpDispatch`: a plane on a control plane over HTTP, made of the verbs' rooms (`http_*.py`)."""

from __future__ import annotations

from lakeshore import settings
from lakeshore.planes.contract import check_name, check_number
from lakeshore.planes.http_address import Address, Secret, origin, stored_token
from lakeshore.planes.http_async import AsyncWaits
from lakeshore.planes.http_files import Filing
from lakeshore.planes.http_line import AsyncLine, HttpxLine
from lakeshore.planes.http_producing import Producing
from lakeshore.planes.http_tries import Tries
from lakeshore.planes.http_working import Working


class HttpDispatch(Producing, Working, Filing):
    """A plane on a control plane, spoken to over HTTP.

    Connect errors, dropped connections, 429 and 502 to 504 are tried again with jittered backoff. Every
    verb blocks; threads may share the object, and a forked child gets connections of its own.

    Parameters
    ----------
    base_url : str
        ``https://HOST[:PORT][/PREFIX]``. Plain ``http://`` is taken on loopback only.
    token : str, optional
        Sent in the Authorization header and shown nowhere; ``""`` for none. By default
        ``LAKESHORE_CLIENT_TOKEN``, unless ``LAKESHORE_URL`` names another host or port than `base_url`: it
        is then meant for that one, and is not sent here. Else what a control plane on this machine left in
        ``LAKESHORE_HOME`` for this URL and this user.
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
        secret = Secret(_token_for(address.url) if token is None else token)
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
    def timeout(self) -> float:
        """Seconds for which a verb is tried while the control plane does not answer."""
        return self._tries.timeout

    def with_timeout(self, seconds: float) -> HttpDispatch:
        """Return the same plane with another `timeout`, for a look that is to be quick.

        It shares connections and all that is known of the control plane; closing one closes both.

        Parameters
        ----------
        seconds : float
            Its `timeout`.

        Raises
        ------
        ValueError
            When `seconds` is no number of 0 or more.
        """
        seconds = check_number(seconds, "timeout", minimum=0)
        tries = self._tries
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._tries = Tries(tries.line, tries.address, tries.secret, seconds)
        other._tries.ours = tries.ours
        return other

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


def _token_for(url: str) -> str | None:
    """Return the token that this process has for a control plane."""
    environment = settings.read()
    meant = environment.token is not None
    if meant and environment.url is not None:
        try:
            meant = origin(environment.url) == origin(url)
        except ValueError:
            meant = False  # an address that cannot be read is not this one
    return environment.token if meant else stored_token(environment.home, url)
