"""The guide's page on the command line: it names every command and flag, and each of its lines runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from unit.planes_http.ours import Ours

from lakeshore import Dispatch, conformance, daemon
from lakeshore.cli.app import app, run
from lakeshore.conformance import jobs, orders
from lakeshore.planes.default import set_default_plane
from lakeshore.planes.store_tokens import Tokens

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
LINES = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line
]


def commands(group=None, path=()):
    """Yield ``(words, command)`` for each command."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def section_of(words):
    """Return the lines of the page that run a command."""
    return [line for line in LINES if shlex.split(line)[1 : 1 + len(words)] == list(words)]


@pytest.mark.parametrize(("words", "command"), list(commands()), ids=str)
def test_every_command_and_flag_is_on_the_page(words, command):
    assert section_of(words), f"no example of {' '.join(words)}"
    assert command.help
    for parameter in command.params:
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        assert all(re.search(rf"{flag}\b", PAGE) for flag in flags), (words, flags)
        assert parameter.help, (words, parameter.name)


def test_every_flag_of_the_daemon_is_on_the_page():
    flags = re.findall(r"--[a-z][a-z-]+", daemon.parser().format_help())
    assert [flag for flag in sorted(set(flags)) if f"`{flag}" not in PAGE] == []


def submit_as_the_page_does():
    scope = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "page", "exec"), scope)
    return {"JOB": scope["job"], "SPARE": scope["spare"]}


def until(seen):
    end = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_the_lines_run(home, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(conformance.run, "_ROOMS", (jobs, orders))  # all of them run elsewhere
    (tmp_path / "token.txt").write_text("tok")
    plane = Dispatch(home / "dispatch.sqlite")
    set_default_plane(plane)
    started = []
    with Ours() as ours:
        told = {"URL": ours.url, "TOKEN_ID": Tokens(plane).create(ns="team", role="producer")[1].id}
        for name, value in {**submit_as_the_page_does(), **told}.items():
            monkeypatch.setenv(name, value)
        assert run(["worker", "once", "--queue", "gpu"]) == 0
        try:
            for line in LINES:
                words = shlex.split(os.path.expandvars(line.partition(" > ")[0]))
                assert words.pop(0) == "lakeshore"
                if words[0] == "--install-completion":
                    continue  # writes to the user's shell; test_cli_care.py tries completion in bash
                if words[0] == "serve":
                    continue  # goes on until it is told to stop
                if words[:2] == ["worker", "start"]:
                    before = len(plane.workers())
                    started.append(subprocess.Popen([sys.executable, "-m", "lakeshore.cli", *words]))
                    until(lambda: len(plane.workers()) == before + 2)  # noqa: B023
                    continue
                assert run(words) in ((0, 1) if words[0] == "doctor" else (0,)), (line, capfd.readouterr())
            assert [process.wait(20) for process in started] == [0]
        finally:
            for process in started:
                process.kill()
                process.wait()
            set_default_plane(None)
            plane.close()
    assert (tmp_path / "jobs-backup.sqlite").exists()
