"""`create_app`: the application of one control plane, put together from its rooms of routes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.types import Receive, Scope, Send

from lakeshore.errors import DispatchError
from lakeshore.planes.contract import Plane
from lakeshore.planes.store import Store
from lakeshore.server import code_repos, looking, page, probes, producing, storages, streams, working
from lakeshore.server.answers import Refusal, refused
from lakeshore.server.gate import Gate
from lakeshore.server.options import Options
from lakeshore.server.serving import Serving


class App:
    """A control plane as an ASGI application.

    Attributes
    ----------
    serving : Serving
        What its routes share; `serving.drain()` answers every wait before a stop.
    """

    def __init__(self, engine: Store, options: Options) -> None:
        self.serving = Serving(engine, options)
        routes: list[BaseRoute] = []
        for room in (working, producing, streams, looking, probes, storages, code_repos, page):
            routes += room.routes(self.serving)

        @contextlib.asynccontextmanager
        async def lifespan(_: object) -> AsyncIterator[None]:
            async with self.serving.running():
                yield

        self.routes = routes
        router = Router(routes, redirect_slashes=False, default=_nothing, lifespan=lifespan)
        self._gate = Gate(router, self.serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's own life."""
        await self._gate(scope, receive, send)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what no route is for."""
    request = Request(scope, receive)
    answer: Response = refused(request, Refusal("not_found", "nothing here. Check the path."))
    await answer(scope, receive, send)


def create_app(plane: Plane, options: Options | None = None) -> App:
    """Return the control plane of a store, as an ASGI application.

    Parameters
    ----------
    plane : Plane
        A plane that holds its rows itself (`Dispatch`, `PostgresDispatch`). All its namespaces are served;
        its own is that of workers who name none. It stays open until the caller closes it.
    options : Options, optional
        Limits, and whether tokens are wanted (they are).

    Raises
    ------
    DispatchError
        When `plane` is a control plane's client.

    Examples
    --------
    >>> from lakeshore import Dispatch
    >>> from lakeshore.server import create_app
    >>> app = create_app(Dispatch(":memory:"))  # then: uvicorn.run(app)
    """
    if not isinstance(plane, Store):
        raise DispatchError(
            f"create_app: {plane!r} holds no rows itself. Give it the store: Dispatch(path), or "
            "PostgresDispatch(dsn)."
        )
    return App(plane, options or Options())
