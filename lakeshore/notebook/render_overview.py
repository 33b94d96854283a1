"""Many jobs at once: the group panel of a fan-out and the page of a queue; pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from types import MappingProxyType
from typing import Any

from lakeshore.notebook.render import HTML_BYTES, caption_html, notes_html, state_html
from lakeshore.notebook.render_numbers import LEFT
from lakeshore.notebook.render_style import PANEL, STYLE
from lakeshore.notebook.render_values import clip
from lakeshore.notebook.render_words import clock, duration, fitted
from lakeshore.states import TERMINAL, State

LINES_SHOWN = 20
_URGENCY = [State.FAILED, State.RUNNING, State.QUEUED, State.CANCELLED, State.SUCCEEDED]


@dataclass(frozen=True, slots=True)
class JobSaid:
    """What a job of a fan-out has told of itself: how far it is, and its last values as lines of text."""

    progress: str = ""
    values: tuple[str, ...] = ()

    @property
    def newest(self) -> str:
        """The last of the values, or an empty text."""
        return self.values[-1] if self.values else ""


@dataclass(slots=True)
class GroupState:
    """A fan-out: the rows of its jobs, in the order they were submitted.

    Attributes
    ----------
    name : str or None
        What people call it.
    rows : list of dict
        As `Plane.get` gives them; a job that is gone is left out.
    notes : list of str
        What the reader should know now.
    names : dict of str to str
        What each job is, by id, such as ``"train(lr=0.1)"``; ``""`` where that is not known.
    said : dict of str to JobSaid
        What each job has told, by id; only of jobs that are shown.
    """

    name: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    said: dict[str, JobSaid] = field(default_factory=dict)


@dataclass(slots=True)
class QueueState:
    """A queue: its counts by state, its newest rows with their names, the workers that asked for it."""

    name: str
    counts: dict[str, int]
    rows: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def group_html(state: GroupState, now: float) -> str:
    """Return the live group panel, without stylesheet."""
    # No <details> here: the next update would close what the reader has just opened.
    head = f'<div class="{PANEL} lk-live" role="status" aria-live="off">'
    return fitted(lambda share: f"{head}{_group(state, now, share, fold=False)}</div>", HTML_BYTES)


def group_record(state: GroupState, now: float) -> str:
    """Return the static record of a group; a click on a job's newest value opens the last ones."""
    noted = replace(state, notes=_record_notes(state, now))
    return fitted(lambda share: _record(_group(noted, now, share, fold=True)), HTML_BYTES)


def group_text(state: GroupState, now: float) -> str:
    """Return a group as plain text: counts, then a line a job."""
    name = clip(state.name, 80) if state.name else "group"
    lines = [f"{name} · {counts_text(_counts(state.rows))}", *_record_notes(state, now)]
    shown = pick(state.rows)
    lines += [_line(row, state.names, now, state.said.get(row["id"])) for row in shown]
    if len(shown) < len(state.rows):
        lines.append(f"  and {len(state.rows) - len(shown)} more")
    return "\n".join(lines)


def _record_notes(state: GroupState, now: float) -> list[str]:
    """The notes, and where a job has not ended how to go on from here."""
    going = next((row for row in state.rows if row["state"] not in TERMINAL), None)
    if going is None:
        return state.notes
    lists = f"`%lakeshore ls {shlex.quote(going['queue'])}` lists them"
    return [*state.notes, f"as of {clock(now)}; {lists}, `%lakeshore stream {going['id']}` follows this one"]


def queue_html(state: QueueState, now: float) -> str:
    """Return the page of a queue as static HTML."""
    counts = " · ".join([_name(state.name), *_counted(state.counts)])
    workers = "".join(
        f"<tr><td{LEFT}>{escape(clip(w['worker_id'], 60))}<td>{w['running']} running"
        f"<td>seen {escape(duration(now - w['seen_at']))} ago"
        for w in state.workers[:LINES_SHOWN]
    )
    parts = [
        f'<div class="lk-head">{counts}</div>',
        notes_html(state.notes),
        f'<div class="lk-body"><div>{_table(state.rows, state.names, now)}</div></div>' if state.rows else "",
        f'<div class="lk-body"><div>{caption_html("workers")}<table>{workers}</table></div></div>'
        if workers
        else "",
    ]
    return _record("".join(parts))


def queue_text(state: QueueState, now: float) -> str:
    """Return the page of a queue as plain text."""
    lines = [f"{clip(state.name, 80)} · {counts_text(state.counts)}", *state.notes]
    lines += [_line(row, state.names, now) for row in state.rows]
    lines += [
        f"  worker {clip(w['worker_id'], 60)}: {w['running']} running, "
        f"seen {duration(now - w['seen_at'])} ago"
        for w in state.workers[:LINES_SHOWN]
    ]
    return "\n".join(lines)


def counts_text(counts: dict[str, int]) -> str:
    """Return counts by state as words: ``'3 running, 12 succeeded'``."""
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "no jobs"


def _record(inner: str) -> str:
    return f'<style>{STYLE}</style><div class="{PANEL} lk-record" role="status">{inner}</div>'


def _group(state: GroupState, now: float, share: float, *, fold: bool) -> str:
    counts = _counts(state.rows)
    total, done = len(state.rows), sum(n for name, n in counts.items() if name in TERMINAL)
    ended = f'<span class="lk-mute">{done} of {total} ended</span>'
    parts = [*([_name(state.name)] if state.name else []), ended, *_counted(counts)]
    percent = 100 * done / total if total else 0
    inner = f'<i style="width:{percent:.1f}%"></i>'
    bar = f'<div class="lk-bar" role="progressbar" aria-valuenow="{percent:.0f}">{inner}</div>'
    shown = pick(state.rows)[: max(1, round(LINES_SHOWN * share))]
    said = {
        id: each if fold and share == 1 else JobSaid(each.progress, each.values[-1:])
        for id, each in state.said.items()
    }
    more = caption_html(f"and {total - len(shown)} more") if len(shown) < total else ""
    return (
        f'<div class="lk-head">{" · ".join(parts)}</div>'
        f"{bar if done < total else ''}{notes_html(state.notes)}"
        f'<div class="lk-body"><div>{_table(shown, state.names, now, said)}{more}</div></div>'
    )


def _name(name: str) -> str:
    return f'<b class="lk-name">{escape(clip(name, 80))}</b>'


def _counted(counts: dict[str, int]) -> list[str]:
    return [f"{state_html(name)}\u00a0{n}" for name, n in counts.items() if n]


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    counted = Counter(row["state"] for row in rows)
    return {state: counted[state] for state in State}


def pick(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the rows to show of many, failures and running ones first; all of few, in their own order."""
    if len(rows) <= LINES_SHOWN:
        return rows
    return sorted(rows, key=lambda row: _URGENCY.index(row["state"]))[:LINES_SHOWN]


def _table(
    rows: Sequence[dict[str, Any]],
    names: dict[str, str],
    now: float,
    said: Mapping[str, JobSaid] = MappingProxyType({}),
) -> str:
    named = any(names.get(row["id"]) for row in rows)
    columns = ["state", *(["job"] if named else []), "id", "time", ""]
    head = "".join(f"<th{'' if name == 'time' else LEFT}>{name}" for name in columns)
    lines = "".join(
        f"<tr><td{LEFT}>{state_html(row['state'])}"
        + (f"<td{LEFT}>{escape(_job(row, names))}" if named else "")
        + f'<td{LEFT}><code class="lk-id">{escape(row["id"])}</code>'
        f"<td>{escape(_spent(row, now))}<td{LEFT}>{_told(row, said.get(row['id']))}"
        for row in rows
    )
    table = f'<table><thead align="right"><tr>{head}<tbody align="right">{lines}</table>'
    return f'<div class="lk-scroll lk-jobs">{table}</div>'


def _told(row: dict[str, Any], told: JobSaid | None) -> str:
    words = escape(_said(row, told))
    if told is None or not told.values:
        return words
    newest = escape(told.newest, quote=False)
    if len(told.values) == 1:
        return " · ".join(filter(None, [words, newest]))
    lines = escape("\n".join(told.values), quote=False)
    return f"{words}<details><summary>{newest}</summary><pre>{lines}</pre></details>"


def _line(row: dict[str, Any], names: dict[str, str], now: float, told: JobSaid | None = None) -> str:
    said = "  ".join(filter(None, [_job(row, names), _said(row, told), told.newest if told else ""]))
    return f"  {row['id']}  {row['state']:<9}  {_spent(row, now):>8}  {said}".rstrip()


def _job(row: dict[str, Any], names: dict[str, str]) -> str:
    return clip(names.get(row["id"], ""), 80)


def _spent(row: dict[str, Any], now: float) -> str:
    if row["started_at"] is None:
        return ""
    return duration((row["finished_at"] or now) - row["started_at"])


def _said(row: dict[str, Any], told: JobSaid | None = None) -> str:
    words = [f"attempt {row['attempt']}"] if row["attempt"] > 1 else []
    if row["state"] == State.FAILED and row["error"]:
        words.append(clip(row["error"].splitlines()[0], 120))
    elif row["state"] == State.RUNNING and row["worker_id"]:
        words.append(f"on {clip(row['worker_id'], 60)}")
        words += [told.progress] if told and told.progress else []
    return " · ".join(words)
