"""What people expect of any command line: exit codes, Ctrl-C, narrow terminals, colours, exact JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from lakeshore import Dispatch, SyncQueue, run_worker, thunk
from lakeshore.cli import processes, where
from lakeshore.cli.app import run
from lakeshore.cli.tables import _json
from lakeshore.wire import value_frames

NOWHERE = "http://127.0.0.1:9"
COMMANDS = [
    ["ls"], ["show", "x"], ["result", "x"], ["stream", "x"], ["logs", "x"], ["cancel", "x"], ["requeue", "x"],
    ["prune", "--older-than", "1d"], ["prune", "--older-than", "1d", "--dry-run"], ["queues"], ["workers"],
    ["worker", "status"], ["worker", "stop"],
]  # fmt: skip


@pytest.fixture
def store(home):
    plane = Dispatch(str(home / "dispatch.sqlite"))
    yield plane
    plane.close()


def by_name(words):
    return " ".join(words)


@pytest.mark.parametrize("words", COMMANDS, ids=by_name)
def test_a_plane_that_does_not_answer_is_one_line_and_3(home, capsys, monkeypatch, words):
    monkeypatch.setattr(where, "FIRST_CONTACT", 0.05)
    assert run([*words, "--plane", NOWHERE]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert NOWHERE in err
    assert run([*words, "--plane", NOWHERE, "--json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "plane_unavailable"


@pytest.mark.parametrize("words", [*COMMANDS, ["backup", "copy.sqlite"], ["conformance"]], ids=by_name)
def test_a_file_that_is_no_plane_is_one_line_and_3(home, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no database at all")
    assert run([*words, "--plane", "notes.txt"]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "notes.txt" in err
    assert not (tmp_path / "copy.sqlite").exists()


@pytest.mark.parametrize(
    "words",
    [*COMMANDS, ["backup", "copy.sqlite"], ["conformance"], ["doctor"], ["demo"]],
    ids=by_name,
)
def test_a_bad_flag_is_one_line_and_2(home, capsys, words):
    assert run([*words, "--no-such-flag"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("words", [*COMMANDS, ["doctor"], ["backup", "copy.sqlite"]], ids=by_name)
def test_two_planes_at_once_are_refused(home, capsys, words):
    assert run([*words, "--plane", "x.sqlite", "--url", NOWHERE]) == 2
    assert "give one" in capsys.readouterr().err


def test_a_slip_is_answered_with_what_was_meant(home, capsys):
    for words, meant in ((["lss"], "ls"), (["cancle", "x"], "cancel"), (["worker", "stat"], "start")):
        assert run(words) == 2
        assert meant in capsys.readouterr().err


def test_ctrl_c_ends_the_wait_with_130_and_not_the_job(home, store):
    job = SyncQueue("gpu", dispatch=store).submit(thunk(max, 1, 2))
    for words in (["result", job], ["stream", job], ["logs", job]):
        waiting = subprocess.Popen(
            [sys.executable, "-c", _SAY_WHEN_WAITING, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=20)
        assert (waiting.returncode, out, err) == (130, "", "lakeshore: interrupted; jobs go on\n"), words
    assert store.get(job)["state"] == "queued"


_SAY_WHEN_WAITING = """
import sys
from lakeshore.planes.sqlite import Dispatch
for verb in ("result", "journal_read"):
    def wrapped(self, *args, _real=getattr(Dispatch, verb), **options):
        print("waiting", flush=True)
        return _real(self, *args, **options)
    setattr(Dispatch, verb, wrapped)
from lakeshore.cli import main
main()
"""


def on_terminal(*words, columns, **environment):
    """Run the command line on a terminal so wide; returns what it showed."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "lakeshore.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(20) == 0
    return seen.decode()


def test_a_narrow_terminal_gets_whole_columns_and_fewer(home, store):
    q = SyncQueue("a-queue-of-some-length", dispatch=store)
    job = q.submit(thunk(int, "none"))
    run_worker(q, once=True, retries=0)
    wide = on_terminal("ls", columns=140, NO_COLOR="1")
    assert "ValueError" in wide
    assert "attempt" in wide
    for columns in (80, 60, 45, 30):
        seen = on_terminal("ls", columns=columns, NO_COLOR="1")
        lines = re.sub(r"\x1b\[[0-9]m", "", seen).splitlines()
        assert [line for line in lines if len(line) > columns] == []
        assert job in lines[1]
        assert columns < 45 or "failed" in lines[1]
    assert on_terminal("ls", columns=12, NO_COLOR="1").replace("\r\n", "").count(job[:10]) == 1


_COLOUR = r"\x1b\[[0-9;]*3[0-7]m"


def colourful():
    print("\x1b[31mred\x1b[0m")


def test_no_color_is_heeded(home, store):
    q = SyncQueue("gpu", dispatch=store)
    job = q.submit(thunk(colourful))
    run_worker(q, once=True)
    for words in (["ls"], ["logs", job]):
        assert re.search(_COLOUR, on_terminal(*words, columns=120))
        assert not re.search(_COLOUR, on_terminal(*words, columns=120, NO_COLOR="1"))
    assert "\x1b[31m" not in on_terminal("logs", job, columns=120, TERM="dumb")


def test_prune_can_be_tried_first(home, store, capsys):
    q = SyncQueue("gpu", dispatch=store)
    for n in range(3):
        q.submit(thunk(int, "7" if n else "none"))
        run_worker(q, once=True, retries=0)
    q.submit(thunk(int, "7"))
    words = ["prune", "--older-than", "0", "--dry-run", "--plane", str(home)]
    assert run(words) == 0
    assert capsys.readouterr().out == "3 jobs would be deleted\n"
    assert run([*words, "--state", "failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": 0, "would_delete": 1}
    assert run(["prune", "--older-than", "1d", "--dry-run", "--plane", str(home)]) == 0
    assert capsys.readouterr().out == "0 jobs would be deleted\n"
    assert run(["prune", "--dry-run", "--plane", str(home)]) == 0
    assert capsys.readouterr().out == "0 jobs would be deleted: they ended more than 30d ago\n"
    assert len(store.invocations()) == 4


@pytest.mark.parametrize("age", ["30", "0.5", " 3600 "])
def test_prune_refuses_an_age_without_a_unit(home, store, capsys, age):
    q = SyncQueue("gpu", dispatch=store)
    q.submit(thunk(int, "7"))
    run_worker(q, once=True)
    for more in ([], ["--dry-run"], ["--json"]):
        assert run(["prune", "--older-than", age, "--plane", str(home), *more]) == 2
        assert f"{age.strip()}d" in capsys.readouterr().err
    assert run(["prune", "--plane", str(home)]) == 2
    assert "--older-than 30d" in capsys.readouterr().err
    assert len(store.invocations()) == 1


def test_json_says_each_value_without_loss():
    import datetime as dt

    import numpy as np
    import pandas as pd

    said = {
        "pairs where two keys look alike": ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        "set": ({3, 1}, [1, 3]),
        "time": (dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "2026-01-02T03:04:00+00:00"),
        "times": (np.array(["2026-01-02"], "M8[D]"), ["2026-01-02"]),
        "array": (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        "scalar": (np.float32(0.5), 0.5),
        "table": (pd.DataFrame({"a": [1, 2]}), [{"a": 1}, {"a": 2}]),
        "bytes": (b"\x00", {"base64": "AA=="}),
        "not a number": ([float("nan"), -0.0], ["nan", -0.0]),
        "big": (2**80, 2**80),
        "tuple": ((1, (2,)), [1, [2]]),
    }
    for name, (value, expected) in said.items():
        assert json.loads(_json(value)) == expected, name


def test_workers_are_started_on_a_named_plane(tmp_path, monkeypatch):
    from typer import BadParameter

    from lakeshore.cli.worker import _checked

    monkeypatch.setenv("LAKESHORE_HOME", "/nowhere")
    monkeypatch.setenv("LAKESHORE_URL", "http://127.0.0.1:1")
    assert _checked(["gpu", "--plane", NOWHERE]) == ["gpu", "--url", NOWHERE]
    for text in (str(tmp_path), f"{tmp_path}/dispatch.sqlite", f"sqlite:///{tmp_path}/dispatch.sqlite"):
        monkeypatch.setenv("LAKESHORE_HOME", "/nowhere")
        assert _checked(["gpu", f"--plane={text}"]) == ["gpu"]
        assert os.environ["LAKESHORE_HOME"] == str(tmp_path)
        assert "LAKESHORE_URL" not in os.environ
    for bad in (["--plane", f"{tmp_path}/x.sqlite"], ["--plane"], ["--plane", ".", "--url", NOWHERE]):
        with pytest.raises(BadParameter, match="--plane"):
            _checked(["gpu", *bad])


def test_a_wait_for_a_job_that_nobody_takes_says_so(home, store, capsys, monkeypatch):
    from lakeshore.queues import unserved

    monkeypatch.setattr(unserved, "_POLLS", 0.01)
    inv = SyncQueue("gpu", dispatch=store).submit(thunk(int, "7"))
    for verb in ("result", "stream", "logs"):
        assert run([verb, inv, "--timeout", "0.02", "--plane", str(home)]) == 1
        told = capsys.readouterr().err
        assert "no worker has asked for 'gpu' lately" in told
        assert "lakeshore worker start --queue gpu" in told
        assert "journal_read" not in told


def test_a_silent_job_is_told_of_in_the_commands_own_words(home, store, capsys):
    inv = SyncQueue("gpu", dispatch=store).submit(thunk(int, "7"))
    claimed = store.claim("gpu", "w")
    store.journal_append(inv, None, value_frames(1)[0], worker_id="w", fence=claimed.fence)
    for verb, did, more in (("stream", "yielded", " --since 0"), ("logs", "printed", "")):
        assert run([verb, inv, "--timeout", "0.02", "--plane", str(home)]) == 1
        told = capsys.readouterr().err
        assert f"{inv} has {did} nothing for 0.02 s" in told
        assert f"read on with: lakeshore {verb} {inv}{more}" in told
        assert not re.search("journal_read|since=", told)


def test_workers_that_are_gone_are_counted_and_listed_with_all(home, store, capsys, monkeypatch):
    def words(*more):
        assert run(["workers", "--plane", str(home), *more]) == 0
        return " ".join(capsys.readouterr().out.split())

    q = SyncQueue("gpu", dispatch=store)
    q.submit(1)
    killed = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from lakeshore import Dispatch as D; D(sys.argv[1]).claim('gpu', 'w')",
        ]
        + [str(home / "dispatch.sqlite")]
    )
    assert killed.wait() == 0
    shown = words()
    assert shown.startswith("no worker is here now. Start one: ")
    assert shown.endswith("1 more is gone, with 1 running job that will be taken anew; --all lists them")
    assert run_worker(q, once=True) == 0  # asks, and is here
    assert f"{os.getpid()}" in words()
    assert words("--all").split().count("gone") == words("--all").split().count("here") == 1
    rows = json.loads(words("--json"))
    assert [(row["gone"], row["running"]) for row in rows] == [(False, 0), (True, 1)]
    monkeypatch.setattr(processes, "SILENT_SECONDS", 0.0)
    assert "2 more are gone" in words()


def test_a_lease_is_shown_as_a_time(home, store, capsys):
    inv = SyncQueue("gpu", dispatch=store).submit(1)
    store.claim("gpu", "w", lease=7200)
    assert run(["show", inv, "--plane", str(home)]) == 0
    assert re.search(
        r"lease_expires_at  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(in 2 h\)\n", capsys.readouterr().out
    )
