"""After an outage those who hold jobs are heard first: nobody else takes what nobody could keep meanwhile."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from lakeshore import Dispatch, HttpDispatch, PlaneUnavailable
from lakeshore.planes.store_sparing import Sparing
from lakeshore.server import Options, create_app, serving
from lakeshore.server.run import background


class Away(Dispatch):
    """A store that can be away."""

    away = False

    def _write(self, work: Any, *, durable: bool = True) -> Any:
        if self.away:
            raise PlaneUnavailable("the store is away")
        return super()._write(work, durable=durable)


def claimed_and_lapsed(plane: Dispatch, *ids: str) -> None:
    for id in ids:
        plane.submit("gpu", b"e", id=id)
    assert len(plane.claim_many("gpu", "holder", len(ids), lease=0.05)) == len(ids)
    time.sleep(0.06)


def test_a_server_that_starts_hears_the_holders_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REJOIN_SECONDS", 1.0)
    with Dispatch(tmp_path / "d.sqlite") as store:
        claimed_and_lapsed(store, "alive", "dead")
        with Dispatch(tmp_path / "d.sqlite", ns="other") as other:
            claimed_and_lapsed(other, "there")
        with background(create_app(store, Options(auth=False))) as url:
            began = time.monotonic()
            with (
                contextlib.closing(HttpDispatch(url)) as plane,
                contextlib.closing(HttpDispatch(url, namespace="other")) as beside,
            ):
                assert plane.claim("gpu", "robber") is None
                assert beside.claim("gpu", "robber") is None
                plane.heartbeat("alive", "holder", fence=1)
                taken = plane.claim("gpu", "robber", wait=10)
                assert taken is not None
                assert (taken.id, taken.attempt) == ("dead", 2)
                assert 0.5 < time.monotonic() - began < 5
                plane.ack("alive", "holder", result=b"r", fence=1)
                assert plane.result("alive") == b"r"


def test_so_does_one_whose_store_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REJOIN_SECONDS", 2.0)
    with Away(tmp_path / "d.sqlite") as store, background(create_app(store, Options(auth=False))) as url:
        with contextlib.closing(HttpDispatch(url, timeout=0.1)) as plane:
            claimed_and_lapsed(store, "a")  # while nothing is away
            taken = plane.claim("gpu", "second", lease=0.05, wait=20)
            assert taken is not None
            store.away = True
            with pytest.raises(PlaneUnavailable):
                plane.claim("gpu", "third")
            store.away = False
            assert plane.claim("gpu", "third") is None
            plane.ack("a", "second", result=b"r", fence=2)
            assert plane.result("a") == b"r"


def test_a_lease_that_is_longer_stays_as_it_is(tmp_path: Path) -> None:
    with Dispatch(tmp_path / "d.sqlite") as store:
        store.submit("gpu", b"e", id="a")
        store.claim("gpu", "w", lease=3600)
        before = store.get("a")
        with (
            background(create_app(store, Options(auth=False))) as url,
            contextlib.closing(HttpDispatch(url)) as plane,
        ):
            after = plane.get("a")
        assert before is not None
        assert after is not None
        assert abs(after["lease_expires_at"] - before["lease_expires_at"]) < 1


def test_a_server_that_starts_again_and_again_spares_a_lease_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Dispatch(tmp_path / "d.sqlite") as store:
        claimed_and_lapsed(store, "dead")
        sparing = Sparing(store)
        sparing.begin(30.0)
        assert store.claim("gpu", "robber") is None
        assert sparing.served(10.0)
        ends = [row["lease_expires_at"] for row in store.invocations()]
        Sparing(store).begin(30.0)  # another start: what was served is not given anew
        assert [row["lease_expires_at"] for row in store.invocations()] == pytest.approx(
            [end - 10 for end in ends], abs=2
        )
        store.submit("gpu", b"e", id="alive")
        assert store.claim("gpu", "holder", lease=0.05) is not None
        time.sleep(0.06)
        Sparing(store).begin(30.0)  # a lease that it has not seen yet
        assert store.claim("gpu", "robber") is None
        assert sparing.served(25.0)  # 20 s of the first are over, 5 s of the second left
        left = {row["id"]: row["lease_expires_at"] - time.time() for row in store.invocations()}
        sparing.begin(30.0)
        found = {row["id"]: row["lease_expires_at"] - time.time() for row in store.invocations()}
        assert found == pytest.approx({"dead": left["dead"], "alive": 5.0}, abs=2)
        store.heartbeat("alive", "holder", lease=0.05, fence=1)
        time.sleep(0.06)
        sparing.begin(30.0)  # it was heard, so it is spared anew
        found = {row["id"]: row["lease_expires_at"] - time.time() for row in store.invocations()}
        assert found == pytest.approx({"dead": left["dead"], "alive": 30.0}, abs=2)
        assert sparing.served(30.0)
        assert not sparing.served(30.0)


def test_a_dead_worker_s_job_is_another_s_while_servers_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REJOIN_SECONDS", 0.6)
    monkeypatch.setattr(serving, "_MOVED_SECONDS", 0.05)
    with Dispatch(tmp_path / "d.sqlite") as store:
        claimed_and_lapsed(store, "dead")
        taken, ends = None, time.monotonic() + 20
        while taken is None and time.monotonic() < ends:
            with background(create_app(store, Options(auth=False))):
                time.sleep(0.3)
            taken = store.claim("gpu", "w")
        assert taken is not None
