"""The `lakeshore` command: tables for people, ``--json`` for machines, exit codes that mean something.

0 well · 1 the job failed · 2 wrong use · 3 the plane cannot be reached. An error is one line, no traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

JOB_FAILED, USAGE, UNREACHABLE = 1, 2, 3
FOUND_FAULTS = BROKEN_RULES = STILL_RUNNING = JOB_FAILED


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line `argv` (default: the process's own) and exit with its code."""
    from lakeshore.cli.app import run

    code = run(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has left: say no more, also not at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
