"""What tells of the server itself: alive, ready, metrics, and its routes as OpenAPI."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshore.errors import LakeshoreError
from lakeshore.planes import protocol
from lakeshore.server.answers import PROTOCOL, Refusal, in_json, refused
from lakeshore.server.metrics import MEDIA
from lakeshore.server.openapi import document
from lakeshore.server.serving import ADMINS, Answered, Call, Serving


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""

    async def healthz(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/healthz"
        return in_json({"ok": True})

    async def readyz(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/readyz"
        try:
            if serving.draining:
                raise Refusal("plane_unavailable", "the server is about to stop.", retry_after=1)
            await serving.read(serving.plane(serving.ns).holder, "0")
            serving.metrics.warm()
        except (Refusal, LakeshoreError) as exc:
            return refused(request, exc)
        return in_json({"ok": True})

    async def openapi(request: Request) -> Response:
        request.scope["lakeshore.route"] = "/openapi.json"
        return in_json(document(auth=serving.options.auth))

    async def metrics(call: Call) -> Response:
        return Response(await serving.read(serving.metrics.text), headers=PROTOCOL, media_type=MEDIA)

    return [
        Answered("/healthz", healthz, methods=["GET"]),
        Answered("/readyz", readyz, methods=["GET"]),
        Answered("/openapi.json", openapi, methods=["GET"]),
        serving.route(protocol.Route("GET", "/metrics"), metrics, ADMINS),
    ]
