"""Turns: a fair order, given up on a holder that sleeps, and nothing kept after the last plane."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshore.planes import sqlite_turn
from lakeshore.planes.sqlite_turn import Turn, turn_for

HOLDER = """
    import fcntl, os, sys
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, int(sys.argv[2]))
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holding(side: Path, byte: int) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a lock until it is told a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(side), str(byte)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the writer's lock until it is told a line."""
    with holding(tmp_path / "side", 1) as process:
        yield process


def is_free(side: Path, byte: int) -> bool:
    """Whether another process could lock `byte`."""
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); "
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(side), str(byte)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def take(turn: Turn) -> float:
    """Take and leave a turn; return the seconds it took."""
    began = time.monotonic()
    with turn.lock:
        try:
            turn.take()
        finally:
            turn.leave()
    return time.monotonic() - began


def test_a_holder_is_waited_for(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    turn = Turn(tmp_path / "side")
    threading.Timer(0.2, lambda: (hold.stdin.write("\n"), hold.stdin.flush())).start()  # type: ignore[union-attr]
    assert 0.1 < take(turn) < 0.9
    assert take(turn) < 0.1


def test_a_holder_that_sleeps_is_waited_for_once(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    turn = Turn(tmp_path / "side")
    assert 0.9 < take(turn) < 1.5
    assert max(take(turn) for _ in range(5)) < 0.1
    hold.communicate("\n")
    asker = turn._asker
    assert asker is not None
    end = time.monotonic() + 5
    while asker.late and time.monotonic() < end:
        time.sleep(0.001)  # until the thread has been granted the lock, which nothing announces
    assert not asker.late


def test_a_side_file_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    assert take(Turn(tmp_path / "no" / "folder" / "side")) < 0.1


def test_one_turn_a_file_and_none_after_the_last_plane(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    (tmp_path / "link").symlink_to(path)
    turn = turn_for(path)
    assert turn_for(tmp_path / "link") is turn
    assert turn_for(tmp_path / "other") is not turn
    assert turn_for(None) is not turn_for(None)
    del turn
    gc.collect()
    assert str(path.resolve()) not in sqlite_turn._turns


def test_a_turn_that_was_waited_for_is_given_back(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    """What is granted after its writer went on without it must not stay with this process."""
    turn = Turn(tmp_path / "side")
    take(turn)
    hold.communicate("\n")
    asker = turn._asker
    assert asker is not None
    end = time.monotonic() + 5
    while asker._asking and time.monotonic() < end:
        time.sleep(0.001)  # until the thread has been granted the lock, which nothing announces
    assert is_free(tmp_path / "side", 1)


def test_no_thread_is_left_after_the_last_plane(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    turn = Turn(tmp_path / "side")
    threading.Timer(0.1, lambda: (hold.stdin.write("\n"), hold.stdin.flush())).start()  # type: ignore[union-attr]
    take(turn)
    assert [t for t in threading.enumerate() if t.name == "lakeshore-turn"]
    turn.close()
    assert not [t for t in threading.enumerate() if t.name == "lakeshore-turn"]


def test_an_interrupted_wait_leaves_nothing_behind(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    turn = Turn(tmp_path / "side")
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        take(turn)
    hold.communicate("\n")
    assert take(turn) < 0.5


def test_without_a_thread_to_wait_a_writer_goes_on(
    tmp_path: Path, hold: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert take(Turn(tmp_path / "side")) < 0.1


def test_who_writes_without_a_pause_queues_and_who_does_not_goes_before(
    tmp_path: Path, hold: subprocess.Popen[str]
) -> None:
    with holding(tmp_path / "side", 2):
        hasty, calm = Turn(tmp_path / "side"), Turn(tmp_path / "side")
        hasty.left = time.monotonic()
        assert 0.9 < take(hasty) < 1.5  # two that are stopped cost no more than one
        hold.communicate("\n")
        assert take(calm) < 0.5  # the queue is not its business
        hasty.close()


def test_both_locks_are_given_back(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    turn = Turn(tmp_path / "side")
    turn.left = time.monotonic()
    threading.Timer(0.1, lambda: (hold.stdin.write("\n"), hold.stdin.flush())).start()  # type: ignore[union-attr]
    assert take(turn) < 0.9
    assert is_free(tmp_path / "side", 1)
    assert is_free(tmp_path / "side", 2)
