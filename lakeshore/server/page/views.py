"""What each view of the page shows, taken from the rows. Escaping is the templates' business."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from lakeshore.planes.contract import check_id, check_name
from lakeshore.planes.names import name_of
from lakeshore.planes.store_within import Within
from lakeshore.server.aged import counts
from lakeshore.server.answers import Refusal
from lakeshore.states import TERMINAL, State

RECENT: Final = 15
PAGE: Final = 50
_LOOK_AT: Final = 5000
"""How many of the newest jobs are looked at for the beginning of an id."""
_LAST: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp()
_NAMED: Final = 256 * 1024
"""The largest envelope that is opened for a job's name, in bytes."""


def overview(plane: Within) -> dict[str, Any]:
    """Return the queues, the workers and the newest jobs; many rows are counted every some seconds only."""
    counted = counts(plane).value
    return {
        "queues": [
            {"name": name, **{str(s): states.get(s, 0) for s in State}} for name, states in counted.items()
        ],
        "workers": sorted(plane.workers(), key=lambda each: -each["seen_at"]),
        "jobs": [_listed(plane, row) for row in plane.invocations(limit=RECENT)],
    }


def jobs(plane: Within, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the jobs that were asked for.

    Raises
    ------
    ValueError
        When a queue's name or a state cannot be one.
    """
    queue, state, find = asked["queue"] or None, asked["state"] or None, asked["find"].strip()
    queues = list(plane.queues())
    if find:
        rows = [row for row in _found(plane, find, [queue] if queue else queues) if _is(row, queue, state)]
        older = ""
    else:
        rows = plane.invocations(queue, state=state, limit=PAGE + 1, before=asked["before"] or None)
        older = rows[PAGE - 1]["id"] if len(rows) > PAGE else ""
    return {
        "queue_names": sorted({*queues, *([queue] if queue else [])}),
        "jobs": [_listed(plane, row) for row in rows[:PAGE]],
        "older": older,
    }


def _is(row: Mapping[str, Any], queue: str | None, state: str | None) -> bool:
    return queue in (None, row["queue"]) and state in (None, row["state"])


def _found(plane: Within, text: str, queues: list[str]) -> list[dict[str, Any]]:
    """Return the jobs whose id is or begins with `text`, or whose key it is; newest first."""
    found: dict[str, dict[str, Any]] = {}
    try:
        row = plane.look(check_id(text))
        if row is not None:
            return [row]
    except ValueError:
        pass  # no id, perhaps a key
    for id in plane.keyed(check_name(text, "find"), queues):
        row = plane.look(id)
        if row is not None:
            found[id] = row
    for row in plane.invocations(limit=_LOOK_AT):
        if len(found) >= PAGE:
            break
        if row["id"].startswith(text):
            found.setdefault(row["id"], row)
    return list(found.values())


def job(plane: Within, id: str) -> dict[str, Any]:
    """Return one job.

    Raises
    ------
    Refusal
        When there is none of this id here (404).
    """
    row = plane.look(check_id(id))
    if row is None:
        raise Refusal("not_found", f"no job {id[:140]!r} in this namespace. Check the id and the namespace.")
    return {
        "job": {
            **_listed(plane, row),
            "has_result": row["state"] == State.SUCCEEDED,
            "ended": row["state"] in TERMINAL,
            "may_cancel": row["state"] not in TERMINAL,
            "may_requeue": row["state"] in (State.FAILED, State.CANCELLED),
            "error": row["error"] and text(row["error"]),
            "traceback": row["traceback"] and text(row["traceback"]),
        }
    }


def _listed(plane: Within, row: Mapping[str, Any]) -> dict[str, Any]:
    began, ended = row["started_at"], row["finished_at"]
    return {
        **row,
        "name": _name(plane, row["id"]),
        "seconds": None if began is None or ended is None else max(0.0, ended - began),
    }


def _name(plane: Within, id: str) -> str:
    """Return what a job is called: its own name, else its function's; empty for a plain payload."""
    name = name_of(plane, id, most=_NAMED)
    return "" if name is None else short(name, 80)


# -- texts ----------------------------------------------------------------------


def text(value: str) -> str:
    """Return a text of several lines without what would move the rest of the page: control and bidi marks."""
    return "".join(char if char in "\n\t" or not _moves(char) else "\ufffd" for char in value)


def short(value: object, limit: int = 60) -> str:
    """Return a text for one line, at most `limit` characters."""
    line = "".join("\ufffd" if _moves(char) else char for char in str(value)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _moves(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def iso(at: float) -> str:
    """Return a moment for a machine."""
    return _date(at).isoformat(timespec="milliseconds")


def moment(at: float) -> str:
    """Return a moment in UTC for people; the page turns it into how long ago that was."""
    return _date(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def _date(at: float) -> dt.datetime:
    """Return a moment as a date, the last there is for one that lies beyond the calendar."""
    return dt.datetime.fromtimestamp(min(max(at, 0.0), _LAST), dt.UTC)
