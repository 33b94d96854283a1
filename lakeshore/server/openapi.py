"""The routes as an OpenAPI document; `tests/unit/server/test_openapi.py` holds it against the routes."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def document(*, auth: bool) -> dict[str, Any]:
    """Return the document; `auth` says whether requests want a token."""
    return {"openapi": "3.1.0", "info": {"title": "lakeshore", "version": "1"}, "paths": {}}
