"""What tells of the server itself: alive, ready, metrics, and its routes as OpenAPI."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshore.errors import LakeshoreError
from lakeshore.planes import protocol
from lakeshore.planes.store_tokens import EVERYWHERE
from lakeshore.server.answers import PROTOCOL, Refusal, in_json, refused
from lakeshore.server.metrics import MEDIA, PATIENCE
from lakeshore.server.openapi import document
from lakeshore.server.serving import ADMINS, Answered, Call, Serving


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""

    async def healthz(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/healthz"
        return in_json({"ok": True})

    looks: list[asyncio.Future[object]] = []

    async def look() -> None:
        """Ask the store something; one look at a time, however many probes ask."""
        if not looks or looks[0].done():
            looks[:] = [asyncio.ensure_future(serving.read(serving.plane(serving.ns).holder, "0"))]
        done, _ = await asyncio.wait(looks, timeout=PATIENCE)
        if not done:
            told = f"the store has not answered within {PATIENCE:g} s."
            raise Refusal("plane_unavailable", told, retry_after=1)
        await looks[0]

    async def readyz(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/readyz"
        try:
            if serving.moved is not None:
                raise Refusal("plane_moved", "the store is closed: it was moved, or is being filled.")
            if serving.draining:
                raise Refusal("plane_unavailable", "the server is about to stop.", retry_after=1)
            await look()
            serving.metrics.warm()
        except (Refusal, LakeshoreError) as exc:
            return refused(request, exc)
        return in_json({"ok": True})

    async def openapi(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/openapi.json"
        return in_json(document(auth=serving.options.auth))

    async def metrics(call: Call) -> Response:
        ns = None if call.token is None or call.token.ns == EVERYWHERE else call.token.ns
        return Response(await serving.read(serving.metrics.text, ns), headers=PROTOCOL, media_type=MEDIA)

    return [
        Answered("/healthz", healthz, methods=["GET"]),
        Answered("/readyz", readyz, methods=["GET"]),
        Answered("/openapi.json", openapi, methods=["GET"]),
        serving.route(protocol.Route("GET", "/metrics"), metrics, ADMINS),
    ]
