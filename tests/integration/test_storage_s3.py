"""Files on a server that speaks S3 (moto's, in this process), through a control plane that is a process."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.served import Process

from lakeshore import HttpDispatch, SyncQueue, run, run_worker, thunk
from lakeshore.planes.protocol_files import digest_header
from lakeshore.server import shelf as shelves
from lakeshore.server.filing import Filing, Place

moto_server = pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

KEY, SECRET = "AKIASEENNOWHERE", "secret-seen-nowhere"


class S3:
    """A server, and a bucket ``lake`` in it."""

    def __init__(self) -> None:
        self._server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.env = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }
        self.make("lake")

    def make(self, bucket: str) -> None:
        assert httpx.put(f"{self.url}/{bucket}").status_code == 200

    def take_anyone(self, so_often: int) -> None:
        """Ask for good credentials after so many requests more."""
        assert httpx.post(f"{self.url}/moto-api/reset-auth", content=str(so_often)).status_code == 200

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    made = S3()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    home = tmp_path_factory.mktemp("server")
    with Process(
        home, "--no-auth", "--log", "json", "--storage", "s3://lake/some/where", **s3.env
    ) as process:
        yield process
    assert KEY not in process.said
    assert SECRET not in process.said
    assert "Traceback" not in process.said


@pytest.fixture
def plane(server: Process, request: pytest.FixtureRequest) -> Iterator[HttpDispatch]:
    with closing(HttpDispatch(server.url, namespace=request.node.name[:200], timeout=20)) as plane:
        yield plane


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(plane: HttpDispatch, key: str, data: bytes, digest: str | None = None) -> None:
    plane.put_file("s", key, io.BytesIO(data), len(data), digest or digest_of(data))


def get(plane: HttpDispatch, key: str) -> bytes | None:
    into = io.BytesIO()
    return None if plane.get_file("s", key, into) is None else into.getvalue()


def presigned(server: Process, ns: str, **body: Any) -> str:
    answer = httpx.post(f"{server.url}/v1/namespaces/{ns}/storages/s/presign", json=body)
    url: str = answer.json()["url"]
    return url


def test_a_file_is_put_and_got_in_parts_and_whole(plane: HttpDispatch) -> None:
    large = bytes(range(256)) * 80_000  # 20 MB: three parts, put together here and read by ranges
    for key, data in (("a/small", b"x"), ("empty", b""), ("large", large), ("é ü/\u4e2d", b"name")):
        assert get(plane, key) is None
        put(plane, key, data)
        assert get(plane, key) == data
    put(plane, "a/small", b"anew")
    assert get(plane, "a/small") == b"anew"


def test_a_file_is_there_whole_or_not_at_all(plane: HttpDispatch, server: Process) -> None:
    ns, data = "whole", b"0123456789"
    url = presigned(server, ns, key="k", operation="put", sizeBytes=10)
    told = {"Repr-Digest": digest_header(digest_of(data))}
    first = httpx.put(url, content=data[:4], headers={**told, "Content-Range": "bytes 0-3/10"})
    assert (first.status_code, first.headers["range"]) == (202, "bytes=0-3")
    read = presigned(server, ns, key="k", operation="get")
    assert httpx.get(read).status_code == 404
    asked = httpx.put(url, headers={**told, "Content-Range": "bytes */10"})
    assert asked.headers["range"] == "bytes=0-3"
    last = httpx.put(url, content=data[4:], headers={**told, "Content-Range": "bytes 4-9/10"})
    assert last.status_code == 200
    assert httpx.get(read).content == data
    assert httpx.get(read, headers={"Range": "bytes=3-5"}).content == b"345"
    over = httpx.put(presigned(server, ns, key="o", operation="put", sizeBytes=3), content=b"1234")
    assert over.status_code == 413
    wrong = httpx.put(
        presigned(server, ns, key="w", operation="put"),
        content=b"evil",
        headers={"Repr-Digest": told["Repr-Digest"]},
    )
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_digest")
    short = presigned(server, ns, key="k", operation="get", expiresIn=0.01)
    time.sleep(0.02)
    assert httpx.get(short).status_code == 403


def write() -> str:
    run.write("out/w.bin").write_bytes(b"weights")
    return "out/w.bin"


def read() -> int:
    return len(run.read("out/w.bin").read_bytes())


def test_one_worker_reads_what_another_wrote(plane: HttpDispatch, tmp_path: Path) -> None:
    q = SyncQueue("files", dispatch=plane)
    wrote = q.submit(thunk(write).with_options(transport="pickle"))
    assert run_worker(q, once=True, root=tmp_path / "one", allow_pickled=True) == 1
    q.result(wrote, timeout=5)
    length = q.submit(thunk(read).with_options(transport="pickle"))
    assert run_worker(q, once=True, root=tmp_path / "two", allow_pickled=True) == 1
    assert q.result(length, timeout=5) == 7
    assert q.fetch(wrote, "out/w.bin", tmp_path / "here").read_bytes() == b"weights"


def test_what_is_old_goes_and_what_is_wanted_again_stays(
    s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    files = Filing(shelves.shelf_at("s3://lake/swept"))

    def store(key: str, data: bytes, ns: str = "a") -> None:
        with files.shelf.scratch() as file:
            file.write_bytes(data)
            files.publish(Place(ns, "jobs", key), file, len(data), digest_of(data), "x/y")

    store("gone", b"gone")
    store("kept", b"kept")
    store("gone", b"other", ns="b")
    half = Place("a", "jobs", "half")
    with files.shelf.scratch() as file:
        file.write_bytes(b"1234")
        files.add(half, file, 0, 4, 8, digest_of(b"12345678"))
    gone: list[str] = []

    def is_gone(storage: str, key: str) -> bool:
        gone.append(key)
        return key == "gone"

    assert files.sweep("a", is_gone) == 0, "what is new stays"
    now = time.time
    monkeypatch.setattr(shelves.time, "time", lambda: now() + 2 * 86400)
    assert files.known(Place("a", "jobs", "kept"), 4, digest_of(b"kept"), "x/y") is not None
    assert files.sweep("a", is_gone) == len(b"gone")
    assert files.find(Place("a", "jobs", "gone")) is None
    assert files.find(Place("b", "jobs", "gone")) is not None, "another namespace's"
    assert files.find(Place("a", "jobs", "kept")) is not None
    assert files.so_far(half, 8, digest_of(b"12345678")) == 0


def test_a_bucket_that_is_not_there_and_a_dead_server_are_said(s3: S3, tmp_path: Path) -> None:
    dead = {**s3.env, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    for env, bucket, said in ((s3.env, "nowhere", "make the bucket"), (dead, "lake", "could not be")):
        home = tmp_path / bucket
        home.mkdir()
        with Process(home, "--no-auth", "--log", "json", "--storage", f"s3://{bucket}/x", **env) as process:
            answer = httpx.post(
                f"{process.url}/v1/namespaces/a/storages/s/presign",
                json={"key": "k", "operation": "put"},
                timeout=60,
            )
            assert answer.status_code == 503, answer.text
            assert said in answer.json()["error"]["message"]
            assert httpx.get(f"{process.url}/readyz").status_code == 200, "jobs go on without files"
        assert "Traceback" not in process.said
        for secret in (KEY, SECRET):
            assert secret not in process.said + json.dumps(answer.json())


def test_credentials_that_are_refused_are_said(s3: S3, server: Process, plane: HttpDispatch) -> None:
    put(plane, "k", b"before")
    s3.take_anyone(0)
    try:
        url = presigned(server, "denied", key="k", operation="put")
        answer = httpx.put(url, content=b"data", timeout=60)
        assert answer.status_code == 503, answer.text
        assert "credentials" in answer.json()["error"]["message"]
        assert SECRET not in answer.text
        assert KEY not in answer.text
    finally:
        s3.take_anyone(10**9)
    put(plane, "k", b"after")
    assert get(plane, "k") == b"after"
