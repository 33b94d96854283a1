"""The magics' sub-commands: flags, help, and what a typo gets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from IPython.core.error import UsageError

from lakeshore.notebook import arguments, words


def submit(line: str) -> Any:
    return arguments.parse("submit", words.split(line))


@pytest.mark.parametrize(
    ("line", "wait", "queue"),
    [
        ("gpu", None, "gpu"),
        ("gpu -w", math.inf, "gpu"),
        ("gpu --wait", math.inf, "gpu"),
        ("-w gpu", math.inf, "gpu"),
        ("-w 5 gpu", 5.0, "gpu"),
        ("gpu -w5", 5.0, "gpu"),
        ("gpu --wait=2m", 120.0, "gpu"),
        ("gpu -w 1.5 -q", 1.5, "gpu"),
    ],
)
def test_wait(line: str, wait: float | None, queue: str) -> None:
    made = submit(line)
    assert (made.wait, made.queue) == (wait, queue)


def test_submit_flags() -> None:
    made = vars(
        submit(
            "gpu -o a -r b -n name -k key -p -1.5 --delay 2m -a x=1 --arg y='z w' --fn f --retries 3 "
            "--timeout 1h -w --on-interrupt cancel -q --text --max-size 5M --dry-run --plane p"
        )
    )
    text = {"queue": "gpu", "out": "a", "result": "b", "name": "name", "key": "key", "fn": "f", "plane": "p"}
    numbers = {"priority": -1.5, "delay": 120.0, "retries": 3, "timeout": 3600.0, "max_size": 5 * 2**20}
    switches = {"cell": False, "wait": math.inf, "on_interrupt": "cancel", "quiet": True, "text": True}
    more = {"arg": [("x", "1"), ("y", "'z w'")], "dry_run": True}
    assert made == {**text, **numbers, **switches, **more}
    assert submit("gpu -p -1e3").priority == -1000.0
    assert submit("gpu --priority -2").priority == -2.0
    assert submit("gpu").max_size == 10 * 2**20


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "QUEUE"),
        ("gpu cpu", "unknown argument 'cpu'"),
        ("gpu --retires 3", "Did you mean --retries"),
        ("gpu --on-interupt cancel", "Did you mean --on-interrupt"),
        ("gpu -p high", "high"),
        ("gpu -p nan", "finite"),
        ("gpu --delay soon", "soon"),
        ("gpu -o 1x", "no name for a variable"),
        ("gpu -o for", "no name for a variable"),
        ("gpu -a lr", "NAME=EXPRESSION"),
        ("gpu --max-size big", "20M"),
        ("gpu --on-interrupt stop", "detach"),
        ("gpu --wai", "--wait"),
    ],
)
def test_usage_errors(line: str, says: str) -> None:
    with pytest.raises(UsageError, match="%%lakeshore submit") as wrong:
        submit(line)
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("command", arguments.COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_on_each(command: str, flag: str) -> None:
    with pytest.raises(arguments.HelpWanted, match=f"lakeshore {command}"):
        arguments.parse(command, [flag])


def test_overview_holds_every_command_and_flag() -> None:
    text = arguments.overview()
    for command in arguments.COMMANDS:
        assert command in text
        for flag in arguments.flags(command):
            assert flag in text, f"{command} {flag}"
