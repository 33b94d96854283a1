"""Tab in a `%lakeshore` line: sub-commands, flags, queue names and live ids; a cell's body is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from lakeshore.errors import LakeshoreError
from lakeshore.notebook import arguments
from lakeshore.planes.contract import Plane

_LINE = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?%lakeshore(\s+.*)?$")
_CELL = re.compile(r"^%%lakeshore(\s+.*)?$")
_REFS = frozenset({"stream", "logs", "wait", "result", "show", "cancel", "requeue"})
_QUEUES = frozenset({"submit", "ls", "start", "stop", "status", "workers"})
_IDS = 50


def matcher(plane: Callable[[], Plane]) -> Any:
    """Make the matcher to append to `ip.Completer.custom_matchers`.

    Parameters
    ----------
    plane : callable
        Returns the plane in use.
    """

    @context_matcher()  # type: ignore[untyped-decorator]
    def lakeshore_matcher(context: CompletionContext) -> SimpleMatcherResult:
        before = context.text_until_cursor
        pattern = _CELL if context.cursor_line == 0 and before.startswith("%%") else _LINE
        match = pattern.match(before)
        if match is None or match[1] is None:
            return {"completions": []}
        words = match[1].split()
        word = "" if match[1][-1].isspace() else words.pop()
        found = [
            text for text in _candidates(words, word, plane, cell=pattern is _CELL) if text.startswith(word)
        ]
        return {
            "completions": [SimpleCompletion(text=text, type="lakeshore") for text in found],
            "matched_fragment": word,
            "suppress": True,
        }

    return lakeshore_matcher


def _candidates(words: list[str], word: str, plane: Callable[[], Plane], *, cell: bool) -> Iterable[str]:
    if not words:
        return ["submit"] if cell else [name for name in arguments.COMMANDS if name != "submit"]
    command = words[0]
    if command not in arguments.COMMANDS:
        return []
    if word.startswith("-"):
        return arguments.flags(command)
    if command == "help":
        return list(arguments.COMMANDS)
    if command == "worker" and len(words) == 1:
        return ["start", "stop", "status"]
    last = words[1] if command == "worker" else command
    try:
        if last in _QUEUES or words[-1] == "--queue":
            return sorted(plane().queues())
        if last in _REFS:
            return [row["id"] for row in plane().invocations(limit=_IDS)]
    except LakeshoreError:  # a plane that is away has nothing to offer, and Tab must not raise
        pass
    return []
