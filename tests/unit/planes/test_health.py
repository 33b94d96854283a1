"""The doctor's checks: each fault is found, and told with how to mend it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import time
from collections import namedtuple

import apsw
import pytest

from lakeshore import Dispatch, PlaneUnavailable
from lakeshore.planes import health, sqlite_files, sqlite_health


@pytest.fixture
def plane(home):
    with Dispatch(home / "dispatch.sqlite") as plane:
        yield plane


def found(plane):
    rows = health.examine(
        lambda: plane, start_worker=lambda queue: f"start {queue}", another_plane="name another"
    )
    return {row.check: row for row in rows}


def fault(row, *words):
    assert row.state == "fault"
    assert row.fix
    for word in words:
        assert word in row.found + row.fix, row


def test_all_is_well_with_a_new_plane(plane):
    rows = found(plane)
    assert not [row for row in rows.values() if row.state == "fault"]
    assert {
        "lakeshore",
        "sqlite",
        "plane",
        "file system",
        "permissions",
        "wal",
        "wake-up pipes",
        "clock",
    } <= rows.keys()


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("ipykernel", "7.0.1", "fault"),
        ("ipykernel", "7.4.0", "note"),
        ("ipykernel", "7.1.0", "ok"),
        ("ipykernel", None, "note"),
        ("ipywidgets", None, "note"),
        ("ipywidgets", "8.1.5", "ok"),
    ],
)
def test_versions_with_known_faults(monkeypatch, package, version, state):
    real = importlib.metadata.version

    def pretend(name):
        if name != package:
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", pretend)
    row = {row.check: row for row in health.versions()}[package]
    assert row.state == state
    assert bool(row.fix) == (state != "ok")


@pytest.mark.parametrize(("version", "state"), [("3.51.2", "fault"), ("3.50.7", "ok"), ("3.52.0", "ok")])
def test_a_sqlite_with_the_wal_bug(monkeypatch, version, state):
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    row = sqlite_health.sqlite_version()
    assert row.state == state
    assert version in row.found


def test_a_plane_that_cannot_be_opened():
    def closed():
        raise PlaneUnavailable("open: no such luck. Do this.")

    rows = list(health.examine(closed, start_worker=str, another_plane="name another"))
    fault(rows[-1], "no such luck", "name another")


def test_a_network_file_system(plane, monkeypatch):
    monkeypatch.setenv("LAKESHORE_ALLOW_NETWORK_FS", "1")
    for module in (sqlite_files, sqlite_health):
        monkeypatch.setattr(module, "file_system", lambda path: "nfs4")
    fault(found(plane)["file system"], "nfs4", "local directory")


def test_a_full_disk(plane, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    fault(found(plane)["disk"], "0 MiB free", "make space")


def test_files_that_others_may_read_or_write(plane, home):
    os.chmod(plane.path, 0o644)
    fault(found(plane)["permissions"], "others may read", "chmod 600")
    os.chmod(plane.path, 0o666)
    rows = found(plane)
    fault(rows["permissions"], "others may write", "chmod 600")
    assert rows["trust"].state == "note"
    assert f"chmod go-w {plane.path} {home}" in rows["trust"].fix
    os.chmod(plane.path, 0o600)
    os.chmod(home, 0o777)
    fault(found(plane)["permissions"], "directory", "go-w")


def test_a_large_file_and_a_large_wal(plane, monkeypatch):
    plane.submit("gpu", b"x" * 100_000, id="j")
    monkeypatch.setattr(sqlite_health, "LARGE_BYTES", 1000)
    monkeypatch.setattr(sqlite_health, "WAL_LIMIT_BYTES", 1000)
    rows = found(plane)
    fault(rows["file size"], "prune", "LAKESHORE_KEEP")
    fault(rows["wal"], "reader")


def test_bells_that_killed_processes_left(plane, home):
    folder = home / "dispatch.sqlite-bells"
    os.mkfifo(folder / "00000000.1.0")
    row = found(plane)["wake-up pipes"]
    assert (row.state, row.found) == ("note", "1 of 1 left by killed processes")
    live = os.open(folder / "00000000.1.0", os.O_RDWR)
    assert found(plane)["wake-up pipes"].state == "ok"
    os.close(live)


def test_a_removed_file(plane):
    plane.path.unlink()
    (row,) = sqlite_health.file_checks(plane.path)
    fault(row, "removed")
    fault(found(plane)["plane"], str(plane.path))


def test_rows_are_told_in_words(plane):
    assert found(plane)["rows"].found == "none"
    plane.submit("gpu", b"x", id="a")
    plane.claim("gpu", "w")
    rows = found(plane)
    assert rows["rows"].found.startswith("about 1 jobs")
    assert rows["queue gpu"].found == "0 queued, 1 worker known"
    assert rows["wake-up pipes"].found.endswith("in use, none left behind")


def test_a_queue_without_a_worker(plane):
    plane.submit("gpu", b"x", id="a")
    fault(found(plane)["queue gpu"], "1 queued", "never", "start gpu")
    plane.claim("gpu", "w")
    plane.submit("gpu", b"x", id="b")
    assert found(plane)["queue gpu"].state == "ok"


def test_a_worker_within_a_long_job_is_there(plane, monkeypatch):
    plane.submit("gpu", b"x", id="a")
    plane.submit("gpu", b"x", id="b")
    plane.claim("gpu", "w", lease=60)
    monkeypatch.setattr(health, "PRESENT_SECONDS", -1)
    assert found(plane)["queue gpu"].state == "ok"
    plane.cancel("a")
    fault(found(plane)["queue gpu"], "s ago")


def test_a_clock_that_went_back(plane, monkeypatch):
    plane.submit("gpu", b"x", id="a")
    real = time.time
    monkeypatch.setattr(health.time, "time", lambda: real() - 3600)
    fault(found(plane)["clock"], "in the future", "set the clock")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0, reason="root may read any directory")
def test_bells_of_another(plane, home):
    os.chmod(home / "dispatch.sqlite-bells", 0)
    fault(found(plane)["wake-up pipes"], "cannot be read")
    os.chmod(home / "dispatch.sqlite-bells", 0o700)


def test_bells_open_to_others(plane, home):
    (home / "dispatch.sqlite-bells").chmod(0o755)
    fault(found(plane)["wake-up pipes"], "not a folder of yours alone", "rm -r")
    (home / "dispatch.sqlite-bells").chmod(0o700)
