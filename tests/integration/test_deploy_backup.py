"""A backup taken while jobs come and go: restored, it has every job acknowledged before, and serves on."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import postgres_server
import pytest
from integration.deployed import BIN, ROOT, until

from lakeshore import Dispatch, HttpDispatch
from lakeshore.planes.store_tokens import Tokens
from lakeshore.server import create_app
from lakeshore.server.run import background

PAGE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
LEASE = 2.0


@dataclass
class Engine:
    """A store, how the guide says it is backed up, and the store that the backup makes."""

    open: Callable[[], object]
    back_up: Callable[[], None]
    restored: Callable[[], object]


def commands(program: str) -> list[str]:
    """Return the guide's lines that run a program."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith(program)
    ]


@pytest.fixture
def of_postgres(tmp_path: Path) -> Engine:
    postgres = pytest.importorskip(
        "lakeshore.planes.postgres", reason="no psycopg: the extra postgres brings it"
    )
    server, programs = postgres_server.shared(), postgres_server.binaries()
    assert programs is not None
    if not (programs / "pg_dump").exists():
        pytest.skip("no pg_dump beside this PostgreSQL")
    source, target = server.fresh(), server.fresh()

    def do(line: str) -> None:
        words = [word.replace("$STORE", source).replace("$RESTORED", target) for word in shlex.split(line)]
        done = subprocess.run(
            [programs / words[0], *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    (dump,), (restore,) = commands("pg_dump"), commands("pg_restore")

    def opened() -> object:
        do(restore)
        return postgres.PostgresDispatch(target)

    return Engine(lambda: postgres.PostgresDispatch(source), lambda: do(dump), opened)


@pytest.fixture
def of_sqlite(home: Path) -> Engine:
    (line,) = commands("lakeshore backup")

    def opened() -> object:
        name = Path(shlex.split(line)[-1])
        return Dispatch(home / name.name)

    def back_up() -> None:
        words = [word.replace("/backups", str(home)) for word in shlex.split(line)]
        subprocess.run([BIN / words[0], *words[1:]], check=True, stdout=subprocess.DEVNULL, timeout=60)

    return Engine(lambda: Dispatch(home / "dispatch.sqlite"), back_up, opened)


@dataclass
class Load:
    """Producers and workers of a store, and what was acknowledged to them."""

    plane: object
    submitted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    problems: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def produce(self, name: str) -> None:
        n = 0
        while not self.over.is_set():
            id = f"{name}-{n}"
            self.plane.submit("gpu", id.encode(), id=id)
            self.submitted.append(id)
            n += 1
            time.sleep(0.001)

    def work(self, name: str) -> None:
        while not self.over.is_set():
            held = self.plane.claim("gpu", name, wait=0.2, lease=LEASE)
            if held is not None:
                self.plane.journal_append(held.id, None, held.envelope, worker_id=name, fence=held.fence)
                self.plane.ack(held.id, name, fence=held.fence, result=held.envelope[::-1])
                self.ended.append(held.id)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        def guarded(what: Callable[[str], None], name: str) -> None:
            try:
                what(name)
            except BaseException as exc:
                self.problems.append(exc)

        threads = [
            threading.Thread(target=guarded, args=(what, f"{what.__name__}{n}"))
            for what in (self.produce, self.work)
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join(20)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["of_sqlite", "of_postgres"])
def test_a_backup_under_load_has_what_was_acknowledged_and_serves_on(
    engine: str, request: pytest.FixtureRequest
) -> None:
    store: Engine = request.getfixturevalue(engine)
    with contextlib.closing(store.open()) as plane:
        load = Load(plane)
        token, _ = Tokens(plane).create(ns="default", role="admin")
        with load.running():
            until(lambda: len(load.ended) > 100)
            submitted, ended = list(load.submitted), list(load.ended)
            store.back_up()
            more = len(load.ended)
            until(lambda: len(load.ended) > more + 20)  # they went on
        assert load.problems == []
        after = len(load.submitted)
    with contextlib.closing(store.restored()) as plane:
        rows = {row["id"]: row for row in plane.invocations("gpu", limit=1_000_000)}
        assert set(submitted) <= set(rows)
        assert len(rows) < after, "the snapshot is of the middle"
        for id in ended:
            assert rows[id]["state"] == "succeeded"
            assert plane.result(id, timeout=0) == id[::-1].encode()
        for row in rows.values():
            assert row["state"] in ("queued", "running", "succeeded"), row
        seen: set[str] = set()
        while plane.count("gpu", "queued") or plane.count("gpu", "running"):
            held = plane.claim("gpu", "after", wait=LEASE + 2)
            assert held is not None
            assert held.id not in seen
            seen.add(held.id)
            plane.ack(held.id, "after", fence=held.fence, result=held.envelope[::-1])
        assert not seen & set(ended)
        with (
            background(create_app(plane)) as url,
            contextlib.closing(HttpDispatch(url, token=token)) as client,
        ):
            assert client.count("gpu", "succeeded") == len(rows)
            for id in submitted[:: max(1, len(submitted) // 20)]:
                assert client.result(id) == id[::-1].encode()
            assert [data for _, data in client.journal_read(ended[-1], timeout=5)] == [ended[-1].encode()]
            client.submit("gpu", b"new", id="new")
            assert client.claim("gpu", "after").id == "new"
