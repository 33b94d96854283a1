"""What a control plane removes of its files: pruned jobs' own, contents without a key, old uploads."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshore import Dispatch
from lakeshore.planes.files import FILES, JOBS, job_key, job_of
from lakeshore.server import Options, create_app
from lakeshore.server.filing import Filing, Place
from lakeshore.server.shelf import Folder
from lakeshore.server.storages import Storages

DAYS = 86400.0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def filing(base: Path) -> Filing:
    return Filing(Folder(base))


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    with Dispatch(":memory:") as plane:
        yield plane


def place(key: str, storage: str = JOBS) -> Place:
    return Place("default", storage, key)


def store(filing: Filing, where: Place, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with filing.shelf.scratch() as file:
        file.write_bytes(data)
        filing.publish(where, file, len(data), digest, "application/octet-stream")
    return digest


def age(base: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in sorted(base.rglob("*"), reverse=True):
        os.utime(path, (then, then))


def contents(base: Path) -> set[str]:
    return {path.name for path in base.rglob("contents/*/*")}


@pytest.mark.parametrize("id", ["a", "01M8N629SJK3FCB43T12Y5J2T7", "x_y-z", "é b/c"])
def test_a_key_tells_its_job(id: str) -> None:
    assert job_of(job_key(id, "out/f")) == id


@pytest.mark.parametrize("key", ["", "id-0123/f", job_key("." * 3, "f"), job_key("x" * 300, "f")])
def test_a_key_that_tells_no_job_is_left(key: str) -> None:
    assert job_of(key) is None


def test_files_of_a_pruned_job_go_and_others_stay(base: Path, filing: Filing, plane: Dispatch) -> None:
    plane.submit("gpu", b"e", id="kept")
    kept = store(filing, place(job_key("kept", "out")), b"kept")
    gone = store(filing, place(job_key("gone", "out")), b"gone")
    shared = store(filing, place("out", FILES), b"shared")
    storages = Storages(create_app(plane, Options(auth=False, storage=str(base))).serving)
    signer, _ = storages._open()
    storages._opened = (signer, filing)
    storages.sweep()
    assert contents(base) == {kept, gone, shared}, "what is new stays, whatever is said of it"
    age(base, 2 * DAYS)
    storages.sweep()
    assert contents(base) == {kept, shared}
    assert filing.find(place(job_key("gone", "out"))) is None
    assert filing.find(place(job_key("kept", "out"))) is not None


def test_a_content_goes_with_its_last_key(base: Path, filing: Filing) -> None:
    one, two = place(job_key("a", "f")), place("f", FILES)
    digest = store(filing, one, b"same")
    assert store(filing, two, b"same") == digest
    age(base, 2 * DAYS)
    assert filing.sweep("default", lambda storage, key: storage == JOBS) == 0
    assert contents(base) == {digest}
    other = store(filing, two, b"other")
    age(base, 2 * DAYS)
    assert filing.sweep("default", lambda storage, key: False) == len(b"same")
    assert contents(base) == {other}


def test_a_content_that_is_wanted_again_is_new_again(base: Path, filing: Filing) -> None:
    where = place(job_key("a", "f"))
    digest = store(filing, where, b"data")
    age(base, 2 * DAYS)
    assert filing.known(where, 4, digest, "application/octet-stream") is not None
    assert filing.shelf.old(f"{where.room}/contents/{digest[:2]}", DAYS) == {}
    assert filing.shelf.remove(where.content(digest), DAYS) is False
    assert contents(base) == {digest}


def test_an_upload_that_nobody_ends_goes_after_a_day(base: Path, filing: Filing) -> None:
    where, digest = place(job_key("a", "f")), hashlib.sha256(b"12345678").hexdigest()
    with filing.shelf.scratch() as file:
        file.write_bytes(b"1234")
        filing.add(where, file, 0, 4, 8, digest)
    age(base, 0.9 * DAYS)
    filing.sweep("default", lambda storage, key: False)
    assert filing.so_far(where, 8, digest) == 4
    age(base, 1.1 * DAYS)
    filing.sweep("default", lambda storage, key: False)
    assert filing.so_far(where, 8, digest) == 0
