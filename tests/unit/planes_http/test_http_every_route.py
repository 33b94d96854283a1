"""Every route of the protocol with its first answers lost: one job, one ack, one frame, one file each."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from unit.planes_http.loopback import status
from unit.planes_http.ours import Ours

from lakeshore import Dispatch, HttpDispatch, PlaneUnavailable, wire
from lakeshore.planes import http_files, http_tries, protocol, protocol_files
from lakeshore.planes.contract import ClaimSpec, Submission
from lakeshore.planes.protocol import Route
from lakeshore.server import Options

Connect = Callable[..., HttpDispatch]
DATA = bytes(range(256)) * 1000
ROUTES = [
    each for room in (protocol, protocol_files) for each in vars(room).values() if isinstance(each, Route)
]
ROUTES += [Route(method, protocol_files.FILE_PATH) for method in ("GET", "PUT")]


@pytest.fixture
def lossy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ours]:
    monkeypatch.setattr(http_tries, "_FIRST_PAUSE", 0.02)
    plane = Dispatch(":memory:")
    with Ours(plane, options=Options(auth=False, storage=str(tmp_path / "storage"))) as server:
        assert isinstance(server, Ours)
        yield server


def matches(route: Route, method: str, path: str) -> bool:
    pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route.template))
    return method == route.method and re.fullmatch(pattern, path) is not None


def put(plane: HttpDispatch, data: bytes, claim: tuple[str, int] | None = None) -> None:
    digest = hashlib.sha256(data).hexdigest()
    plane.put_file("files", "k", io.BytesIO(data), len(data), digest, claim=claim)


def got(plane: HttpDispatch) -> bytes:
    into = io.BytesIO()
    assert plane.get_file("files", "k", into)
    return into.getvalue()


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_every_route_though_its_answers_are_lost(
    lossy: Ours, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(http_files, "PART_BYTES", 100_000)
    plane, store = connect(lossy), lossy.plane
    lossy.drops = times

    assert plane.submit("gpu", b"e", id="a", key="k") == "a"
    assert plane.submit_many("gpu", [Submission(envelope=b"e", id=id) for id in "bcd"]) == ["b", "c", "d"]
    assert store.count("gpu") == 4
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    rest = plane.claim_many("gpu", "w", 2)
    assert [(each.id, each.attempt, each.fence) for each in (claimed, *rest)] == [
        ("a", 1, 1), ("b", 1, 1), ("c", 1, 1),
    ]  # fmt: skip
    assert store.count("gpu", "running") == 3
    plane.heartbeat("a", "w", fence=1, lease=3600)
    row = plane.get("a")
    assert row is not None
    assert row["lease_expires_at"] - row["started_at"] > 3000
    put(plane, DATA, ("a", 1))
    assert got(plane) == DATA
    assert plane.journal_append("a", None, b"0", worker_id="w", fence=1) == 0
    assert plane.journal_extend("a", [b"1", b"2"], worker_id="w", fence=1) == 2
    following = plane.ack("a", "w", result=b"r", fence=1, frame=wire.end_frame(3), next=ClaimSpec("gpu"))
    assert following is not None
    assert (following.id, following.fence) == ("d", 1)
    assert plane.result("a") == b"r"
    frames = [*((n, b"%d" % n) for n in range(3)), (3, wire.end_frame(3))]
    assert list(plane.journal_read("a")) == frames == list(store.journal_read("a"))
    assert plane.look({"a": (-1, False)}, {}, hold=0).journals == {"a": (frames, True)}
    plane.nack("b", "w", error="E: x", retry=False, fence=1)
    plane.nack("c", "w", error="E: x", retry=True, fence=1)
    plane.release("d", "w", fence=1)
    assert plane.queues() == {"gpu": {"succeeded": 1, "failed": 1, "queued": 2}}
    assert [row["attempt"] for row in map(store.get, "cd") if row] == [1, 0]
    assert plane.cancel("c") is True
    assert plane.requeue("c") is True
    assert plane.requeue("b") is True
    assert plane.count("gpu") == 3
    assert len(plane.invocations()) == 4
    assert plane.envelope("a") == b"e"
    assert [worker["worker_id"] for worker in plane.workers()] == ["w"]
    plane.journal_trim("a", keep_last=1)
    assert [seq for seq, _ in store.journal_read("a", since=0, timeout=0)] == [3]
    plane.prune(older_than=0)
    assert store.get("a") is None
    assert store.count("gpu") == 3

    if shutil.which("git") is not None:
        for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m one"):
            (tmp_path / "repo").mkdir(exist_ok=True)
            (tmp_path / "repo" / "x.py").write_text("x = 1\n")
            subprocess.run(["git", *command.split()], cwd=tmp_path / "repo", check=True)
        stamp = plane.push_code(tmp_path / "repo")
        assert stamp is not None
        assert plane.get_file(stamp["storageName"], stamp["archiveKey"], io.BytesIO())
        for route in ROUTES:
            lost = [path for method, path in lossy.lost if matches(route, method, path)]
            assert len(lost) >= times, f"no answer of {route.method} {route.template} was lost"


BUSY = [
    *(status(code, b"<html>gateway</html>", content_type="text/html") for code in (502, 503, 504)),
    status(429),
    status(503, retry_after="0"),
    status(429, retry_after="1"),
]


@pytest.mark.parametrize(
    "verb", ["heartbeat", "release", "submit-many", "requeue", "trim", "prune", "presign"]
)
def test_a_storm_of_all_kinds_is_ridden_out(lossy: Ours, connect: Connect, verb: str) -> None:
    """As `test_storms_are_ridden_out`, for the verbs that it leaves out; with and without Retry-After."""
    plane = connect(lossy, timeout=20)
    lossy.script[verb] = list(BUSY[::2] if verb < "q" else BUSY[1::2])
    plane.submit_many("gpu", [Submission(envelope=b"e", id=id) for id in "ab"])
    plane.claim_many("gpu", "w", 2)
    plane.heartbeat("a", "w", fence=1)
    plane.release("b", "w", fence=1)
    plane.nack("a", "w", error="E", retry=False, fence=1)
    assert plane.requeue("a") is True
    plane.journal_trim("a")
    assert plane.prune(older_than=0) == 0
    put(plane, b"x")
    assert got(plane) == b"x"
    assert lossy.script[verb] == []
    assert plane.count("gpu") == 2


@pytest.mark.parametrize("asked", ["86400", "Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.parametrize("code", [429, 503])
def test_a_huge_retry_after_is_told_and_not_slept(
    lossy: Ours, connect: Connect, code: int, asked: str
) -> None:
    plane = connect(lossy, timeout=1.0)
    lossy.script["submit"] = [status(code, retry_after=asked)] * 50
    lossy.script["poll"] = [status(code, retry_after=asked)]
    lossy.script["stream"] = [status(code, retry_after=asked)]
    with pytest.raises(PlaneUnavailable, match=f"answered {code}"):
        plane.submit("gpu", b"e", id="a")
    assert len(lossy.posts("submit")) < 8
    with pytest.raises(PlaneUnavailable):
        plane.claim("gpu", "w", wait=0.5)
    with pytest.raises((PlaneUnavailable, TimeoutError)):
        list(plane.journal_read("a", timeout=0.5))
