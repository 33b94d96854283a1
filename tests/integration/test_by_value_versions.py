"""By-value jobs between interpreters: submitted under one Python, taken by a worker of another.

The others are found on the path and among pyenv's, or named: TEST_PYTHONS=a/bin/python:b/bin/python. One
that is not there, or cannot import what lakeshore needs, is skipped by name.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lakeshore import Dispatch, InvocationFailed, SyncQueue

ROOT = Path(__file__).parents[2]
HERE = sys.version_info[:2]
OTHERS = [minor for minor in ((3, 11), (3, 12), (3, 13)) if minor != HERE]

TRY = """
import sys, ulid
from lakeshore import Dispatch, thunk
thunk(lambda: 1).__envelope__(id="i")
Dispatch(":memory:").close()
"""
SUBMIT = """
import pathlib, sys
from lakeshore import SyncQueue, thunk
class Opened:
    "Loading it leaves a mark: so nothing was opened where there is none."
    def __init__(self, mark): self.mark = mark
    def __setstate__(self, state):
        self.__dict__.update(state)
        pathlib.Path(self.mark).write_text("opened")
opened = Opened(sys.argv[1])
def job(x, opened=opened):
    import sys
    return [list(sys.version_info[:2]), x + 1]
print(SyncQueue("gpu").submit(thunk(job, 1)), end="")
"""
PARTIAL = """
import functools
from lakeshore import SyncQueue, thunk
print(SyncQueue("gpu").submit(thunk(functools.partial(pow, 2), 5)), end="")
"""
WORK = """
import sys
from lakeshore import SyncQueue, run_worker
print(run_worker(SyncQueue("gpu"), once=True, retries=0, runtime_policy=sys.argv[1]), end="")
"""


@functools.cache
def interpreter(minor):
    """Return a Python of this minor version that runs lakeshore, or None."""
    version = f"{minor[0]}.{minor[1]}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = os.environ.get("TEST_PYTHONS", "").split(os.pathsep)
    found = [*named, shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
    for program in filter(None, found):
        tried = subprocess.run(
            [str(program), "-c", f"{TRY}\nassert sys.version_info[:2] == {minor}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=60,
        )
        if tried.returncode == 0:
            return str(program)
    return None


def python(minor, home, code, *argv):
    if minor == HERE:
        program = sys.executable
    else:
        program = interpreter(minor)
        if program is None:
            pytest.skip(f"no Python {minor[0]}.{minor[1]} here that has what lakeshore needs")
    done = subprocess.run(
        [program, "-c", code, *argv],
        env={**os.environ, "LAKESHORE_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def place(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home, tmp_path / "mark"


@pytest.mark.parametrize("policy", ["minor", "strict"])
@pytest.mark.parametrize("other", OTHERS, ids=lambda minor: f"{minor[0]}.{minor[1]}")
@pytest.mark.parametrize("way", ["to", "from"])
def test_another_minor_is_refused_before_anything_is_opened(place, other, way, policy):
    home, mark = place
    theirs, ours = (HERE, other) if way == "to" else (other, HERE)
    inv = python(theirs, home, SUBMIT, str(mark))
    mark.unlink(missing_ok=True)  # the submitter may have tried it out
    assert python(ours, home, WORK, policy) == "1"
    plane = Dispatch(str(home / "dispatch.sqlite"))
    try:
        with pytest.raises(InvocationFailed) as refused:
            SyncQueue("gpu", dispatch=plane).result(inv, timeout=1)
        row = plane.get(inv)
    finally:
        plane.close()
    assert refused.value.type == "RuntimeMismatch"
    for minor in (theirs, ours):
        assert f"Python {minor[0]}.{minor[1]}." in refused.value.message
    assert row["attempt"] == 1
    assert not mark.exists()


def test_the_same_python_runs_it_under_the_strictest_policy(place):
    home, mark = place
    inv = python(HERE, home, SUBMIT, str(mark))
    python(HERE, home, WORK, "strict")
    plane = Dispatch(str(home / "dispatch.sqlite"))
    assert SyncQueue("gpu", dispatch=plane).result(inv, timeout=1) == [list(HERE), 2]
    plane.close()
    assert mark.read_text() == "opened"


@pytest.mark.parametrize("other", OTHERS, ids=lambda minor: f"{minor[0]}.{minor[1]}")
@pytest.mark.parametrize("way", ["to", "from"])
def test_off_lets_through_what_holds_no_bytecode(place, other, way):
    home, _ = place
    theirs, ours = (HERE, other) if way == "to" else (other, HERE)
    inv = python(theirs, home, PARTIAL)
    assert python(ours, home, WORK, "off") == "1"
    plane = Dispatch(str(home / "dispatch.sqlite"))
    try:
        assert SyncQueue("gpu", dispatch=plane).result(inv, timeout=1) == 32
    finally:
        plane.close()
