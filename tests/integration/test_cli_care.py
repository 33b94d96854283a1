"""backup, doctor, demo, conformance and completion, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from lakeshore import Dispatch
from lakeshore.cli.app import run
from lakeshore.planes.default import set_default_plane


@pytest.fixture
def plane(home):
    plane = Dispatch(home / "dispatch.sqlite")
    set_default_plane(plane)
    yield plane
    set_default_plane(None)
    plane.close()


@pytest.fixture
def cli(plane, capsys):
    """Run a command line; returns its code, stdout and stderr."""

    def call(*argv):
        code = run([str(word) for word in argv])
        return code, *capsys.readouterr()

    return call


# -- backup


def test_backup(cli, plane, tmp_path):
    plane.submit("gpu", b"x", id="j")
    code, out, _ = cli("backup", tmp_path / "b.sqlite")
    assert code == 0
    assert "verified" in out
    assert stat.S_IMODE((tmp_path / "b.sqlite").stat().st_mode) == 0o600
    told = json.loads(cli("backup", tmp_path / "c.sqlite", "--json")[1])
    assert told == {
        "file": str(tmp_path / "c.sqlite"),
        "bytes": (tmp_path / "c.sqlite").stat().st_size,
        "verified": True,
    }
    assert json.loads(cli("queues", "--plane", tmp_path / "b.sqlite", "--json")[1]) == {"gpu": {"queued": 1}}


def test_backup_refuses_what_exists_and_what_is_no_file(cli, tmp_path):
    (tmp_path / "b.sqlite").write_text("mine")
    code, out, err = cli("backup", tmp_path / "b.sqlite")
    assert (code, out) == (2, "")
    assert "exists" in err
    assert err.count("\n") == 1
    assert cli("backup", tmp_path / "none" / "b.sqlite")[0] == 2
    code, _, err = cli("backup", tmp_path / "c.sqlite", "--url", "http://127.0.0.1:1")
    assert code == 2
    assert "--plane" in err
    assert "pg_dump --schema=lakeshore" in err
    assert not (tmp_path / "c.sqlite").exists()


def test_backup_of_a_database_is_told_what_does_it(cli, tmp_path, monkeypatch):
    dsn = "postgresql://me:hush@127.0.0.1:1/db"
    (tmp_path / "store").write_text(dsn)
    ways = [("--plane", dsn), ("--store", dsn), ("--store-file", tmp_path / "store"), ("--url", dsn), ()]
    for way in ways:
        if not way:
            monkeypatch.setenv("LAKESHORE_URL", dsn)
        code, out, err = cli("backup", tmp_path / "c.sqlite", *way)
        assert (code, out) == (2, ""), err
        assert "pg_dump" in err
        assert "hush" not in err
    assert not (tmp_path / "c.sqlite").exists()


# -- which plane


def test_every_command_takes_a_store_by_name_and_by_file(cli, tmp_path):
    path = tmp_path / "jobs.sqlite"
    with Dispatch(path) as other:
        other.submit("gpu", b"x", id="other")
    (tmp_path / "store").write_text(f"{path}\n")
    ways = [("--plane", path), ("--store", path), ("--store", f"sqlite:///{path}")]
    for way in [*ways, ("--store-file", tmp_path / "store")]:
        assert [row["id"] for row in json.loads(cli("ls", *way, "--json")[1])] == ["other"]
        assert json.loads(cli("prune", "--dry-run", *way, "--json")[1])
        assert str(path) in cli("doctor", *way)[1]
        assert cli("show", "other", *way)[0] == 0
    code, out, err = cli("ls", "--plane", path, "--store-file", tmp_path / "store")
    assert (code, out) == (2, "")
    assert "--plane and --store-file: give one" in err
    code, out, err = cli("ls", "--store-file", tmp_path / "none")
    assert code == 2
    assert "cannot be read" in err


def on_a_terminal(*argv, home):
    """Run the command with a terminal for stderr; returns what the terminal showed, and the exit code."""
    main, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lakeshore.cli", *map(str, argv)],
        stdout=subprocess.DEVNULL,
        stderr=end,
        env={**os.environ, "LAKESHORE_HOME": str(home), "TERM": "xterm"},
    )
    os.close(end)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    return shown.decode(), process.wait(30)


def test_a_terminal_sees_progress_on_stderr(plane, home, tmp_path):
    plane.submit("gpu", b"x", id="j")
    shown, code = on_a_terminal("backup", tmp_path / "b.sqlite", home=home)
    assert code == 0
    assert "copying" in shown
    claimed = plane.claim("gpu", "w")
    from lakeshore import wire

    report = wire.value_frames({"done": 3.0, "total": 9.0, "note": "epoch 3"})
    plane.journal_extend("j.progress", report, worker_id="w", fence=claimed.fence)
    shown, code = on_a_terminal("result", "j", "--timeout", "0.8", home=home)
    assert code == 1
    assert "epoch 3" in shown
    assert "has not ended within 0.8 s" in shown.replace("\r\n", " ")


# -- doctor


def test_doctor_is_well_and_says_what_is_not(cli, plane):
    code, out, _ = cli("doctor")
    assert code == 0
    assert "all is well" in out
    plane.submit("a b", b"x", id="j")
    code, out, _ = cli("doctor")
    assert code == 1
    assert "FAULT" in out
    assert "lakeshore worker start --queue 'a b'" in out
    rows = {row["check"]: row for row in json.loads(cli("doctor", "--json")[1])}
    assert rows["queue a b"]["state"] == "fault"
    assert rows["sqlite"]["state"] == "ok"


def test_doctor_goes_on_past_a_queue_whose_name_cannot_be(cli, plane, home):
    plane.submit("gpu", b"x", id="a")
    plane.submit("z", b"x", id="b")
    raw = apsw.Connection(str(home / "dispatch.sqlite"))
    raw.execute("UPDATE invocation SET queue = char(27) || '[31m' WHERE id = 'a'")
    raw.close()
    code, out, err = cli("doctor")
    assert code == 1
    assert "holds a control character" in out
    assert "queue z" in out
    assert "\x1b" not in out + err
    assert "clock" in out


def test_doctor_tells_of_a_plane_that_cannot_be_opened(home, capsys):
    (home / "dispatch.sqlite").write_bytes(b"no database" * 100)
    assert run(["doctor", "--plane", str(home)]) == 1
    out, err = capsys.readouterr()
    assert "FAULT" in out
    assert "no lakeshore database" in out
    assert err == ""


def test_doctor_of_a_new_machine_finds_nothing_to_mend(home, capsys):
    assert run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert f"there are no jobs yet: no file '{home / 'dispatch.sqlite'}'" in out.replace("\n", " ")
    assert "FAULT" not in out
    assert err == ""
    assert not list(home.iterdir())
    assert run(["doctor", "--json"]) == 0
    assert {row["check"]: row["state"] for row in json.loads(capsys.readouterr().out)}["plane"] == "note"
    assert run(["doctor", "--plane", str(home)]) == 2  # one that was named must be there


def test_doctor_tells_of_an_environment_that_cannot_be(home, capsys, monkeypatch):
    monkeypatch.setenv("LAKESHORE_KEEP", "soon")
    assert run(["doctor"]) == 1
    assert "'soon' is no duration" in capsys.readouterr().out


# -- demo


def test_demo_needs_nothing_and_leaves_nothing(cli, plane, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("LAKESHORE_URL", "http://127.0.0.1:1")
    code, out, err = cli("demo")
    assert (code, err) == (0, "")
    assert out.count("\nframe ") == 5
    assert "result     {'loss': 0.03125}" in out
    assert not list(temporary.iterdir())
    assert plane.queues() == {}
    told = json.loads(cli("demo", "--json")[1])
    assert told["result"] == {"loss": 0.03125}
    assert [frame["step"] for frame in told["frames"]] == [1, 2, 3, 4, 5]


def test_a_demo_whose_worker_fails_says_what_it_said(cli, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'lakeshore.daemon' in sys.orig_argv:\n    os.write(2, b'no such luck\\n')\n    os._exit(9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("lakeshore.cli.demo._PATIENCE", 0.5)
    code, _, err = cli("demo")
    assert code == 1
    assert "no such luck" in err


# -- conformance

SOME = ("a_submitted_job_is_queued", "fifo_is_highest_then_oldest", "frames_come_back_in_order")
ONLY = [word for rule in SOME for word in ("--only", rule)]


def test_conformance_of_a_plane_of_its_own(cli, plane):
    code, out, _ = cli("conformance", *ONLY)
    assert code == 0
    assert "3 of 3 rules held" in out
    assert "Submit makes one queued row" in out
    assert plane.queues() == {}
    rows = json.loads(cli("conformance", *ONLY, "--json")[1])
    assert [(row["rule"], row["ok"]) for row in rows] == [(rule, True) for rule in SOME]


def test_conformance_of_a_store_leaves_it_as_it_was(cli, plane, home):
    assert cli("conformance", *ONLY, "--plane", home)[0] == 0
    tables = dict.fromkeys(("invocation", "journal", "frame"))
    for name in tables:
        tables[name] = plane._read(lambda tx, n=name: tx.execute(f"SELECT count(*) FROM {n}").fetchall())
    assert tables == dict.fromkeys(tables, [(0,)])


def test_a_broken_rule_is_1_and_an_unknown_one_2(cli, monkeypatch):
    code, out, err = cli("conformance", "--only", "no_such_rule")
    assert (code, out) == (2, "")
    assert "no_such_rule" in err
    monkeypatch.setattr(Dispatch, "count", lambda self, queue, state="queued": 7)
    code, out, _ = cli("conformance", "--only", "counts_are_the_rows")
    assert code == 1
    assert "BROKEN" in out
    assert "0 of 1 rules held" in out


# -- completion

BASH = """
eval "$(_LAKESHORE_COMPLETE=source_bash lakeshore)"
complete -p lakeshore
tab() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _lakeshore_completion lakeshore; echo "${COMPREPLY[@]}"
}
tab lakeshore do
tab lakeshore worker st
tab lakeshore ls --sta
tab lakeshore ls --state ca
tab lakeshore ls g
tab lakeshore show 01A
LAKESHORE_HOME=none tab lakeshore show 01A
"""


def test_bash_completes_commands_flags_states_queues_and_ids(plane, tmp_path):
    plane.submit("gpu", b"x", id="01ABC")
    plane.submit("cpu", b"x", id="01XYZ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = subprocess.run(
        ["bash", "--norc", "-c", BASH],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )
    first, *offered = script.stdout.splitlines()
    assert first.startswith("complete "), script.stderr
    assert offered == ["doctor", "start status stop", "--state", "cancelled", "gpu", "01ABC", ""]
    assert not (tmp_path / "none").exists()


def test_errors_are_json_where_json_is_asked_for(cli, plane):
    code, out, err = cli("show", "nope", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["code"] == "unknown_invocation"
    plane.submit("gpu", b"x", id="j")
    plane.cancel("j")
    code, out, err = cli("result", "j", "--json")
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["code"] == "invocation_cancelled"


def test_prune_goes_on_until_all_is_gone(cli, plane, monkeypatch):
    monkeypatch.setattr("lakeshore.cli.jobs._PRUNED_AT_A_TIME", 2)
    for n in range(5):
        plane.submit("gpu", b"x", id=f"j{n}")
        plane.cancel(f"j{n}")
    time.sleep(0.001)
    assert json.loads(cli("prune", "--older-than", "0", "--json")[1]) == {"deleted": 5}
