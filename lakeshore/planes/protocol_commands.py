"""What a control plane's answer hands out: its commands, read as the claims they are.

A command is another program's word: one that cannot be a job is left, and the others are not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lakeshore.planes.contract import Claimed, check_id
from lakeshore.planes.protocol import field

_log = logging.getLogger(__name__)


def read_commands(answer: Mapping[str, Any], queue: str) -> list[Claimed]:
    """Read the jobs of a poll's (or an ending's) answer; one that cannot be read leaves the others.

    A job that is in it twice is one job, as it was claimed last: each copy would be run and ended.

    Raises
    ------
    ValueError
        When there is none that can be read, naming the field of one that cannot.
    """
    jobs: dict[str, Claimed] = {}
    problem = ""
    for each in field(answer, "commands", list, []):
        try:
            one = _read_command(each, queue)
        except ValueError as exc:
            problem = str(exc)
            continue
        if one is not None:
            known = jobs.setdefault(one.id, one)
            if (one.fence, one.attempt) > (known.fence, known.attempt):
                jobs[one.id] = one
    if problem and not jobs:
        raise ValueError(problem)
    if problem:
        _log.warning("a command beside %d others cannot be read (%s): it is left", len(jobs), problem)
    return list(jobs.values())


def _read_command(each: Any, queue: str) -> Claimed | None:
    if not isinstance(each, dict):
        raise ValueError(f"commands: wants maps, got {type(each).__name__}")
    if each.get("kind") != "run":
        return None
    body = field(each, "body", dict)
    config = field(body, "run_config", dict, {})
    return Claimed(
        check_id(field(body, "invocation_id", str), "invocation_id"),
        field(body, "args_blob", bytes),
        field(body, "attempt", int, 1),
        field(config, "queue", str, queue),
        field(body, "fence", int, 0),
        float(field(body, "lease_expires_at", (int, float), 0.0)),
    )


def read_next_seqs(answer: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return, by invocation, the next seqs of the journals that jobs of a poll's answer write to."""
    found: dict[str, list[int]] = {}
    for each in field(answer, "commands", list, []):
        body = each.get("body") if isinstance(each, dict) else None
        seqs = body.get("next_seqs") if isinstance(body, dict) else None
        if (
            isinstance(body, dict)
            and isinstance(seqs, list)
            and all(type(seq) is int and seq >= 0 for seq in seqs)
        ):
            found[str(body.get("invocation_id"))] = seqs
    return found
