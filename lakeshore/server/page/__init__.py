"""The web page of a control plane: its queues, jobs and workers, and one job as it runs.

The page is rendered here, from rows. What a job yielded is never decoded on the server: the browser follows
the same streams as any client (`static/page.js`) and shows them as text. A caller is known by its token
alone, which the page keeps for its tab and sends as every client does; there are no cookies, so no other
site can act in its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshore.errors import LakeshoreError
from lakeshore.planes import protocol
from lakeshore.planes.contract import check_id, check_name
from lakeshore.planes.engine import check_state
from lakeshore.planes.store_tokens import EVERYWHERE
from lakeshore.planes.store_within import check_namespace
from lakeshore.server.answers import PROTOCOL, Refusal, refused
from lakeshore.server.page import views
from lakeshore.server.serving import EVERYONE, Answered, Call, Serving
from lakeshore.states import State
from lakeshore.version import __version__

ASSETS: Final = {"page.css": "text/css", "page.js": "text/javascript", "msgpack.js": "text/javascript"}
"""The page's files, and their media types."""
_CHECKS: Final[Mapping[str, Callable[[str, str], str]]] = {
    **dict.fromkeys(("find", "queue"), check_name),
    "state": lambda value, _: check_state(value),
    **dict.fromkeys(("before", "job"), lambda value, name: check_id(value, f"{name}'s id")),
}
_GUARDS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What a browser is told to refuse, so that nothing a job or a client named can run in the page."""


def routes(serving: Serving) -> list[Route]:
    """Return the routes of this room."""
    page = Page(serving)
    view = protocol.Route("GET", "/page/view")
    return [
        Answered("/", page.shell, methods=["GET"]),
        serving.route(view, page.view, EVERYONE),
        *(Answered(f"/page/{name}", partial(asset, name), methods=["GET"]) for name in ASSETS),
    ]


class Page:
    """The page of one server."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def shell(self, request: Request) -> Response:
        """Answer with the whole page; its content too, where no token is wanted."""
        request.scope["lakeshore.route"] = "/"
        auth, content = self._serving.options.auth, ""
        if not auth:
            try:
                content = await self._rendered(Call(request, None, self._serving.ns))
            except (Refusal, ValueError, LakeshoreError) as exc:
                content = template("problem.html").render(message=str(exc))
        text = template("shell.html").render(auth=auth, content=content, version=__version__, mark=mark())
        return html(text)

    async def view(self, call: Call) -> Response:
        """Answer with the part of the page that changes, or 304 where it is as the browser has it."""
        try:
            text = await self._rendered(call)
        except (Refusal, ValueError, LakeshoreError) as exc:
            return refused(call.request, exc)
        tag = f'"{hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]}"'
        if call.request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**PROTOCOL, "ETag": tag})
        return html(text, ETag=tag)

    async def _rendered(self, call: Call) -> str:
        serving, token = self._serving, call.token
        ns = check_namespace(call.query("ns") or call.ns)
        serving.allowed(token, ns, EVERYONE)
        everywhere = token is None or token.ns == EVERYWHERE
        names = await serving.read(serving.namespaces) if everywhere else [ns]
        asked = {name: call.query(name) or "" for name in ("find", "queue", "state", "before", "job")}
        for name, check in _CHECKS.items():
            if asked[name].strip():
                check(asked[name], name)
        plane = serving.plane(ns)
        if asked["job"]:
            name, shown = "job.html", await serving.read(views.job, plane, asked["job"])
        elif any(asked.values()) or call.query("jobs"):
            name, shown = "jobs.html", await serving.read(views.jobs, plane, asked)
        else:
            name, shown = "overview.html", await serving.read(views.overview, plane)
        return template(name).render(
            ns=ns,
            namespaces=sorted({ns, *names}),
            everywhere=everywhere,
            role="everyone" if token is None else token.role,
            states=[str(state) for state in State],
            asked=asked,
            link=partial(link, ns),
            **shown,
        )


async def asset(name: str, request: Request) -> Response:
    """Answer with a file of the page."""
    request.scope["lakeshore.route"] = f"/page/{name}"
    headers = {**PROTOCOL, **_GUARDS, "Cache-Control": "public, max-age=3600"}
    return Response(_read(name), headers=headers, media_type=ASSETS[name])


def html(text: str, **headers: str) -> Response:
    """Return an answer in HTML that nobody keeps and no other site may frame."""
    data = text.encode("utf-8", "backslashreplace")
    return Response(
        data, headers={**PROTOCOL, **_GUARDS, "Cache-Control": "no-store", **headers}, media_type="text/html"
    )


def link(ns: str, **names: str) -> str:
    """Return the address of a view within the page."""
    return "/?" + urlencode(
        {"ns": ns, **{name: text for name, text in names.items() if text}}, quote_via=quote
    )


@cache
def mark() -> str:
    """Return what changes with the page's files, so that no browser keeps an older one."""
    return hashlib.sha256(b"".join(_read(name) for name in ASSETS)).hexdigest()[:12]


@cache
def _read(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def _templates() -> jinja2.Environment:
    def load(name: str) -> str:
        return files(__package__).joinpath("templates", name).read_text("utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "moment": views.moment,
        "iso": views.iso,
        "short": views.short,
    }
    environment.filters.update(filters)
    return environment


def template(name: str) -> jinja2.Template:
    """Return a template of the page; whatever it is given comes out escaped."""
    return _templates().get_template(name)
