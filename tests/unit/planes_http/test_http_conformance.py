"""Every rule of the dispatch contract through HTTP, over a real plane that serves our routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.planes_http.ours import Ours

from lakeshore import HttpDispatch
from lakeshore.conformance import check, rules


@pytest.fixture(scope="module")
def served() -> Iterator[Ours]:
    with Ours() as server:
        assert isinstance(server, Ours)
        yield server


@pytest.mark.parametrize("rule", rules())
def test_rule(rule: str, served: Ours) -> None:
    (outcome,) = check(lambda: HttpDispatch(served.url, timeout=10), only=[rule])
    assert outcome.ok, outcome.detail
