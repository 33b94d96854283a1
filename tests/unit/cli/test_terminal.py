"""No text of a job commands the terminal that the command line prints on; JSON says it exactly."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.cli import app
from lakeshore.cli.terminal import json_text, log_text, shown

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x1b\\ \x1b[2J\x1b[1;1H \x9b2J \u202e \x08 \x00 end"
RED = "\x1b[1;31mred\x1b[0m"
UNSAFE = [chr(c) for c in (*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066)]


def safe(text: str) -> bool:
    return not any(char in text for char in UNSAFE)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a failed job `bad` and one that succeeded, `good`; every text is hostile."""
    monkeypatch.delenv("LAKESHORE_URL", raising=False)
    path = tmp_path / "t.db"
    with Dispatch(str(path)) as plane:
        q = SyncQueue("gpu", dispatch=plane)
        for id in ("bad", "good"):
            q.submit(EVIL, id=id)
            claimed = plane.claim("gpu", "w")
            assert claimed is not None
            plane.journal_extend(id, wire.value_frames(EVIL))
            plane.journal_extend(f"{id}.progress", wire.value_frames({"done": 10**400, "note": EVIL}))
            log = [{"stream": "stdout", "text": f"{RED} {EVIL}\n"}, {"display": {"text/plain": EVIL}}]
            for entry in log:
                plane.journal_extend(f"{id}.log", wire.value_frames(entry))
            if id == "bad":
                error = {"type": "ValueError", "message": EVIL, "traceback": f"line 1\n{EVIL}"}
                plane.nack(id, "w", fence=claimed.fence, error=error, retry=False)
            else:
                plane.ack(id, "w", result=wire.pack(EVIL), fence=claimed.fence, frame=wire.end_frame(0))
    return path


COMMANDS = [
    ["ls"],
    ["show", "bad"],
    ["show", "good"],
    ["result", "good"],
    ["result", "bad"],
    ["stream", "good"],
    ["stream", "bad"],
    ["logs", "bad"],
    ["workers"],
    ["queues"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_a_jobs_text_cannot_command_the_terminal(
    store: Path, capsys: pytest.CaptureFixture[str], command: list[str], flag: list[str]
) -> None:
    app.run([*command, *flag, "--plane", str(store)])
    out, err = capsys.readouterr()
    assert (out + err).strip()
    assert safe(out) and safe(err)


@pytest.mark.parametrize("command", [["result", "good"], ["stream", "good"]], ids=" ".join)
def test_json_is_exact(store: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert app.run([*command, "--json", "--plane", str(store)]) == 0
    assert json.loads(capsys.readouterr().out) == EVIL


def on_terminal(*command: str) -> str:
    """Return what a command writes to a terminal of its own."""
    main, other = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "lakeshore.cli", *command],
        stdin=subprocess.DEVNULL,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(other)
        out = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # Linux says so that the other end is closed
                break
            if not part:
                break
            out += part
    os.close(main)
    assert process.returncode == 0, out
    return out.decode()


def test_a_terminal_gets_the_colours_of_a_log_and_nothing_else(store: Path) -> None:
    out = on_terminal("logs", "bad", "--plane", str(store))
    assert "\x1b[1;31mred\x1b[0m" in out and out.endswith("\x1b[0m")
    left = out.replace("\x1b[1;31m", "").replace("\x1b[0m", "").replace("\r\n", "\n")
    assert safe(left), left


@pytest.mark.parametrize(
    ("text", "terminal", "file"),
    [
        (RED, RED, "red"),
        ("50%\r100%\r\n", "50%\r100%\n", "50%\n100%\n"),
        ("a\x1b[2Kb\x1b[3Ac", "abc", "abc"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
        ("\x1bPq#0\x1b\\x\x1b7y\x1bc", "xy", "xy"),
        ("\x1b[?1049h\x1b[6n\x1b[>c", "", ""),
        ("cut \x1b[31", "cut [31", "cut [31"),
        ("tab\tand bell\x07", "tab\tand bell", "tab\tand bell"),
    ],
)
def test_logs(text: str, terminal: str, file: str) -> None:
    assert log_text(text, colours=True) == terminal
    assert log_text(text, colours=False) == file


@given(st.text(alphabet="\x1b[]PX^_\\\x07\x08\x9b\x90\r\n;:0123?m Kab\u202e\ud800", max_size=40))
def test_any_text_is_safe(text: str) -> None:
    assert safe(shown(text)) and safe(log_text(text, colours=False))
    coloured = log_text(text, colours=True)
    for code in coloured.split("\x1b")[1:]:
        assert code[0] == "[" and code[1:].partition("m")[0].strip("0123456789;:") == "" and "m" in code
    assert json.loads(json_text(json.dumps(text, ensure_ascii=False))) == text
    for each in (shown(text), coloured, json_text(json.dumps(text, ensure_ascii=False))):
        each.encode()


def test_a_bar_shows_whatever_a_job_tells(store: Path) -> None:
    from lakeshore.cli import jobs

    with Dispatch(str(store)) as plane:
        look: Callable[[], object] = jobs._progress_of(plane, "good")
        assert look() == (0.0, None, EVIL)
