"""A worker that its plane does not take: it says so once and ends with 3, and nobody starts it again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import status

from lakeshore import Dispatch
from lakeshore.planes.moving import move
from lakeshore.planes.sqlite_moving import SqliteSide


def ended(*argv: str, **env: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", *argv], env={**os.environ, **env}, capture_output=True, text=True, timeout=20
    )
    return done.returncode, done.stderr.splitlines()


STARTED = [("lakeshore.daemon",), ("lakeshore.cli", "worker", "start"), ("lakeshore.cli", "worker", "once")]


@pytest.mark.parametrize(
    ("argv", "code"),
    [(STARTED[0], 403), (STARTED[1], 401), (STARTED[2], 401)],
    ids=["daemon", "start", "once"],
)
def test_a_worker_that_the_control_plane_does_not_let_in(argv, code):
    with Field() as field:
        field.script["poll"] = [status(code, b"not you") for _ in range(50)]
        field.script["invocations"] = [status(code, b"not you") for _ in range(50)]
        returned, lines = ended(*argv, "--queue", "gpu", LAKESHORE_URL=field.url)
        assert returned == 3, lines
        assert len(field.posts("poll")) == 1
    refusals = [line for line in lines if f"refuses with {code}" in line]
    assert len(refusals) == 1
    assert "LAKESHORE_CLIENT_TOKEN" in refusals[0]
    assert not any("Traceback" in line or "crashed" in line for line in lines)
    assert len(lines) <= 2


def test_a_worker_that_replaces_a_dead_one_may_be_refused_its_jobs():
    with Field() as field:
        field.script["invocations"] = [status(403, b"not you")]
        returned, lines = ended(
            *("lakeshore.daemon", "--queue", "gpu", "--once", "--after", "4194305"), LAKESHORE_URL=field.url
        )
        assert field.posts("poll")
    assert returned == 0, lines
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("argv", STARTED[:2], ids=["daemon", "start"])
def test_a_worker_on_a_store_that_was_moved(argv, home, tmp_path):
    here, there = home / "dispatch.sqlite", tmp_path / "there.sqlite"
    Dispatch(str(here)).close()
    source, target = SqliteSide(here), SqliteSide(there, is_target=True)
    try:
        move(source, target)
    finally:
        source.close()
        target.close()
    returned, lines = ended(*argv, "--queue", "gpu")
    assert returned == 3, lines
    assert len(lines) == 1
    assert "was moved to" in lines[0]
    assert "Go on there" in lines[0]
