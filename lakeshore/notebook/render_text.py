"""The panel of one job as plain text: a pure function from state to the record's text, and to one line."""

from __future__ import annotations

from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numerals import number
from lakeshore.notebook.render_state import PanelState
from lakeshore.notebook.render_terminal import line_text
from lakeshore.notebook.render_values import Shown, clip
from lakeshore.notebook.render_words import (
    METRICS_SHOWN,
    RECORD_LINES,
    RECORD_ROWS,
    RESULT_LINE,
    facts,
    fitted,
    is_line,
    newest_lines,
    progress_line,
    record_notes,
    tail_words,
    traceback_lines,
)
from lakeshore.states import TERMINAL, State

TEXT_BYTES = 5_800
"""The most that the text form has; with `render.HTML_BYTES` both stay under 20 KB together."""


def record_text(state: PanelState, now: float) -> str:
    """Return the panel as plain text: id, state, numbers, last values, log, error."""
    return fitted(lambda share: _text(state, now, share), TEXT_BYTES)


def _text(state: PanelState, now: float, share: float) -> str:
    lines = [f"{clip(state.name, 80) + ' · ' if state.name else ''}{state.state} · {state.id}"]
    known = facts(state, now)
    if known:
        lines.append(" · ".join(known))
    fraction = state.progress.fraction if state.progress else None
    if state.progress and state.state not in TERMINAL:
        lines.append(progress_line(state, now, fraction))
    if state.metrics:
        shown = list(state.metrics.values())[:METRICS_SHOWN]
        lines.append("  ".join(f"{clip(m.key, 40)} {number(m.value)}" for m in shown))
    lines += record_notes(state, now)
    if state.result:
        lines.append(_result_text(state.result))
    if state.tail:
        lines.append(f"{tail_words(state)}:")
        texts = [shown.text for shown in state.tail[-max(1, round(RECORD_ROWS * share)) :]]
        if share == 0:
            texts = [" ".join(clip(text, 120).split()) for text in texts]
        lines += [f"  {line}" for text in texts for line in text.splitlines() or [""]]
    lines += [state.earlier_displays] if state.earlier_displays else []
    lines += [f"figure: {clip(each.text, 80 + round(520 * share))}" for each in state.figures]
    if state.log and share:
        lines.append("log:")
        lines += [f"  {line_text(line)}" for line in newest_lines(state.log, RECORD_LINES, share)]
    if state.error:
        lines.append(f"error: {clip(state.error, 100 + round(900 * share))}")
        lines += [f"  {line}" for line in traceback_lines(state, share)]
    return "\n".join(lines)


def status_line(state: PanelState, now: float) -> str:
    """Return where the job stands as one line of text, the newest numbers or value with it."""
    words = [state.state, *facts(state, now)[1 if state.queue else 0 :]]
    if state.progress and state.state == State.RUNNING:
        words.append(progress_line(state, now, state.progress.fraction))
    if state.result:
        words.append(f"result {' '.join(state.result.text.split())[:RESULT_LINE]}")
    elif state.tail:
        words.append(" ".join(state.tail[-1].text.split())[:160])
    return " · ".join(words)


def _result_text(result: Shown | Figure) -> str:
    if is_line(result.text):
        return f"result {result.text}"
    return "\n".join(["result:", *(f"  {line}" for line in result.text.splitlines())])
