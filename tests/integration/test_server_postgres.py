"""Two control planes over one PostgreSQL store: what one commits wakes who waits at the other."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx
import msgpack
import postgres_server
import pytest

from lakeshore import HttpDispatch
from lakeshore.conformance import check
from lakeshore.planes import moving
from lakeshore.planes.sqlite_moving import SqliteSide
from lakeshore.planes.store_notes import Notes
from lakeshore.planes.store_sparing import Sparing
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.planes.store_within import RESERVED
from lakeshore.server import Options, create_app, serving
from lakeshore.server.run import background

postgres = pytest.importorskip("lakeshore.planes.postgres", reason="no psycopg: the extra postgres brings it")
PostgresSide = pytest.importorskip("lakeshore.planes.postgres_moving").PostgresSide


@pytest.fixture
def two():
    """Two servers, each with a store of its own on one database, and a client of each."""
    dsn = postgres_server.shared().fresh()
    with contextlib.ExitStack() as opened:
        clients = []
        for n in range(2):
            plane = postgres.PostgresDispatch(dsn)
            opened.callback(plane.close)
            if n == 0:
                token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0]
            url = opened.enter_context(background(create_app(plane, Options(auth=True))))
            clients.append(HttpDispatch(url, token=token))
            opened.callback(clients[-1].close)
        yield clients


def test_one_wakes_the_other(two):
    here, there = two
    timer = threading.Timer(0.3, lambda: here.submit("gpu", b"e", id="a"))
    timer.start()
    began = time.monotonic()
    claimed = there.claim("gpu", "w", wait=10)
    assert claimed.id == "a"
    assert time.monotonic() - began < 0.9
    timer = threading.Timer(0.3, lambda: there.ack("a", "w", result=b"r", fence=1))
    timer.start()
    began = time.monotonic()
    assert here.result("a") == b"r"
    assert time.monotonic() - began < 0.9
    rows = threading.Timer(0.3, lambda: here.journal_append("t", None, b"x", final=True))
    rows.start()
    assert list(there.journal_read("t", timeout=10)) == [(0, b"x")]
    timer.join()
    rows.join()


def test_a_claim_of_a_client_in_the_field_outlives_its_server_and_its_notes():
    dsn = postgres_server.shared().fresh()
    job = {"queue": "gpu", "args_blob": b"e", "function": "f", "code_context": {"v": 1}}
    with contextlib.ExitStack() as opened:
        planes = [opened.enter_context(contextlib.closing(postgres.PostgresDispatch(dsn))) for _ in range(2)]
        mine, others = (Tokens(planes[0]).create(ns="default", role="worker")[0] for _ in range(2))
        producer = Tokens(planes[0]).create(ns="default", role="producer")[0]
        submit = "/v1/namespaces/default/producer/submit"
        with _served(planes[0]) as ask:
            for n in range(3):
                assert ask(submit, producer, {**job, "invocation_id": f"j{n}"})[0] == 200
            poll = {"queue": "gpu", "worker_id": "w", "capacity": 2}
            assert len(ask("/v1/daemon/poll", mine, poll)[1]["commands"]) == 2
        Notes(planes[0]).forget(older_than=0)
        for n, plane in enumerate(planes):  # the first one's server is started again, the second is another
            ended = {"invocation_id": f"j{n}", "state": "succeeded", "result_blob": b"r%d" % n}
            with _served(plane) as ask:
                assert ask("/v1/daemon/ack", others, ended)[0] == 409
                assert ask("/v1/daemon/ack", mine, ended)[0] == 200
                assert plane.result(f"j{n}") == b"r%d" % n
        with _served(planes[1]) as ask:
            (command,) = ask("/v1/daemon/poll", mine, poll)[1]["commands"]
            assert (command["body"]["function"], command["body"]["code_context"]) == ("f", {"v": 1})
        assert planes[1].prune(older_than=0) == 2
        Notes(planes[1]).forget(older_than=0)
        silent = {"ns": RESERVED, "cut": time.time() + 60, "asked": time.time()}
        left = planes[1]._read(lambda tx: tx.rows("silent_topics", silent))
        assert len(left) == 2  # what was said of the job that runs, and who claimed it


@contextlib.contextmanager
def _served(plane):
    """Serve a store; gives what posts a body there as a client in the field does."""
    with (
        background(create_app(plane, Options(auth=True))) as url,
        httpx.Client(base_url=url, trust_env=False) as http,
    ):

        def ask(path: str, token: str, body: object) -> tuple[int, dict]:
            headers = {"authorization": f"Bearer {token}", "accept": "application/x-msgpack"}
            answer = http.post(path, content=msgpack.packb(body), headers=headers)
            return answer.status_code, msgpack.unpackb(answer.content)

        yield ask


def test_many_are_looked_at(two):
    here, there = two
    names = [*(f"j{n}" for n in range(60)), "é \"'[$", "none"]
    for name in names[:-2]:
        here.submit("gpu", b"e", id=name)
    here.journal_append(names[-2], None, b"x")
    marks = there.look({}, dict.fromkeys(names[:-2]), hold=0).rows
    assert [row["id"] for _, row in marks.values()] == names[:-2]
    claimed = there.claim("gpu", "w")
    assert claimed is not None
    here.journal_extend(claimed.id, [b"0", b"1"], worker_id="w", fence=claimed.fence)
    told = there.look(
        dict.fromkeys(names, (-1, False)), {id: mark for id, (mark, _) in marks.items()}, hold=0
    )
    assert told.journals == {
        claimed.id: ([(0, b"0"), (1, b"1")], False),
        names[-2]: ([(0, b"x")], False),
    }
    assert {id: row["state"] for id, (_, row) in told.rows.items()} == {claimed.id: "running"}
    timer = threading.Timer(0.2, lambda: here.ack(claimed.id, "w", fence=claimed.fence))
    timer.start()
    told = there.look({claimed.id: (1, False)}, {claimed.id: told.rows[claimed.id][0]}, hold=10)
    assert told.journals == {claimed.id: ([], True)}
    timer.join()


def test_a_server_whose_database_was_moved_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "_MOVED_SECONDS", 0.1)
    dsn = postgres_server.shared().fresh()
    with contextlib.closing(postgres.PostgresDispatch(dsn)) as plane:
        plane.submit("gpu", b"e", id="a")
        app = create_app(plane, Options(auth=False))
        with background(app) as url:
            assert httpx.get(f"{url}/v1/namespaces/default/queues", trust_env=False).status_code == 200
            with (
                contextlib.closing(PostgresSide(dsn)) as here,
                contextlib.closing(SqliteSide(tmp_path / "b.sqlite", is_target=True)) as there,
            ):
                moving.move(here, there)
            end = time.monotonic() + 10
            while app.serving.moved is None and time.monotonic() < end:
                time.sleep(0.02)
            answer = httpx.get(f"{url}/v1/namespaces/default/queues", trust_env=False)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "plane_moved")
            assert f"was moved to {tmp_path / 'b.sqlite'}" in answer.json()["error"]["message"]


def test_a_server_that_starts_hears_the_holders_first():
    with contextlib.closing(postgres.PostgresDispatch(postgres_server.shared().fresh())) as store:
        store.submit("gpu", b"e", id="a")
        store.claim("gpu", "holder", lease=0.05)
        time.sleep(0.1)
        with background(create_app(store, Options(auth=False))) as url:
            with contextlib.closing(HttpDispatch(url)) as plane:
                assert plane.claim("gpu", "robber") is None
                plane.ack("a", "holder", fence=1)


def test_a_lease_is_spared_once_however_often_servers_start():
    with contextlib.closing(postgres.PostgresDispatch(postgres_server.shared().fresh())) as store:

        def left() -> dict[str, float]:
            return {row["id"]: row["lease_expires_at"] - time.time() for row in store.invocations()}

        store.submit("gpu", b"e", id="dead")
        store.claim("gpu", "holder", lease=0.05)
        time.sleep(0.1)
        sparing = Sparing(store)
        sparing.begin(30.0)
        assert store.claim("gpu", "robber") is None
        assert left() == pytest.approx({"dead": 30.0}, abs=3)
        assert sparing.served(25.0)
        store.submit("gpu", b"e", id="alive")
        store.claim("gpu", "holder", lease=0.05)
        time.sleep(0.1)
        Sparing(store).begin(30.0)
        assert left() == pytest.approx({"dead": 5.0, "alive": 30.0}, abs=3)
        assert sparing.served(30.0)
        assert not sparing.served(1.0)
        sparing.begin(60.0)
        assert max(left().values()) < 31
        store.heartbeat("alive", "holder", lease=0.05)
        sparing.begin(60.0)
        assert left()["alive"] == pytest.approx(60.0, abs=3)


def test_a_few_rules_hold(two):
    here, _ = two
    outcomes = check(
        lambda: _Open(here),
        only=["attempts_never_mix", "a_key_is_submitted_once", "frames_come_back_in_order"],
    )
    assert all(outcome.ok for outcome in outcomes), outcomes


class _Open:
    """A client that a rule does not close."""

    def __init__(self, plane: HttpDispatch) -> None:
        self._plane = plane

    def __getattr__(self, name: str):
        return getattr(self._plane, name)

    def close(self) -> None:
        pass
