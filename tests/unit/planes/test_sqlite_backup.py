"""The backup: of one moment while others write, sound or not there, private, and never over a file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import apsw
import pytest

from lakeshore import Dispatch, PlaneUnavailable
from lakeshore.planes import sqlite_backup
from lakeshore.planes.sqlite_backup import back_up


@pytest.fixture
def plane(tmp_path):
    with Dispatch(tmp_path / "a.sqlite", durable=False) as plane:
        yield plane


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_backup_is_a_plane_of_one_moment_while_others_write(plane, folder):
    for n in range(300):
        plane.submit("gpu", b"x" * 9000, id=f"j{n}")
    writer = Dispatch(plane.path, durable=False)
    stop, wrote, seen = threading.Event(), threading.Event(), []

    def write():
        n = 0
        while not stop.is_set():
            writer.submit("busy", b"y" * 500, id=f"w{n}")
            writer.journal_append(f"w{n}", None, b"frame")
            n += 1
            wrote.set()
        writer.close()

    def progress(done, total):
        seen.append((done, total))
        wrote.clear()
        assert wrote.wait(10), "the backup stopped the writer"

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(10)
        size = back_up(plane, folder / "b.sqlite", progress=progress)
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 1
    assert seen[-1][0] == seen[-1][1]
    assert [path.name for path in folder.iterdir()] == ["b.sqlite"]
    assert (folder / "b.sqlite").stat().st_size == size
    with Dispatch(folder / "b.sqlite") as copy:
        assert copy.count("gpu") == 300
        busy = copy.count("busy")
        assert 0 < busy < plane.count("busy")
        ids = {row["id"] for row in copy.invocations("busy", limit=10**6)}
        assert ids == {f"w{n}" for n in range(busy)}


def test_it_is_private_and_one_file_whatever_the_umask(plane, folder):
    old = os.umask(0)
    try:
        back_up(plane, folder / "b.sqlite")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "b.sqlite").stat().st_mode) == 0o600
    assert apsw.Connection(str(folder / "b.sqlite"), flags=apsw.SQLITE_OPEN_READONLY).pragma(
        "journal_mode"
    ) == ("delete")


def test_it_overwrites_nothing_and_makes_no_directory(plane, folder):
    (folder / "b.sqlite").write_text("mine")
    (folder / "link").symlink_to(folder / "nowhere")
    for name, why in (("b.sqlite", "exists"), ("link", "exists"), ("none/b.sqlite", "does not exist")):
        with pytest.raises(ValueError, match=why):
            back_up(plane, folder / name)
    assert (folder / "b.sqlite").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["b.sqlite", "link"]


def test_a_name_taken_meanwhile_is_left(plane, folder):
    target = folder / "b.sqlite"
    with pytest.raises(ValueError, match="exists"):
        back_up(plane, target, progress=lambda done, total: target.write_text("theirs"))
    assert target.read_text() == "theirs"
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("links", [True, False])
def test_it_works_on_a_disk_without_hard_links(plane, folder, monkeypatch, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda self, other: (_ for _ in ()).throw(OSError(1, "no")))
    plane.submit("gpu", b"x", id="j")
    back_up(plane, folder / "b.sqlite")
    assert [path.name for path in folder.iterdir()] == ["b.sqlite"]
    with Dispatch(folder / "b.sqlite") as copy:
        assert copy.count("gpu") == 1


def test_a_damaged_copy_gets_no_name(plane, folder, monkeypatch):
    for n in range(200):
        plane.submit("gpu", b"x" * 900, id=f"j{n}")
    verify = sqlite_backup._verify

    def damaged(part):
        with part.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 8192)
        verify(part)

    monkeypatch.setattr(sqlite_backup, "_verify", damaged)
    with pytest.raises(PlaneUnavailable):
        back_up(plane, folder / "b.sqlite")
    assert not list(folder.iterdir())
    assert plane.count("gpu") == 200


def test_an_interrupted_one_leaves_nothing(plane, folder):
    def progress(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(plane, folder / "b.sqlite", progress=progress)
    assert not list(folder.iterdir())
    plane.submit("gpu", b"x", id="still-works")


def test_a_memory_plane_is_backed_up_too(folder):
    with Dispatch() as plane:
        plane.submit("gpu", b"x", id="j")
        back_up(plane, folder / "b.sqlite")
    with Dispatch(folder / "b.sqlite") as copy:
        assert copy.get("j")["state"] == "queued"
