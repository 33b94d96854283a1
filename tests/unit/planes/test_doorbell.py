"""Bells: a ring is never lost between hanging up and waiting, and nothing of a dead waiter stays."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from lakeshore.planes import doorbell
from lakeshore.planes.doorbell import Belfry, FolderBelfry, MemoryBelfry, SleepBell


@pytest.fixture(params=["memory", "folder", "two processes' folders"])
def belfries(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Belfry, Belfry]:
    """Where bells hang, and from where they are rung."""
    if request.param == "memory":
        belfry = MemoryBelfry()
        return belfry, belfry
    one = FolderBelfry(tmp_path / "bells")
    return one, one if request.param == "folder" else FolderBelfry(tmp_path / "bells")


def waited(bell: doorbell.Bell, timeout: float) -> float:
    began = time.monotonic()
    bell.wait(timeout)
    return time.monotonic() - began


def test_a_ring_before_the_wait_is_kept(belfries: tuple[Belfry, Belfry]) -> None:
    hung, rung = belfries
    for turn in range(50):  # a listing that is too young, or too old, would miss some of these
        bell = hung.hang("topic")
        rung.ring(["other", "topic"])
        assert waited(bell, 5.0) < 1.0, f"turn {turn}"
        bell.close()


def test_a_ring_wakes_a_waiter(belfries: tuple[Belfry, Belfry]) -> None:
    hung, rung = belfries
    bell = hung.hang("topic")
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(waited(bell, 10.0)))
    thread.start()
    rung.ring(["topic"])
    thread.join()
    assert took[0] < 2.0
    bell.close()


def test_a_cleared_bell_is_silent_until_the_next_ring(belfries: tuple[Belfry, Belfry]) -> None:
    hung, rung = belfries
    bell = hung.hang("topic")
    for _ in range(3):
        rung.ring(["topic"])
    bell.clear()
    assert waited(bell, 0.05) >= 0.04
    rung.ring(["topic"])
    assert waited(bell, 5.0) < 1.0
    bell.close()


def test_rings_for_nobody_and_floods_do_not_block(belfries: tuple[Belfry, Belfry]) -> None:
    hung, rung = belfries
    bell = hung.hang("topic")
    for _ in range(70_000 if isinstance(hung, MemoryBelfry) else 3000):
        rung.ring(["topic", "nobody"])
    bell.close()
    rung.ring(["topic"])


def test_every_bell_of_a_topic_rings(belfries: tuple[Belfry, Belfry]) -> None:
    hung, rung = belfries
    bells = [hung.hang("topic") for _ in range(80)]  # more than the ends a ringer keeps open
    rung.ring(["topic"])
    assert all(waited(bell, 5.0) < 1.0 for bell in bells)
    for bell in bells:
        bell.close()


def test_closed_and_forgotten_bells_leave_no_file_and_no_descriptor(tmp_path: Path) -> None:
    belfry = FolderBelfry(tmp_path / "bells")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(20):
        belfry.hang("topic").close()
        belfry.hang("topic")  # dropped without close, as by an interrupt
        belfry.ring(["topic"])
    belfry.close()
    assert not list((tmp_path / "bells").iterdir())
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_dead_waiters_bell_is_removed_by_who_rings_it(tmp_path: Path) -> None:
    belfry = FolderBelfry(tmp_path / "bells")
    dead = tmp_path / "bells" / f"{doorbell._digest('topic')}.1.1"
    os.mkfifo(dead)
    belfry.ring(["topic"])
    assert not dead.exists()


def test_a_sweep_spares_bells_that_are_just_being_hung(tmp_path: Path) -> None:
    belfry = FolderBelfry(tmp_path / "bells")
    for name in ("new-aaaaaaaa.1.1", "bbbbbbbb.1.1", "other.pipe"):
        os.mkfifo(tmp_path / "bells" / name)
    (tmp_path / "bells" / "note").write_text("a file of somebody's")
    belfry.hang("topic").close()
    assert sorted(path.name for path in (tmp_path / "bells").iterdir()) == [
        *("new-aaaaaaaa.1.1", "note", "other.pipe")
    ]


def test_a_folder_that_is_gone_is_made_again_and_one_that_cannot_be_is_done_without(tmp_path: Path) -> None:
    belfry = FolderBelfry(tmp_path / "bells")
    (tmp_path / "bells").rmdir()
    belfry.ring(["topic"])
    bell = belfry.hang("topic")
    belfry.ring(["topic"])
    assert waited(bell, 5.0) < 1.0
    bell.close()
    (tmp_path / "bells").rmdir()
    (tmp_path / "bells").write_text("a file where the folder was")
    bell = belfry.hang("topic")
    assert isinstance(bell, SleepBell)
    belfry.ring(["topic"])
    assert waited(bell, 60.0) < 1.0


def test_only_own_pipes_of_a_bells_name_are_rung(tmp_path: Path) -> None:
    belfry, target = FolderBelfry(tmp_path / "bells"), tmp_path / "target"
    target.write_bytes(b"mine")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    of_topic = doorbell._digest("topic")
    (tmp_path / "bells" / f"{of_topic}.1.1").symlink_to(target)
    (tmp_path / "bells" / f"{of_topic}.1.2").symlink_to(pipe)
    (tmp_path / "bells" / f"{of_topic}.1.3").hardlink_to(target)
    (tmp_path / "bells" / f"{of_topic}.1.4").mkdir()
    (tmp_path / "bells" / of_topic).hardlink_to(pipe)
    (tmp_path / "bells" / f"{of_topic}.x").hardlink_to(pipe)
    bell = belfry.hang("topic")
    belfry.ring(["topic"])
    assert waited(bell, 5.0) < 1.0, "the bell among them rings"
    assert target.read_bytes() == b"mine"
    with pytest.raises(BlockingIOError):
        os.read(heard, 1)
    bell.close()
    belfry.close()
    os.close(heard)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_strangers_pipe_is_not_rung(tmp_path: Path) -> None:
    belfry = FolderBelfry(tmp_path / "bells")
    pipe = tmp_path / "bells" / f"{doorbell._digest('topic')}.1.1"
    os.mkfifo(pipe)
    os.chown(pipe, 65534, 65534)
    heard = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    belfry.ring(["topic"])
    with pytest.raises(BlockingIOError):
        os.read(heard, 1)
    os.close(heard)


@pytest.mark.parametrize("how", ["link", "open to others", "a stranger's"])
@pytest.mark.parametrize("when", ["before", "later"])
def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, how: str, when: str) -> None:
    if how == "a stranger's" and os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    bells, other = tmp_path / "bells", tmp_path / "other"
    belfry = None if when == "before" else FolderBelfry(bells)
    if belfry is not None:
        belfry.hang("topic").close()
        belfry.ring(["topic"])
        bells.rmdir()
    other.mkdir(mode=0o700)
    pipe = other / f"{doorbell._digest('topic')}.1.1"
    os.mkfifo(pipe)
    heard = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    if how == "link":
        bells.symlink_to(other)
    else:
        other.rename(bells)
        other = bells
        bells.chmod(0o755 if how == "open to others" else 0o700)
        os.chown(bells, *((65534, 65534) if how == "a stranger's" else (-1, -1)))
    belfry = belfry or FolderBelfry(bells)
    bell = belfry.hang("topic")
    assert isinstance(bell, SleepBell)
    assert waited(bell, 60.0) < 1.0, "waits go on, by looking again"
    belfry.ring(["topic"])
    with pytest.raises(BlockingIOError):
        os.read(heard, 1)
    assert [path.name for path in other.iterdir()] == [pipe.name]
    os.close(heard)
