"""One verb's tries: what is asked again and for how long, and what an answer that is none says.

An answer in which the control plane speaks ends the tries, whatever it says. `doubt` tells that an earlier
try of the same call may have landed although its answer was lost.
"""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lakeshore.errors import ClaimLost, DispatchError, NotSupported, PlaneUnavailable
from lakeshore.planes import protocol
from lakeshore.planes.http_address import Address, Secret
from lakeshore.planes.http_headers import media_of, retry_after
from lakeshore.planes.http_steps import Rest, Steps
from lakeshore.planes.protocol import BODY_LIMIT, FRAMES, HEADER, MSGPACK, ROWS, TRY_AGAIN, Route

BINARY: Final = frozenset(
    {MSGPACK, "application/msgpack", "application/vnd.msgpack", "application/octet-stream", FRAMES, ROWS}
)
"""Media types of an answer that may be msgpack."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_SNIPPET: Final = 300
_LOOKED_AT: Final = 64 * 1024
"""As much of a body is looked at for its beginning."""
HOLD_MARGIN: Final = 10.0
"""Seconds that a held answer may take beyond its hold."""
_ACCEPT: Final = MSGPACK
_HARMLESS: Final = (protocol.AWAIT, protocol.GET)
"""A control plane in the field answers 500 while its own storage is away: these are then asked again."""
_YES: Final = (protocol.ACK, protocol.HEARTBEAT, protocol.RELEASE)
"""To these a success without a body, such as a 204, says all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: status, headers with lower-case names, and the body (its beginning, for an error)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """A try without an answer.

    Attributes
    ----------
    why : str
        Without any secret.
    landed : bool
        Whether the request may have reached the control plane.
    hopeless : bool
        Whether no other try can go better.
    silent : bool
        Whether nothing came in the time given.
    """

    why: str
    landed: bool
    hopeless: bool = False
    silent: bool = False


class Body(Protocol):
    """An answer that is read in parts."""

    @property
    def status(self) -> int:
        """The status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with lower-case names."""
        ...

    @property
    def media(self) -> str:
        """The media type without parameters."""
        ...

    def read(self) -> bytes | Broken | None:
        """Return the next part; None at a clean end."""
        ...

    def close(self) -> None:
        """Give the connection back, or up."""
        ...


class Line(ABC):
    """What makes one try; `http_line.py` has the one there is."""

    @abstractmethod
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
        """Make one try and read its answer whole, with as many payloads in it as were asked for."""

    @abstractmethod
    def open(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        accept: str,
        read_timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> Body | Broken:
        """Make one try and return its answer, to be read in parts.

        Parameters
        ----------
        path : str
            Or a whole URL of another server, which is asked without the token.
        headers : mapping, optional
            Go with, and over, those of every request.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the control plane said: the body of a success, and whether an earlier try may have landed."""

    body: dict[str, Any]
    doubt: bool = False


class Refused(Exception):
    """The control plane answered with an error; `error` is what the caller is to get, `status` why."""

    def __init__(self, status: int, error: DispatchError, *, doubt: bool) -> None:
        super().__init__(status)
        self.status, self.error, self.doubt = status, error, doubt


@dataclass(frozen=True, slots=True)
class Setback:
    """A try that is to be followed by another: what happened, and seconds to wait at least."""

    why: str
    landed: bool
    hopeless: bool = False
    at_least: float = 0.0
    busy: bool = False


class Tries:
    """Asks the control plane, as often as it takes.

    Attributes
    ----------
    ours : bool or None
        Whether it sends `Lakeshore-Protocol`; None while it has not answered.
    """

    def __init__(self, line: Line, address: Address, secret: Secret, timeout: float) -> None:
        self.line, self.address, self.secret, self.timeout = line, address, secret, timeout
        self.ours: bool | None = None
        self._trouble: tuple[float, float] | None = None  # since when nothing was answered, and last seen so

    def call(
        self,
        verb: str,
        route: Route,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        again: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Ask until there is an answer, for `timeout` seconds at most.

        Parameters
        ----------
        again : Mapping, optional
            The body to send instead once an earlier try may have landed.

        Raises
        ------
        Refused
            When it answered with an error.
        PlaneUnavailable
            When nothing that is an answer came in time.
        """
        content = None if body is None else protocol.pack(body)
        until = time.monotonic() + self.timeout
        doubt, tries = False, 0
        while True:
            outcome = self.once(verb, route, path, content, patience=until - time.monotonic(), doubt=doubt)
            if isinstance(outcome, Reply):
                return outcome
            if outcome.landed and not doubt:
                doubt = True
                content = content if again is None else protocol.pack(again)
            pause = self.pause(tries, outcome)
            if outcome.hopeless or time.monotonic() + pause > until:
                raise self.unavailable(verb, outcome, size=len(content or b""))
            time.sleep(pause)
            tries += 1

    def once(
        self,
        verb: str,
        route: Route,
        path: str,
        content: bytes | None = None,
        *,
        hold: float = 0.0,
        patience: float = HOLD_MARGIN,
        doubt: bool = False,
    ) -> Reply | Setback:
        """Ask once.

        Parameters
        ----------
        hold : float
            Seconds for which the control plane was asked to hold the answer.
        patience : float
            Seconds to wait for the answer beyond that, 1 at least.

        Raises
        ------
        Refused
            When it answered with an error.
        PlaneUnavailable
            When what came is no answer of a control plane.
        """
        outcome = self.line.send(
            route.method, path, content=content, accept=_ACCEPT, read_timeout=hold + max(patience, 1.0)
        )
        return self.read(verb, route, outcome, doubt=doubt, size=len(content or b""))

    def read(
        self, verb: str, route: Route, outcome: Answer | Broken, *, doubt: bool = False, size: int = 0
    ) -> Reply | Setback:
        """Return what came of one try; raises as `once` does."""
        setback = self.setback(outcome, harmless=route in _HARMLESS)
        if setback is not None:
            return setback
        assert isinstance(outcome, Answer)
        return self._read(verb, route, outcome, doubt=doubt, size=size)

    def ride_out(self, verb: str, setback: Setback, failures: int, until: float) -> Steps[bool]:
        """Wait before the next try of a verb that waits; False when `until` (monotonic) comes first.

        Raises
        ------
        PlaneUnavailable
            When nothing has been answered for `timeout` seconds.
        """
        if setback.hopeless or (self.away and not setback.busy):
            raise self.unavailable(verb, setback)
        pause = self.pause(failures, setback)
        left = until - time.monotonic()
        yield Rest(min(pause, left))
        return pause < left

    def setback(self, outcome: Answer | Broken | Body, *, harmless: bool = False) -> Setback | None:
        """Return why this outcome is to be tried again, or None where it is an answer.

        What is `harmless` to ask is asked again also after a 500, unless that is the word of our server.
        """
        if isinstance(outcome, Broken):
            setback = Setback(outcome.why, outcome.landed, outcome.hopeless)
        elif outcome.status in TRY_AGAIN or (
            harmless and outcome.status == 500 and HEADER.lower() not in outcome.headers
        ):
            busy = outcome.status == 429
            said = f"it answered {outcome.status}"
            if isinstance(outcome, Answer) and outcome.status == 500:
                said += f": {self.snippet(outcome.body)}"
            code, message = _error_of(outcome.body) if isinstance(outcome, Answer) else ("", "")
            if code == "plane_moved":
                return Setback(self.secret.scrub(message).rstrip("."), False, hopeless=True)
            setback = Setback(said, not busy, at_least=retry_after(outcome.headers), busy=busy)
        else:
            self._trouble = None
            if HEADER.lower() in outcome.headers:
                self.ours = True
            return None
        now = time.monotonic()
        self._trouble = (self._trouble[0] if self._trouble and now - self._trouble[1] < 10 else now, now)
        return setback

    @property
    def away(self) -> bool:
        """Whether nothing has been answered for `timeout` seconds, over all calls."""
        trouble = self._trouble
        return trouble is not None and trouble[1] - trouble[0] >= self.timeout

    def pause(self, tries: int, setback: Setback) -> float:
        """Return seconds to wait before the next try."""
        backoff = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tries, 10))
        return setback.at_least + backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def unavailable(self, verb: str, setback: Setback, *, size: int = 0) -> PlaneUnavailable:
        """Return the error for tries that are given up."""
        if setback.hopeless:
            return PlaneUnavailable(
                f"{verb}: the control plane at {self.address.url} cannot be used like this: {setback.why}."
            )
        wait = f" and asked for {setback.at_least:g} s" if setback.at_least else ""
        large = f" The body has {size:,} bytes, which it may not take." if size > BODY_LIMIT // 8 else ""
        return PlaneUnavailable(
            f"{verb}: the control plane at {self.address.url} does not answer ({setback.why}{wait}). "
            f"Check that it runs and can be reached from here; the call can be repeated.{large}"
        )

    # -- reading an answer ----------------------------------------------------

    def _read(self, verb: str, route: Route, answer: Answer, *, doubt: bool, size: int) -> Reply:
        if self.is_strange(answer):
            raise self.no_answer(verb, answer)
        if answer.status >= 300:
            raise Refused(answer.status, self.refusal(verb, route, answer, size=size), doubt=doubt)
        body, problem = None, ""
        if not answer.body and route in _YES:
            return Reply({}, doubt)
        if media_of(answer.headers) in BINARY:
            try:
                body = protocol.unpack(answer.body)
            except ValueError as exc:
                problem = str(exc)
        if body is None:
            raise self.no_answer(verb, answer, problem)
        self.ours = HEADER.lower() in answer.headers
        return Reply(body, doubt)

    def is_strange(self, answer: Answer) -> bool:
        """Whether a 404 is not the control plane's word: a proxy's page while it starts."""
        if answer.status != 404 or HEADER.lower() in answer.headers:
            return False
        return bool(self.ours) or media_of(answer.headers) == "text/html"

    def malformed(self, verb: str, problem: str) -> PlaneUnavailable:
        """Return the error for an answer whose body lacks what was asked for."""
        return PlaneUnavailable(
            f"{verb}: {self.address.url} answered, but not as a control plane does "
            f"({self.secret.scrub(problem)}). Check LAKESHORE_URL and the versions on both sides."
        )

    def no_answer(self, verb: str, answer: Answer, problem: str = "") -> PlaneUnavailable:
        """Return the error for a page or other bytes where a control plane's answer should be."""
        media = self.secret.scrub(answer.headers.get("content-type", "none"))[:100]
        problem = f", {problem}" if problem else ""
        return PlaneUnavailable(
            f"{verb}: {self.address.url} is no control plane, or something stands before it: status "
            f"{answer.status}, content type {media!r}{problem}, body {self.snippet(answer.body)!r}. "
            "Check LAKESHORE_URL, and whether a proxy wants a login."
        )

    def snippet(self, body: bytes) -> str:
        """Return the beginning of a body as one line, without any secret."""
        text = body[:_LOOKED_AT].decode("utf-8", "replace")
        if len(body) > _LOOKED_AT:  # what may be half a token goes, too
            text = self.secret.scrub(text)[: -_LOOKED_AT // 2]
        text = self._line_of(text)
        return text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}..."

    def _line_of(self, text: str) -> str:
        """Return a text from the network as one line, without any secret and with no control character."""
        line = " ".join(self.secret.scrub(text).split())
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)

    def refusal(self, verb: str, route: Route, answer: Answer, *, size: int = 0) -> DispatchError:
        """Return the error that an answer of status 300 or more tells of."""
        status, url = answer.status, self.address.url
        if status < 400:
            place = self.secret.scrub(answer.headers.get("location", "nowhere").partition("?")[0])[:200]
            return PlaneUnavailable(
                f"{verb}: {url} redirects to {place!r} ({status}), and redirects are not followed: nothing "
                "was done. Make the address it points to the base URL (LAKESHORE_URL)."
            )
        code, message = _error_of(answer.body)
        message = self._line_of(message)[:2000]
        if status == 413:
            limit = message or f"not stated; {BODY_LIMIT:,} bytes unless set otherwise"
            return DispatchError(
                f"{verb}: the payload of {size:,} bytes is more than {url} takes (413; its limit: {limit}). "
                "Write large data to a file with run.write, or to storage, and send its key instead."
            )
        said = message or self.snippet(answer.body) or "without a word"
        if status in (401, 403):
            why = "no valid token" if status == 401 else "the token is not for this"
            return DispatchError(
                f"{verb}: {url} refuses with {status}, {why}: {said.rstrip('.')}. "
                "Set LAKESHORE_CLIENT_TOKEN, or pass token= (a command: --token-file), with the role and "
                "namespace this needs."
            )
        absent = status in (404, 405, 501) and HEADER.lower() not in answer.headers
        if route.ours and absent:
            return self.not_supported(verb)
        kind = protocol.error_class(status, code)
        if kind is ClaimLost and message:
            return ClaimLost(message)
        if route in protocol.GUARDED and status in (404, 409):
            return ClaimLost(f"{verb}: {url} says the claim is lost ({status}: {said}). Drop this result.")
        return kind(f"{verb}: {url} answered {status}: {said}")

    def not_supported(self, verb: str, instead: str = "Upgrade it to use this.") -> NotSupported:
        """Return the error for a verb that the control plane lacks."""
        return NotSupported(
            f"{verb}: the control plane at {self.address.url} does not have it (it sends no {HEADER}). "
            f"{instead}"
        )


def _error_of(body: bytes) -> tuple[str, str]:
    """Return code and message of an error's body, in msgpack or JSON; empty for anything else."""
    read: Any = None
    try:
        read = protocol.unpack(body)
    except ValueError:
        try:
            read = json.loads(body)
        except (ValueError, RecursionError):
            return "", ""
    error = read.get("error") if isinstance(read, dict) else None
    if isinstance(error, dict):
        return str(error.get("code") or ""), str(error.get("message") or "")
    return "", error if isinstance(error, str) else ""
