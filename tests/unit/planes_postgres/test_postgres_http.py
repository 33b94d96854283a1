"""The contract through a control plane over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import postgres_server
import pytest

from lakeshore import HttpDispatch
from lakeshore.conformance import check, rules
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

# Its last step appends to an ended row without a claim, which over HTTP wants one (docs/control-plane.md).
TIGHTER = "an_append_may_be_guarded"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    dsn = postgres_server.shared_dsn()
    from lakeshore.planes.postgres import PostgresDispatch

    with PostgresDispatch(dsn) as plane, background(create_app(plane, Options(auth=False))) as url:
        yield url


@pytest.mark.parametrize("rule", rules())
def test_rule(rule: str, served: str) -> None:
    (outcome,) = check(lambda: HttpDispatch(served, timeout=10), only=[rule])
    if rule == TIGHTER and not outcome.ok:
        assert "it is succeeded" in outcome.detail, outcome.detail
        return
    assert outcome.ok, outcome.detail
