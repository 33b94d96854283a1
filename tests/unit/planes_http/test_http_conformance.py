"""Every rule of the dispatch contract through HTTP, on the real control plane: straight, and by a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakeshore import Dispatch, HttpDispatch
from lakeshore.conformance import check, rules
from lakeshore.server import Options, create_app
from lakeshore.server.run import background


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        Dispatch(tmp_path_factory.mktemp("store") / "d.sqlite") as plane,
        background(create_app(plane, Options(auth=False))) as url,
    ):
        yield url


@pytest.mark.parametrize("rule", rules())
def test_rule(rule: str, served: str) -> None:
    (outcome,) = check(lambda: HttpDispatch(served, timeout=10), only=[rule])
    assert outcome.ok, outcome.detail
