"""Every rule of the contract on every plane of this package, a test each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import postgres_server
import pytest

from lakeshore import Dispatch
from lakeshore.conformance import check, rules
from lakeshore.planes.contract import Plane


@pytest.fixture(params=["memory", "file", "postgres"])
def make_plane(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Plane]:
    if request.param == "memory":
        return Dispatch
    if request.param == "postgres":
        dsn = postgres_server.shared_dsn()
        from lakeshore.planes.postgres import PostgresDispatch

        return lambda: PostgresDispatch(dsn)
    return lambda: Dispatch(tmp_path / "plane.sqlite")


@pytest.mark.parametrize("rule", rules())
def test_rule(rule: str, make_plane: Callable[[], Plane]) -> None:
    (outcome,) = check(make_plane, only=[rule])
    assert outcome.ok, outcome.detail
