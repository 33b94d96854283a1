"""The magics' sub-commands: a real parser for each, its help, and the nearest word for a typo."""

from __future__ import annotations

import argparse
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from IPython.core.error import UsageError

from lakeshore import settings
from lakeshore.notebook.cell import nearest

MAX_SIZE = 10 * 1024 * 1024
"""`--max-size` without the flag: bytes a by-value function may take along."""

_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)
_DURATION = re.compile(r"\d+(\.\d+)?[smhdw]?")


class HelpWanted(Exception):
    """`-h` was given; the message is the help."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises instead of leaving the interpreter."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong as a usage error that shows the usage."""
        sentence = message if message.endswith((".", "?")) else f"{message}."
        # The cell magic wants a body even for its -h.
        more = "%lakeshore help submit" if self.prog.startswith("%%") else "-h"
        raise UsageError(f"{sentence} Usage: {self._short()} ({more} for more)")

    def _short(self) -> str:
        """Return the usage without the flags' names."""
        words = [self.prog]
        for action in self._actions:
            if not action.option_strings:
                name = str(action.metavar or action.dest)
                words.append(
                    {"?": f"[{name}]", "*": f"[{name}…]", "+": f"{name}…"}.get(str(action.nargs), name)
                )
        if any(action.option_strings and action.dest != "help" for action in self._actions):
            words.append("[flags]")
        return " ".join(words)

    def print_help(self, file: Any = None) -> NoReturn:
        """Hand the help text to whoever runs the magic."""
        raise HelpWanted(self.format_help())


# -- kinds of values

_TAKEN = re.compile(r"__\w+__|get_ipython|In|Out|exit|quit|_+|_i+|_[iod]h|_i?\d+")


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name for a variable")
    if _TAKEN.fullmatch(unicodedata.normalize("NFKC", text)):
        raise argparse.ArgumentTypeError(
            f"{text!r} belongs to Python or IPython, which break without it; take another, such as job"
        )
    return text


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return text


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r}: wants a finite number")
    return number


def _seconds(text: str) -> float:
    try:
        number = settings.duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return number


def _age(text: str) -> float:
    """An age of what is to be deleted: without its unit it might be meant in days."""
    bare = text.strip()
    if bare.replace(".", "", 1).isdecimal() and float(bare) > 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} of what? Write the unit: {bare}d (days), {bare}h, {bare}m or {bare}s"
        )
    return _seconds(bare)


def _patience(text: str) -> float:
    return math.inf if text == "inf" else _seconds(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 500k, 20M, 1G")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: wants 1 or more")
    return number


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip().isidentifier() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=EXPRESSION, such as lr=0.1")
    return name.strip(), value.strip()


# -- the sub-commands


def _submit(p: Parser) -> None:
    p.add_argument("queue", metavar="QUEUE", help="where the job waits for a worker")
    p.add_argument(
        "-o", "--out", metavar="VAR", type=_variable, help="variable that gets the id, or the shape of ids"
    )
    p.add_argument(
        "-r", "--result", metavar="VAR", type=_variable, help="variable that gets the value; with --wait"
    )
    p.add_argument("-n", "--name", type=_text, help="the job's name; the function's without it")
    p.add_argument("-k", "--key", help="submit at most once under this key; an existing job is shown instead")
    p.add_argument("-p", "--priority", type=_finite, default=0.0, help="higher runs earlier (default 0)")
    p.add_argument(
        "--delay", type=_seconds, default=0.0, metavar="SECONDS", help="not before this many seconds (or 5m)"
    )
    p.add_argument(
        "-a",
        "--arg",
        metavar="NAME=EXPR",
        type=_assignment,
        action="append",
        default=[],
        help="argument of a def",
    )
    p.add_argument("--fn", metavar="NAME", help="ship this function; the cell runs here")
    p.add_argument("--cell", action="store_true", help="ship the whole cell")
    p.add_argument(
        "--retries", type=int, metavar="N", help="attempts after a failure (the worker's default is 1)"
    )
    p.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="fail an attempt that takes longer")
    p.add_argument(
        "-w", "--wait", nargs="?", const=math.inf, type=_patience, metavar="SECONDS", help="wait for the end"
    )
    p.add_argument(
        "--on-interrupt",
        choices=("detach", "cancel"),
        default="detach",
        help="what Ctrl-C does while waiting",
    )
    p.add_argument("-q", "--quiet", action="store_true", help="show nothing; _lakeshore holds the id")
    p.add_argument("--text", action="store_true", help="plain text, no widget")
    p.add_argument(
        "--max-size",
        type=_size,
        default=MAX_SIZE,
        metavar="SIZE",
        help="refuse to take along more (default 10M)",
    )
    p.add_argument(
        "--dry-run",
        action="store_true",
        help="run what runs here, show what would be taken along, submit nothing",
    )
    p.add_argument("--plane", metavar="PATH|URL", help="submit there, this once")


def _ls(p: Parser) -> None:
    p.add_argument("queue", nargs="?", metavar="QUEUE", help="only this queue")
    p.add_argument(
        "--state", choices=("queued", "running", "succeeded", "failed", "cancelled"), help="only this state"
    )
    p.add_argument(
        "-n", type=_count, default=20, metavar="N", help="at most so many, newest first (default 20)"
    )


def _stream(p: Parser) -> None:
    p.add_argument("ref", metavar="REF", help="id, unique prefix, variable or key")
    p.add_argument(
        "--since", type=int, default=-1, metavar="N", help="after this frame (default: from the start)"
    )
    p.add_argument("--wait", action="store_true", help="hold the cell until the end")
    p.add_argument("--text", action="store_true", help="plain text, no widget")


def _one(p: Parser) -> None:
    p.add_argument("ref", metavar="REF", help="id, unique prefix, variable or key")


def _wait(p: Parser) -> None:
    p.add_argument("refs", nargs="+", metavar="REF", help="ids, unique prefixes, variables or keys")
    p.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="give up after so long (the jobs go on)"
    )


def _result(p: Parser) -> None:
    _one(p)
    p.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="wait so long (default 30)"
    )


def _cancel(p: Parser) -> None:
    p.add_argument("refs", nargs="*", metavar="REF", help="ids, unique prefixes, variables or keys")
    p.add_argument("--queue", metavar="Q", help="with --all: this queue")
    p.add_argument("--all", action="store_true", help="all that is queued or running in --queue")


def _worker(p: Parser) -> None:
    actions = p.add_subparsers(dest="action", required=True, metavar="start|stop|status", parser_class=Parser)
    start = actions.add_parser("start", help="run a queue's jobs in this kernel")
    start.add_argument("queue", metavar="QUEUE")
    how = start.add_mutually_exclusive_group()
    how.add_argument("--threads", type=_count, default=1, metavar="N", help="so many threads (default 1)")
    how.add_argument(
        "--process", action="store_true", help="a process beside the kernel, for bodies that hold the GIL"
    )
    start.add_argument("--root", metavar="P", help="where jobs read and write files (default: here)")
    start.add_argument("--plane", metavar="PATH|URL", help="work the queue of this plane")
    actions.add_parser("stop", help="finish what runs, then stop").add_argument(
        "queue", nargs="?", metavar="QUEUE"
    )
    actions.add_parser("status", help="the workers of this kernel").add_argument(
        "queue", nargs="?", metavar="QUEUE"
    )


def _workers(p: Parser) -> None:
    p.add_argument("queue", nargs="?", metavar="QUEUE", help="only this queue's")


def _plane(p: Parser) -> None:
    p.add_argument(
        "where", nargs="?", metavar="PATH|URL", help="use this plane from now on; 'default' goes back"
    )


def _prune(p: Parser) -> None:
    p.add_argument(
        "--older-than", type=_age, default=30 * 86400.0, metavar="AGE", help="such as 12h (default 30d)"
    )
    p.add_argument(
        "--state",
        choices=("succeeded", "failed", "cancelled"),
        action="append",
        help="only this state; repeatable",
    )
    p.add_argument("--dry-run", action="store_true", help="delete nothing; say how many would go")


def _help(p: Parser) -> None:
    p.add_argument("command", nargs="?", metavar="COMMAND")


def _bare(p: Parser) -> None:
    pass


COMMANDS: Mapping[str, tuple[Callable[[Parser], None], str]] = {
    "submit": (_submit, "ship the cell below to a queue"),
    "status": (_bare, "the plane, its queues, this kernel's workers"),
    "ls": (_ls, "list jobs, newest first"),
    "stream": (_stream, "show a job's live panel"),
    "logs": (_one, "what a job printed"),
    "wait": (_wait, "hold the cell until jobs end"),
    "result": (_result, "a job's result"),
    "show": (_one, "all that is known of a job"),
    "cancel": (_cancel, "cancel jobs"),
    "requeue": (_one, "queue a failed or cancelled job again"),
    "worker": (_worker, "run jobs in this kernel, or beside it"),
    "workers": (_workers, "this kernel's workers: worker status"),
    "plane": (_plane, "show or change where jobs are kept"),
    "queues": (_bare, "queues and their counts by state"),
    "prune": (_prune, "delete old finished jobs"),
    "doctor": (_bare, "check this set-up and say how to mend it"),
    "help": (_help, "this, or a command's help"),
}
"""Each sub-command's parser and what it does in a few words."""


def parser(command: str) -> Parser:
    """Return the parser of one sub-command."""
    build, what = COMMANDS[command]
    sign = "%%" if command == "submit" else "%"
    made = Parser(
        prog=f"{sign}lakeshore {command}", description=what[0].upper() + what[1:] + ".", allow_abbrev=False
    )
    build(made)
    return made


def flags(command: str) -> list[str]:
    """Return a sub-command's flags, for completion and suggestions."""
    return sorted(_flags(parser(command)))


def _flags(made: argparse.ArgumentParser) -> set[str]:
    return {flag for each in _all(made) for action in each._actions for flag in action.option_strings}


def _all(made: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its own sub-commands."""
    yield made
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _all(inner)


def parse(command: str, words: list[str]) -> argparse.Namespace:
    """Parse a sub-command's arguments.

    Raises
    ------
    UsageError
        When they do not fit; a typo gets the nearest flag.
    HelpWanted
        When they ask for help.
    """
    made = parser(command)
    namespace, unknown = made.parse_known_args(_bind_values(command, words))
    if unknown:
        word = unknown[0].partition("=")[0]
        made.error(f"unknown argument {unknown[0]!r}.{nearest(word, flags(command))}")
    return namespace


def _bind_values(command: str, words: list[str]) -> list[str]:
    """Write values that argparse would misread onto their flag: a bare `--wait`'s, and negative numbers."""
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if command == "submit" and word in ("-w", "--wait"):
            seconds = rest.pop(0) if rest and _DURATION.fullmatch(rest[0]) else "inf"
            out.append(f"--wait={seconds}")
        elif word.startswith("-") and _NUMBER.fullmatch(word) and out and out[-1].startswith("-"):
            out[-1] += ("=" if out[-1].startswith("--") else "") + word
        else:
            out.append(word)
    return out


def summary() -> str:
    """Return the short help: each command in a line."""
    lines = [
        "Submit a cell as a durable job, and look after jobs, queues and workers.",
        "",
        "    %%lakeshore submit QUEUE [flags]     the cell below is the job",
        "    %lakeshore COMMAND [arguments]       alone: status",
        "",
        *(f"    {name:<9} {what}" for name, (_, what) in COMMANDS.items()),
        "",
        "REF is an id, a unique prefix of one, a variable that holds one (or a shape of them), or a key.",
        "Each command takes -h; %lakeshore? lists all flags.",
        "",
    ]
    return "\n".join(lines)


def overview() -> str:
    """Return the whole help, which `%lakeshore?` and `%%lakeshore?` show."""
    return "\n".join([summary(), *(each.format_help() for name in COMMANDS for each in _all(parser(name)))])
