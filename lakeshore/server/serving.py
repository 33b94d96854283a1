"""`Serving`: what every route of one server is given, and who is calling.

A room of routes (`server/producing.py`, ...) exports ``routes(serving) -> list[Route]`` made with
`Serving.route`, which checks the caller, reads the names in the path, and turns errors into answers.
No state lives here but open requests: a second server of the same store knows as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lakeshore.errors import DispatchError, LakeshoreError, PlaneUnavailable
from lakeshore.planes import protocol
from lakeshore.planes.protocol_values import SMALL_LIMIT
from lakeshore.planes.store import Store
from lakeshore.planes.store_notes import Notes
from lakeshore.planes.store_sparing import Sparing
from lakeshore.planes.store_tokens import EVERYWHERE, Token, Tokens
from lakeshore.planes.store_within import Presence, Within, check_namespace, name_of
from lakeshore.server.answers import Refusal, packed, refused
from lakeshore.server.bodies import Bodies
from lakeshore.server.hearing import Ear, Hearing
from lakeshore.server.metrics import Metrics
from lakeshore.server.options import Options

T = TypeVar("T")
_log = logging.getLogger("lakeshore.server")
EVERYONE: Final = frozenset({"producer", "worker", "admin"})
PRODUCERS: Final = frozenset({"producer", "admin"})
WORKERS: Final = frozenset({"worker", "admin"})
ADMINS: Final = frozenset({"admin"})
_WRITERS: Final = 4
_READERS: Final = 6
_KEPT: Final = 1000
REJOIN_SECONDS: Final = 15.0
"""How long workers have to be heard again after an outage, before others may take their jobs."""
_FORGET_SECONDS: Final = 30 * 86400.0
_FORGET_FIRST: Final = 600.0
"""A server that is started again every day removes what is old, too."""
_FORGET_EVERY: Final = 6 * 3600.0
_MOVED_SECONDS: Final = 1.0
"""How often it is looked whether the store was moved, and noted how long it was served."""


@dataclass(slots=True)
class Call:
    """One request, checked.

    Attributes
    ----------
    request : Request
        As it came.
    token : Token or None
        Of whom; None with `auth` off.
    names : dict
        The names in the path, decoded; without `ns`.
    ns : str
        The namespace it is about.
    body : dict
        The msgpack body of a POST, empty for others.
    """

    request: Request
    token: Token | None
    ns: str
    names: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)

    def query(self, name: str, default: str | None = None) -> str | None:
        """Return a query parameter."""
        return self.request.query_params.get(name, default)

    def whole(self, name: str, default: int) -> int:
        """Return a query parameter that is a whole number; raises `ValueError` naming it."""
        text = self.query(name)
        if text is None:
            return default
        if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 400:
            raise ValueError(f"{name}: wants a whole number, got {text[:40]!r}")
        return int(text)


class Answered(Route):
    """A route that refuses other methods as everything else here is refused."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say which methods there are."""
        if self.methods and scope["method"] not in self.methods:
            allowed = ", ".join(sorted(self.methods))
            answer = refused(Request(scope, receive), Refusal("wrong_method", f"wants {allowed}."))
            answer.headers["Allow"] = allowed
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)


Answering = Callable[[Call], Awaitable[Mapping[str, Any] | Response]]


class Serving:
    """One server of a store.

    Parameters
    ----------
    engine : Store
        The store, open; whoever opened it closes it.
    options : Options
        What is allowed.
    """

    def __init__(self, engine: Store, options: Options) -> None:
        self.engine, self.options = engine, options
        self.ns = name_of(engine)
        self.tokens, self.notes = Tokens(engine), Notes(engine)
        self.hearing = Hearing(engine)
        self.metrics = Metrics(self)
        self.bodies = Bodies(options)
        self.moved: str | None = None
        self.started_at = time.time()
        self.every_so_often: list[Callable[[], None]] = [
            functools.partial(self.notes.forget, older_than=_FORGET_SECONDS)
        ]
        self._planes: dict[str, Within] = {}
        self._streams: dict[str, int] = {}
        self._writers: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._lookers: ThreadPoolExecutor | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._was_away, self._sparing, self._spared = True, asyncio.Lock(), Sparing(engine)
        self._counting = False

    # -- the life of a server ---------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve within the block: threads for the store's verbs, ears for its commits."""
        self._writers = ThreadPoolExecutor(_WRITERS, "lakeshore-writes")
        self._readers = ThreadPoolExecutor(_READERS, "lakeshore-reads")
        self._lookers = ThreadPoolExecutor(1, "lakeshore-looks")
        self.hearing.start()
        self._planes.clear()  # their bells are overheard from now on
        self._was_away = True
        with contextlib.suppress(PlaneUnavailable):  # then with the first write that it takes
            await self._spare()
        for chore in (self._forget_now_and_then(), self._look_where_it_is()):
            self._chores.append(asyncio.get_running_loop().create_task(chore))
        try:
            yield
        finally:
            for task in self._chores:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self.hearing.close()
            self._writers.shutdown(wait=True)
            self._readers.shutdown(wait=True)
            self._lookers.shutdown(wait=True)

    def drain(self) -> None:
        """Answer every poll and end every stream now: the server is about to stop. In the loop's thread."""
        self.hearing.drain()

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self.hearing.draining

    async def _forget_now_and_then(self) -> None:
        pause = _FORGET_FIRST
        while True:
            await asyncio.sleep(pause)
            pause = _FORGET_EVERY
            for chore in self.every_so_often:
                try:
                    await self.write(chore)
                except (DispatchError, OSError, ValueError) as exc:  # the store is away, say; there is time
                    _log.warning("what is old was not removed (%s: %s)", type(exc).__name__, exc)

    async def _look_where_it_is(self) -> None:
        """Note a store that `lakeshore migrate` closed: reads would go on to show what it was."""
        while True:
            await asyncio.sleep(_MOVED_SECONDS)
            with contextlib.suppress(DispatchError):  # away: whoever asks is told
                was, self.moved = self.moved, await self.read(self.plane(self.ns).moved)
                if was is None and self.moved is not None:
                    _log.error("%s", self.moved)
                if (was is None) is not (self.moved is None):
                    self.hearing.send_away(self.moved is not None)
                if self._counting and self.moved is None:
                    self._counting = await self.write(self._spared.served, _MOVED_SECONDS)

    # -- the store --------------------------------------------------------------

    def plane(self, ns: str, presence: Presence | None = None, token: Token | None = None) -> Within:
        """Return a namespace of the store; `presence` and `token` for one that claims."""
        if presence is not None:
            return Within(self.engine, ns, presence, None if token is None else token.digest)
        plane = self._planes.get(ns)
        if plane is None:
            if len(self._planes) > _KEPT:
                self._planes.clear()
            plane = self._planes[ns] = Within(self.engine, ns)
        return plane

    def namespaces(self) -> list[str]:
        """Return the namespaces that have tokens, and the store's own."""
        named = {token.ns for token in self.tokens.list() if token.live} - {EVERYWHERE}
        return sorted(named | {self.ns} | set(self._planes))

    async def write(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a verb that writes in a thread."""
        if self._was_away:
            await self._spare()
        return await self._run(self._writers, verb, *args, **kwargs)

    async def read(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a verb that only looks in a thread; no write, however long, keeps it from one."""
        return await self._run(self._readers, verb, *args, **kwargs)

    async def look(self, verb: Callable[..., T], *args: Any) -> T:
        """Run what looks at much, and again and again, in the one thread for that."""
        return await self._run(self._lookers, verb, *args)

    async def _run(
        self, threads: ThreadPoolExecutor | None, verb: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        assert threads is not None
        call = functools.partial(verb, *args, **kwargs) if kwargs else verb
        rest = () if kwargs else args
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, call, *rest)
        except PlaneUnavailable:
            self._was_away = True
            raise

    async def _spare(self) -> None:
        """Begin anew after an outage, of this server or of the store.

        Nobody could extend a lease meanwhile. Whoever asks first would take jobs whose workers live.
        """
        async with self._sparing:
            if self._was_away:
                await self._run(self._writers, self._spared.begin, REJOIN_SECONDS)
                self._was_away, self._counting = False, True

    # -- who calls ---------------------------------------------------------------

    async def caller(self, request: Request) -> Token | None:
        """Return the caller's token, None with `auth` off.

        Raises
        ------
        Refusal
            When there is no token, or none that is good (401); when the store was moved (503).
        """
        if not self.options.auth:
            self._refuse_moved()
            return None
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise Refusal(
                "unauthorized",
                "no token. Send it as Authorization: Bearer TOKEN (token=, LAKESHORE_CLIENT_TOKEN); make one "
                "with: lakeshore token create",
            )
        token = self.tokens.remembered(text) or await self.read(self.tokens.find, text)
        if token is None:
            raise revoked()
        self._refuse_moved()
        if self.tokens.used(token):
            await self.write(self.tokens.note_use, token)
        request.scope["lakeshore.token"] = token.id
        return token

    def _refuse_moved(self) -> None:
        if self.moved is not None:
            raise Refusal("plane_moved", self.moved)

    async def still_good(self, call: Call) -> bool:
        """Whether a call's token is still good; for one that is open for long, before it is told more."""
        if call.token is None:
            return True
        text = call.request.headers.get("authorization", "").partition(" ")[2].strip()
        return (self.tokens.remembered(text) or await self.read(self.tokens.find, text)) is not None

    def allowed(self, token: Token | None, ns: str, roles: frozenset[str]) -> None:
        """Raise `Refusal` unless a caller may act in `ns` (404) with one of these roles (403)."""
        if token is None:
            return
        if token.ns not in (EVERYWHERE, ns):
            raise Refusal("not_found", "nothing here. Check the path and the namespace.")
        if token.role not in roles:
            wanted = " or ".join(f"{_article(role)} {role}" for role in sorted(roles))
            raise Refusal(
                "forbidden",
                f"{_article(token.role)} {token.role} token may not do this; it wants {wanted} token.",
            )

    def is_maker(self, token: Token | None, row: int, fence: int) -> bool:
        """Whether a claim was made with this token, or the caller may act for whoever made it. Blocks."""
        if token is None or token.role == "admin":
            return True
        return self.notes.claimer(row, fence) == token.digest

    # -- routes ------------------------------------------------------------------

    def route(
        self,
        route: protocol.Route,
        answer: Answering,
        roles: frozenset[str] = EVERYONE,
        *,
        body: bool = True,
        most: int | None = SMALL_LIMIT,
    ) -> Route:
        """Return the route that answers with `answer`.

        Parameters
        ----------
        route : protocol.Route
            Its method and path.
        answer : coroutine function
            Given the `Call`; returns the map to send as msgpack, or a response. What it raises of ours or
            as `ValueError` becomes an error's answer.
        roles : frozenset of str
            Whose tokens may call it.
        body : bool
            Whether a POST's msgpack body is read before `answer` is called.
        most : int or None
            The most bytes of that body; None, for a route that takes payloads, is `Options.body_limit`.
        """
        reads = body and route.method == "POST"
        in_path = "{ns}" in route.template

        async def endpoint(request: Request) -> Response:
            request.scope["lakeshore.route"] = route.template
            try:
                token = await self.caller(request)
                names = {name: _decoded(value, name) for name, value in request.path_params.items()}
                if in_path:
                    ns = check_namespace(names.pop("ns"))
                    self.allowed(token, ns, roles)
                content = await self.bodies.read_map(request, most) if reads else {}
                if not in_path:
                    ns = self._named(token, content)
                    self.allowed(token, ns, roles)
                request.scope["lakeshore.ns"] = ns
                answered = await answer(Call(request, token, ns, names, content))
            except (Refusal, ValueError, LakeshoreError) as exc:
                return refused(request, exc)
            except ClientDisconnect:
                return Response(status_code=499)  # nobody is there to read it
            finally:
                self.bodies.let_go(request)
            return answered if isinstance(answered, Response) else packed(answered)

        return Answered(route.template, endpoint, methods=[route.method])

    def _named(self, token: Token | None, body: Mapping[str, Any]) -> str:
        """Return the namespace of a worker's request: clients in the field name none."""
        ns: str | None = protocol.field(body, "namespace", str, None)
        if ns is not None:
            return check_namespace(ns)
        return self.ns if token is None or token.ns == EVERYWHERE else token.ns

    # -- waiting -----------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def listening(
        self, call: Call, topic: str | list[str], peek: Callable[[], bool], *, one: bool = False
    ) -> AsyncIterator[tuple[Ear, asyncio.Task[None]]]:
        """Give the block an ear for `topic`, and a task that is done once the client has gone away.

        With a list of topics it hears this process alone: who asks so looks by himself, now and then.
        """
        hearing = self.hearing
        ears = hearing.ear(topic, peek, one=one) if isinstance(topic, str) else hearing.ear_of_many(topic)
        with ears as ear:
            gone = asyncio.get_running_loop().create_task(_until_gone(call.request))
            gone.add_done_callback(lambda _: ear.ring())
            try:
                yield ear, gone
            finally:
                if not gone.done():
                    gone.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await gone

    @contextlib.contextmanager
    def open_stream(self, call: Call) -> Iterator[None]:
        """Count a stream while it is open; raises `Refusal` (429) where its token has as many as it may."""
        owner = "" if call.token is None else call.token.digest
        count = self._streams.get(owner, 0)
        if count >= self.options.streams:
            raise Refusal(
                "too_many",
                f"{count} streams are open with this token, the most there may be. Close some.",
                retry_after=5,
            )
        self._streams[owner] = count + 1
        try:
            yield
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(self._streams.values())


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def revoked() -> Refusal:
    """Return the refusal of a token that is not, or no longer, good."""
    return Refusal("unauthorized", "the token is unknown, revoked or expired. See: lakeshore token list")


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"


def _decoded(value: str, name: str) -> str:
    """Return a name in a path: what the client percent-encoded, as text."""
    try:
        return unquote_to_bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name}: wants UTF-8, percent-encoded") from None
