"""The control plane: a store's verbs over HTTP. Only this room imports starlette; the extra is `server`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakeshore.server.app import create_app
    from lakeshore.server.options import Options

__all__ = ["Options", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from lakeshore.server.app import create_app

        return create_app
    if name == "Options":
        from lakeshore.server.options import Options

        return Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
