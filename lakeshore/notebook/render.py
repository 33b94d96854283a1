"""The panel of one job: a pure function from state to HTML.

`panel_html` is the live view's one changing trait, `record_html` (with `render_text.record_text`) what stays
in the saved notebook. All text that comes from a job is escaped here or in `render_values`; nothing here
reads a clock or a plane. JupyterLab strips ``<style>`` from a notebook it does not trust and GitHub every
class and style too, so meaning rests on elements, spaces and separators; the stylesheet only makes it
pleasant.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from lakeshore.notebook.render_colours import line_html
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numbers import fields_table, sparkline
from lakeshore.notebook.render_numerals import number
from lakeshore.notebook.render_state import Metric, PanelState
from lakeshore.notebook.render_style import DIM, PANEL, STATE_COLOURS, STYLE
from lakeshore.notebook.render_values import Shown, clip
from lakeshore.notebook.render_words import (
    METRICS_SHOWN,
    RECORD_LINES,
    RECORD_ROWS,
    TEXT_BUDGET,
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

LIVE_ROWS, LIVE_LINES = 12, 10
NO_BREAK = "\u00a0"
SEPARATOR = '<span class="lk-sep"> · </span>'
"""Between numbers where no stylesheet sets a gap."""
HTML_BYTES = 14_000
"""The most that a panel or record has without figure; one that would have more shows less of each part."""


def panel_html(state: PanelState, now: float) -> str:
    """Return the live panel without stylesheet and figure, at `now` by the plane's clock."""
    return fitted(lambda share: _panel(state, now, share), HTML_BYTES)


def _panel(state: PanelState, now: float, share: float) -> str:
    # aria-live is off: an update ten times a second would make a screen reader speak without end.
    return (
        f'<div class="{PANEL} lk-live" role="status" aria-live="off" {_data(state)}>'
        f'<div class="lk-top">{_head(state, now)}{_bar(state, now, live=True)}'
        f"{_numbers(state.metrics.values(), share)}{notes_html(state.notes)}</div>"
        f"{_error(state, share)}{_result(state, share, live=True)}"
        f"{_body(state, LIVE_ROWS, LIVE_LINES, share)}</div>"
    )


def figure_html(state: PanelState) -> str:
    """Return the displays and the newest figure for the live panel, or an empty text."""
    shown = [*state.displays, *([state.figure] if state.figure else [])]
    return f'<div class="{PANEL} lk-live">{_figures(state, shown)}</div>' if shown else ""


def record_html(state: PanelState, now: float) -> str:
    """Return the static record: stylesheet, final state, last values, figure and id in one element."""
    figures = _figures(state, state.figures)
    bar = _bar(state, now, live=False) if state.state not in TERMINAL else ""
    notes = notes_html(record_notes(state, now))

    def record(share: float) -> str:
        return (
            f'<style>{STYLE}</style><div class="{PANEL} lk-record" role="status" {_data(state)}>'
            f"{_head(state, now)}{bar}{_numbers(state.metrics.values(), share)}{_error(state, share)}"
            f"{_result(state, share, live=False)}{notes}{figures}"
            f"{_body(state, RECORD_ROWS, RECORD_LINES, share)}</div>"
        )

    rich = figures + (state.result.html if isinstance(state.result, Figure) else "")
    return fitted(record, HTML_BYTES + len(rich.encode()))


def opening_html(state: PanelState) -> str:
    """Return the one line that stands for a live panel where no widget can be shown."""
    id = escape(state.id)
    return (
        f'<div class="lakeshore-panel" {_data(state)}><b>{escape(clip(state.name or "job", 80))}</b> · '
        f"{escape(state.state)} · <code>{id}</code>; follow it with <code>%lakeshore stream {id}</code></div>"
    )


def state_html(state: str) -> str:
    """Return a state as a dot with its word beside it."""
    dot = f'<span aria-hidden="true" style="color:{STATE_COLOURS.get(state, DIM)}">\u25cf</span>'
    return f'<span class="lk-state">{dot}{NO_BREAK}<b>{escape(state)}</b></span>'


def _data(state: PanelState) -> str:
    return f'data-id="{escape(state.id)}" data-state="{escape(state.state)}"'


def _head(state: PanelState, now: float) -> str:
    parts = [state_html(state.state)]
    if state.name:
        parts.append(f'<b class="lk-name">{escape(clip(state.name, 80))}</b>')
    known = " · ".join(escape(fact) for fact in facts(state, now))
    if known:
        parts.append(f'<span class="lk-mute">{known}</span>')
    parts.append(f'<code class="lk-id" title="the invocation id">{escape(state.id)}</code>')
    return f'<div class="lk-head">{" · ".join(parts)}</div>'


def _bar(state: PanelState, now: float, *, live: bool) -> str:
    if state.state != State.RUNNING:
        return ""
    fraction = state.progress.fraction if state.progress else None
    words = ""
    if state.progress:
        words = f'<div class="lk-mute">{escape(progress_line(state, now, fraction))}</div>'
    if fraction is None and not live:
        return words
    if fraction is None:
        # The element is new at each update; the delay lets the animation go on where it was.
        inner, value = f'<i class="lk-any" style="animation-delay:-{now % 2:.1f}s"></i>', ""
    else:
        inner = f'<i style="width:{fraction * 100:.1f}%"></i>'
        value = f' aria-valuemin="0" aria-valuemax="100" aria-valuenow="{fraction * 100:.0f}"'
    return f'<div class="lk-bar" role="progressbar" aria-label="progress"{value}>{inner}</div>{words}'


def _numbers(metrics: Iterable[Metric], share: float) -> str:
    metrics = list(metrics)
    most = round(METRICS_SHOWN * min(1.0, 2 * share))
    if not metrics or not most:
        return ""
    cells = [_number(m) for m in metrics[:most]]
    over = len(metrics) - most
    if over > 0:
        cells.append(f"+{over} more")
    return f'<div class="lk-nums" style="margin:4px 0">{SEPARATOR.join(cells)}</div>'


def _number(metric: Metric) -> str:
    label = f'<span class="lk-mute">{escape(clip(metric.key, 40))}</span>'
    parts = [label, f"<b>{escape(number(metric.value))}</b>", sparkline(metric.points)]
    # No-break spaces hold the three together where no style does.
    return f'<span class="lk-num">{NO_BREAK.join(filter(None, parts))}</span>'


def _result(state: PanelState, share: float, *, live: bool) -> str:
    result = state.result
    if result is None:
        return ""
    caption = caption_html("result")
    if isinstance(result, Figure):
        # A figure is large and a live panel is sent often.
        body = f"<pre>{escape(result.text, quote=False)}</pre>" if live else result.html
        return f'<div class="lk-fig">{caption}{body}</div>'
    if result.fields is not None and share == 1:
        return f'<div class="lk-res">{caption}{fields_table([result.fields])}</div>'
    text = escape(clip(result.text, 80 + round(600 * share)), quote=False)
    if is_line(result.text):
        return f'<div class="lk-res"><span class="lk-mute">result</span> <b>{text}</b></div>'
    return f'<div class="lk-res">{caption}<pre>{text}</pre></div>'


def _figures(state: PanelState, shown: Iterable[Figure]) -> str:
    earlier = state.earlier_displays
    told = f'<div class="lk-mute">{_with_commands(earlier)}</div>' if earlier else ""
    return told + "".join(f'<div class="lk-fig">{each.html}</div>' for each in shown)


def caption_html(text: str) -> str:
    """Return the small heading of a part of a panel."""
    return f'<div class="lk-cap" style="font-size:11px;opacity:.72">{escape(text)}</div>'


def notes_html(notes: Iterable[str]) -> str:
    """Return notes as HTML; what stands in back-ticks becomes code."""
    style = "border-left:3px solid #94700a;padding-left:10px;margin-top:6px"
    return "".join(f'<div style="{style}">{_with_commands(note)}</div>' for note in notes)


def _with_commands(note: str) -> str:
    parts = escape(clip(note, 300)).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _body(state: PanelState, rows: int, lines: int, share: float) -> str:
    parts = []
    if state.tail:
        values = _tail(state.tail[-rows:], round(TEXT_BUDGET * share))
        parts.append(f"<div>{caption_html(tail_words(state))}{values}</div>")
    log = newest_lines(state.log, lines, share)
    if log:
        body = "\n".join(line_html(line) for line in log)
        parts.append(f"<div>{caption_html('log')}<pre>{body}</pre></div>")
    return f'<div class="lk-body" style="margin-top:6px">{"".join(parts)}</div>' if parts else ""


def _tail(tail: list[Shown], budget: int) -> str:
    kept: list[Shown] = []
    for shown in reversed(tail):
        budget -= len(_lines_html([shown.text]) if shown.fields is None else fields_table([shown.fields]))
        if budget < 0:
            if not kept:
                kept = [Shown(clip(shown.text, 120 if budget < -TEXT_BUDGET else 400))]
            break
        kept.insert(0, shown)
    parts: list[str] = []
    texts: list[str] = []
    rows: list[tuple[tuple[str, Any], ...]] = []

    def flush() -> None:
        if rows:
            parts.append(fields_table(rows))
        if texts:
            parts.append(f"<pre>{_lines_html(texts)}</pre>")
        rows.clear()
        texts.clear()

    for shown in kept:
        if (texts and shown.fields is not None) or (rows and shown.fields is None):
            flush()
        if shown.fields is None:
            texts.append(shown.text)
        else:
            rows.append(shown.fields)
    flush()
    return "".join(parts)


def _lines_html(lines: Iterable[str]) -> str:
    return escape("\n".join(lines), quote=False)


def _error(state: PanelState, share: float) -> str:
    if not state.error:
        return ""
    trace = _lines_html(traceback_lines(state, share))
    body = f"<pre>{trace}</pre>" if trace else ""
    message = escape(clip(state.error, 100 + round(900 * share)))
    style = "border-left:3px solid #d13a40;padding-left:10px;margin-top:6px"
    return f'<div style="{style}"><b>{message}</b>{body}</div>'
