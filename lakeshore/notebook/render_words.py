"""What the HTML and the text form of a panel say alike: facts, durations, progress, notes, and what fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from lakeshore.notebook.render_colours import line_html
from lakeshore.notebook.render_numerals import number
from lakeshore.notebook.render_state import PanelState
from lakeshore.notebook.render_terminal import PLAIN, Line, line_text
from lakeshore.notebook.render_values import clip
from lakeshore.states import TERMINAL, State

RECORD_ROWS, RECORD_LINES = 20, 24
RESULT_LINE = 160
"""Characters of a result that stand beside the word; a longer one gets lines of its own."""
METRICS_SHOWN = 8
TRACEBACK_LINES = 30
TEXT_BUDGET = 4500
"""Bytes of HTML of the tail, and half of it for log and traceback each."""
_SHARES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)


def fitted(make: Callable[[float], str], most: int) -> str:
    """Return the fullest of what `make` gives that has at most so many bytes."""
    text = ""
    for share in _SHARES:
        text = make(share)
        if len(text.encode()) <= most:
            break
    return text


def duration(seconds: float) -> str:
    """Return seconds for people, coarser as they grow: ``0.4 s``, ``12 s``, ``4 min 10 s``, ``3 h 5 min``."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"


def facts(state: PanelState, now: float) -> list[str]:
    """Return what is known of a job beside its state, name and id: where, when, how many frames."""
    known = [clip(state.queue, 80)] if state.queue else []
    if state.attempt > 1:
        known.append(f"attempt {state.attempt}")
    if state.worker:
        known.append(f"on {clip(state.worker, 60)}")
    when = _when(state, now)
    if when:
        known.append(when)
    if state.frames:
        rate = (
            f", {number(round(state.rate, 1) if state.rate < 100 else round(state.rate))}/s"
            if state.rate
            else ""
        )
        known.append(f"{state.frames:,} frame{'s' if state.frames != 1 else ''}{rate}")
    if state.gap:
        known.append(f"{state.gap:,} trimmed frames not shown")
    return known


def _when(state: PanelState, now: float) -> str:
    if state.state == State.QUEUED:
        if state.not_before and state.not_before > now:
            return f"due in {duration(state.not_before - now)}"
        return f"waiting {duration(now - state.submitted_at)}" if state.submitted_at else ""
    elapsed = _elapsed(state, now)
    return duration(elapsed) if elapsed is not None else ""


def _elapsed(state: PanelState, now: float) -> float | None:
    if state.started_at is None:
        return None
    return max(0.0, (state.finished_at or now) - state.started_at)


def progress_words(state: PanelState, now: float) -> str:
    """Return how far a running job says it is, or an empty text."""
    if state.progress is None or state.state != State.RUNNING:
        return ""
    return progress_line(state, now, state.progress.fraction)


def progress_line(state: PanelState, now: float, fraction: float | None) -> str:
    """Return how far a job says it is, whatever its state; it must have said so."""
    progress = state.progress
    assert progress is not None
    words = []
    if fraction is None:
        words.append(number(progress.done))
    elif progress.total == 1:
        words.append(f"{fraction:.0%}")
    else:
        words.append(f"{number(progress.done)} of {number(progress.total)}, {fraction:.0%}")
    elapsed = _elapsed(state, now)
    if fraction and 0.01 <= fraction < 1 and elapsed and elapsed > 1:
        words.append(f"about {duration(math.ceil(elapsed * (1 - fraction) / fraction))} left")
    if progress.note:
        words.append(clip(progress.note, 120))
    return " · ".join(words)


def is_line(text: str) -> bool:
    """Tell whether a result is short enough to stand beside its caption."""
    return len(text) <= RESULT_LINE and len(text.splitlines()) <= 1


def record_notes(state: PanelState, now: float) -> list[str]:
    """Return the notes of a record: those of the panel, and which command goes on from here."""
    if state.following == "detached":
        return [
            *state.notes,
            f"detached: {state.id} goes on; `%lakeshore stream {state.id}` follows it again",
        ]
    if state.following == "frozen" and state.state not in TERMINAL:
        return [*state.notes, f"frozen as it stood; `%lakeshore stream {state.id}` follows it again"]
    if state.state in (State.FAILED, State.CANCELLED):
        return [*state.notes, f"`%lakeshore requeue {state.id}` runs it again"]
    if state.following == "live" and state.state not in TERMINAL:
        return [*state.notes, f"as of {clock(now)}; `%lakeshore stream {state.id}` follows it"]
    return state.notes


def clock(now: float) -> str:
    """Return Unix seconds as a date and time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))


def tail_words(state: PanelState) -> str:
    """Return the caption of the values."""
    return "last values" if state.frames > 1 else "value"


def newest_lines(log: list[Line], n: int, share: float) -> list[Line]:
    """Return the last lines of a log that fit."""
    kept: list[Line] = []
    budget = round(TEXT_BUDGET // 2 * share)
    for line in reversed(log[-n:]):
        budget -= len(line_html(line))
        if budget < 0:
            if not kept:  # a line of a colour a letter still shows its text
                kept = [((clip(line_text(line), 120), PLAIN),)]
            break
        kept.insert(0, line)
    return kept


def traceback_lines(state: PanelState, share: float) -> list[str]:
    """Return the last lines of the traceback, each bounded."""
    most = round(TEXT_BUDGET // 2 * share)
    if not state.traceback or not most:
        return []
    if state.error and state.traceback.strip() == state.error.strip():
        return []  # it says no more than the error does
    lines = [clip(line, 300) for line in state.traceback[-most:].rstrip().splitlines()]
    return lines[-TRACEBACK_LINES:]
