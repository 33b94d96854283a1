"""What the library says to programs, in the words of the command line: options for arguments, and no verbs.

Words only are changed, and only those of lakeshore's own messages: what a job said is passed on as it is.
"""

from __future__ import annotations

import re
from typing import Final

from lakeshore.planes.contract import Plane

_OPTIONS: Final = (
    (
        "Set LAKESHORE_CLIENT_TOKEN, or pass token= (a command: --token-file)",
        "Give --token-file FILE, or set LAKESHORE_CLIENT_TOKEN",
    ),
    ("(token=, ", "(--token-file, "),
    ("pass token=", "give --token-file FILE"),
    ("insecure=True, ", ""),
)
_COMMANDS: Final = frozenset({"cancel", "prune", "queues", "requeue", "result", "workers"})
_VERB: Final = re.compile(r"(\w+): ")


def for_terminal(message: str) -> str:
    """Return a message of the library as a command says it.

    The verb of a plane that it begins with goes, unless it is a command too.
    """
    for argument, option in _OPTIONS:
        message = message.replace(argument, option)
    message = re.sub(r"\Abase_url\b", "--url (or LAKESHORE_URL)", message)
    verb = _VERB.match(message)
    if verb is not None and verb[1] not in _COMMANDS and hasattr(Plane, verb[1]):
        return message[verb.end() :]
    return message
