"""The panel of one job: a pure function from state to HTML and to text.

`panel_html` is the live view's one changing trait, `record_html` and `record_text` what stays in the saved
notebook. All text that comes from a job is escaped here or in `render_values`; nothing here reads a clock or
a plane. JupyterLab strips ``<style>`` from a notebook it does not trust and GitHub every class and style too,
so meaning rests on elements, spaces and separators; the stylesheet only makes it pleasant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from lakeshore.notebook.render_numbers import fields_table, sparkline
from lakeshore.notebook.render_style import DIM, STATE_COLOURS, STYLE
from lakeshore.notebook.render_terminal import PLAIN, Line, line_html, line_text
from lakeshore.notebook.render_values import Figure, Shown, as_float, clip, number
from lakeshore.states import TERMINAL, State

LIVE_ROWS, LIVE_LINES = 12, 10
RECORD_ROWS, RECORD_LINES = 20, 24
RESULT_LINE = 160
"""Characters of a result that stand beside the word; a longer one gets lines of its own."""
METRICS_SHOWN = 8
NO_BREAK = "\u00a0"
POINTS_KEPT = 96
TRACEBACK_LINES = 30
TEXT_BUDGET = 4500
"""Bytes of HTML of the tail, and half of it for log and traceback each."""
HTML_BYTES, TEXT_BYTES = 14_000, 5_800
"""The most that a panel or record has without figure: both forms of a record stay under 20 KB together.

One that would have more shows less of each part.
"""
_SHARES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)


@dataclass(slots=True)
class Metric:
    """The newest number of one key of a job's dict frames, and a thinned history for the sparkline.

    Attributes
    ----------
    key : str
        The dict's key.
    value : number
        The newest.
    points : list of float
        At most `POINTS_KEPT`, evenly spaced over all that came.
    """

    key: str
    value: Any = None
    points: list[float] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, value: Any) -> None:
        """Take a newer number."""
        self.value = value
        if self._seen % self._stride == 0:
            self.points.append(as_float(value))
            if len(self.points) >= POINTS_KEPT:
                del self.points[1::2]
                self._stride *= 2
        self._seen += 1


@dataclass(slots=True)
class Progress:
    """How far a job says it is.

    Attributes
    ----------
    done, total : float
        In the job's own unit; `total` None when it is not known.
    note : str or None
        What it is doing.
    """

    done: float = 0.0
    total: float | None = None
    note: str | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, or None without a usable total."""
        if self.total is None or not self.total > 0 or not math.isfinite(self.done):
            return None
        return min(1.0, max(0.0, self.done / self.total))


@dataclass(slots=True)
class PanelState:
    """All that a panel shows of one job. `*_at` are Unix seconds by the plane's clock.

    Attributes
    ----------
    id, name, queue, worker : str or None
        As on the row; `name` is what people call the job, `queue` None for a topic.
    state : str
        A `State`, or ``"topic"``.
    frames : int
        Values of this attempt, counted also where they are not shown.
    rate : float
        Values a second, lately; over the whole run once it ended.
    gap : int
        Frames that were trimmed before they could be read.
    notes : list of str
        What the reader should know now: no worker asks for this queue, the plane cannot be reached.
    result : Shown, Figure or None
        What the job returned, bounded; None when it returned None or has not succeeded.
    following : str
        ``"live"``; or how the following ended: ``"ended"``, ``"frozen"``, ``"detached"``.
    """

    id: str
    name: str | None = None
    queue: str | None = None
    state: str = State.QUEUED
    attempt: int = 0
    worker: str | None = None
    submitted_at: float | None = None
    not_before: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    traceback: str | None = None
    frames: int = 0
    rate: float = 0.0
    gap: int = 0
    progress: Progress | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    tail: list[Shown] = field(default_factory=list)
    log: list[Line] = field(default_factory=list)
    figure: Figure | None = None
    notes: list[str] = field(default_factory=list)
    result: Shown | Figure | None = None
    following: str = "live"


def panel_html(state: PanelState, now: float) -> str:
    """Return the live panel without stylesheet and figure, at `now` by the plane's clock."""
    return fitted(lambda share: _panel(state, now, share), HTML_BYTES)


def _panel(state: PanelState, now: float, share: float) -> str:
    # aria-live is off: an update ten times a second would make a screen reader speak without end.
    return (
        f'<div class="lakeshore-panel lk-live" role="status" aria-live="off" {_data(state)}>'
        f'<div class="lk-top">{_head(state, now)}{_bar(state, now, live=True)}'
        f"{_numbers(state.metrics.values(), share)}{notes_html(state.notes)}</div>"
        f"{_error(state, share)}{_result(state, share, live=True)}"
        f"{_body(state, LIVE_ROWS, LIVE_LINES, share)}</div>"
    )


def figure_html(state: PanelState) -> str:
    """Return the newest figure for the live panel, or an empty text."""
    if state.figure is None:
        return ""
    return f'<div class="lakeshore-panel lk-live"><div class="lk-fig">{state.figure.html}</div></div>'


def record_html(state: PanelState, now: float) -> str:
    """Return the static record: stylesheet, final state, last values, figure and id in one element."""
    figure = (
        f'<div class="lk-fig">{state.figure.html}</div>' if state.figure and _has_own_figure(state) else ""
    )
    bar = _bar(state, now, live=False) if state.state not in TERMINAL else ""
    notes = notes_html(_record_notes(state))

    def record(share: float) -> str:
        return (
            f'<style>{STYLE}</style><div class="lakeshore-panel lk-record" role="status" {_data(state)}>'
            f"{_head(state, now)}{bar}{_numbers(state.metrics.values(), share)}{_error(state, share)}"
            f"{_result(state, share, live=False)}{notes}{figure}"
            f"{_body(state, RECORD_ROWS, RECORD_LINES, share)}</div>"
        )

    rich = figure + (state.result.html if isinstance(state.result, Figure) else "")
    return fitted(record, HTML_BYTES + len(rich.encode()))


def fitted(make: Callable[[float], str], most: int) -> str:
    """Return the fullest of what `make` gives that has at most so many bytes."""
    text = ""
    for share in _SHARES:
        text = make(share)
        if len(text.encode()) <= most:
            break
    return text


def opening_html(state: PanelState) -> str:
    """Return the one line that stands for a live panel where no widget can be shown."""
    id = escape(state.id)
    return (
        f'<div class="lakeshore-panel" {_data(state)}><b>{escape(clip(state.name or "job", 80))}</b> · '
        f"{escape(state.state)} · <code>{id}</code>; follow it with <code>%lakeshore stream {id}</code></div>"
    )


def record_text(state: PanelState, now: float) -> str:
    """Return the panel as plain text: id, state, numbers, last values, log, error."""
    return fitted(lambda share: _text(state, now, share), TEXT_BYTES)


def _text(state: PanelState, now: float, share: float) -> str:
    lines = [f"{clip(state.name, 80) + ' · ' if state.name else ''}{state.state} · {state.id}"]
    facts = _facts(state, now)
    if facts:
        lines.append(" · ".join(facts))
    fraction = state.progress.fraction if state.progress else None
    if state.progress and state.state not in TERMINAL:
        lines.append(_progress_words(state, now, fraction))
    if state.metrics:
        shown = list(state.metrics.values())[:METRICS_SHOWN]
        lines.append("  ".join(f"{clip(m.key, 40)} {number(m.value)}" for m in shown))
    lines += _record_notes(state)
    if state.result:
        lines.append(_result_text(state.result))
    if state.tail:
        lines.append(f"{_tail_words(state)}:")
        texts = [shown.text for shown in state.tail[-max(1, round(RECORD_ROWS * share)) :]]
        if share == 0:
            texts = [" ".join(clip(text, 120).split()) for text in texts]
        lines += [f"  {line}" for text in texts for line in text.splitlines() or [""]]
    if state.figure and _has_own_figure(state):
        lines.append(f"figure: {state.figure.text}")
    if state.log and share:
        lines.append("log:")
        lines += [f"  {line_text(line)}" for line in _newest(state.log, RECORD_LINES, share)]
    if state.error:
        lines.append(f"error: {clip(state.error, 100 + round(900 * share))}")
        lines += [f"  {line}" for line in _traceback(state, share)]
    return "\n".join(lines)


def status_line(state: PanelState, now: float) -> str:
    """Return where the job stands as one line of text, the newest numbers or value with it."""
    words = [state.state, *_facts(state, now)[1 if state.queue else 0 :]]
    if state.progress and state.state == State.RUNNING:
        words.append(_progress_words(state, now, state.progress.fraction))
    if state.result:
        words.append(f"result {' '.join(state.result.text.split())[:RESULT_LINE]}")
    elif state.tail:
        words.append(" ".join(state.tail[-1].text.split())[:160])
    return " · ".join(words)


def progress_words(state: PanelState, now: float) -> str:
    """Return how far a running job says it is, or an empty text."""
    if state.progress is None or state.state != State.RUNNING:
        return ""
    return _progress_words(state, now, state.progress.fraction)


def state_html(state: str) -> str:
    """Return a state as a dot with its word beside it."""
    dot = f'<span aria-hidden="true" style="color:{STATE_COLOURS.get(state, DIM)}">\u25cf</span>'
    return f'<span class="lk-state">{dot}{NO_BREAK}<b>{escape(state)}</b></span>'


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


def _data(state: PanelState) -> str:
    return f'data-id="{escape(state.id)}" data-state="{escape(state.state)}"'


def _head(state: PanelState, now: float) -> str:
    parts = [state_html(state.state)]
    if state.name:
        parts.append(f'<b class="lk-name">{escape(clip(state.name, 80))}</b>')
    facts = " · ".join(escape(fact) for fact in _facts(state, now))
    if facts:
        parts.append(f'<span class="lk-mute">{facts}</span>')
    parts.append(f'<code class="lk-id" title="the invocation id">{escape(state.id)}</code>')
    return f'<div class="lk-head">{" · ".join(parts)}</div>'


def _facts(state: PanelState, now: float) -> list[str]:
    facts = [clip(state.queue, 80)] if state.queue else []
    if state.attempt > 1:
        facts.append(f"attempt {state.attempt}")
    if state.worker:
        facts.append(f"on {clip(state.worker, 60)}")
    when = _when(state, now)
    if when:
        facts.append(when)
    if state.frames:
        rate = (
            f", {number(round(state.rate, 1) if state.rate < 100 else round(state.rate))}/s"
            if state.rate
            else ""
        )
        facts.append(f"{state.frames:,} frame{'s' if state.frames != 1 else ''}{rate}")
    if state.gap:
        facts.append(f"{state.gap:,} trimmed frames not shown")
    return facts


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


def _bar(state: PanelState, now: float, *, live: bool) -> str:
    if state.state != State.RUNNING:
        return ""
    fraction = state.progress.fraction if state.progress else None
    words = ""
    if state.progress:
        words = f'<div class="lk-mute">{escape(_progress_words(state, now, fraction))}</div>'
    if fraction is None and not live:
        return words
    if fraction is None:
        # The element is new at each update; the delay lets the animation go on where it was.
        inner, value = f'<i class="lk-any" style="animation-delay:-{now % 2:.1f}s"></i>', ""
    else:
        inner = f'<i style="width:{fraction * 100:.1f}%"></i>'
        value = f' aria-valuemin="0" aria-valuemax="100" aria-valuenow="{fraction * 100:.0f}"'
    return f'<div class="lk-bar" role="progressbar" aria-label="progress"{value}>{inner}</div>{words}'


def _progress_words(state: PanelState, now: float, fraction: float | None) -> str:
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


def _numbers(metrics: Iterable[Metric], share: float) -> str:
    metrics = list(metrics)
    most = round(METRICS_SHOWN * min(1.0, 2 * share))
    if not metrics or not most:
        return ""
    cells = [_number(m) for m in metrics[:most]]
    over = len(metrics) - most
    if over > 0:
        cells.append(f"+{over} more")
    return f'<div class="lk-nums" style="margin:4px 0">{" · ".join(cells)}</div>'


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
    if _is_line(result.text):
        return f'<div class="lk-res"><span class="lk-mute">result</span> <b>{text}</b></div>'
    return f'<div class="lk-res">{caption}<pre>{text}</pre></div>'


def _result_text(result: Shown | Figure) -> str:
    if _is_line(result.text):
        return f"result {result.text}"
    return "\n".join(["result:", *(f"  {line}" for line in result.text.splitlines())])


def _is_line(text: str) -> bool:
    return len(text) <= RESULT_LINE and len(text.splitlines()) <= 1


def _has_own_figure(state: PanelState) -> bool:
    """Whether there is a figure that is not the result shown once more."""
    return state.figure is not None and state.figure != state.result


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


def _record_notes(state: PanelState) -> list[str]:
    if state.following == "detached":
        return [
            *state.notes,
            f"detached: {state.id} goes on; `%lakeshore stream {state.id}` follows it again",
        ]
    if state.following == "frozen" and state.state not in TERMINAL:
        return [*state.notes, f"frozen as it stood; `%lakeshore stream {state.id}` follows it again"]
    if state.state in (State.FAILED, State.CANCELLED):
        return [*state.notes, f"`%lakeshore requeue {state.id}` runs it again"]
    return state.notes


def _body(state: PanelState, rows: int, lines: int, share: float) -> str:
    parts = []
    if state.tail:
        values = _tail(state.tail[-rows:], round(TEXT_BUDGET * share))
        parts.append(f"<div>{caption_html(_tail_words(state))}{values}</div>")
    log = _newest(state.log, lines, share)
    if log:
        body = "\n".join(line_html(line) for line in log)
        parts.append(f"<div>{caption_html('log')}<pre>{body}</pre></div>")
    return f'<div class="lk-body" style="margin-top:6px">{"".join(parts)}</div>' if parts else ""


def _tail_words(state: PanelState) -> str:
    return "last values" if state.frames > 1 else "value"


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


def _newest(log: list[Line], n: int, share: float) -> list[Line]:
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


def _error(state: PanelState, share: float) -> str:
    if not state.error:
        return ""
    trace = _lines_html(_traceback(state, share))
    body = f"<pre>{trace}</pre>" if trace else ""
    message = escape(clip(state.error, 100 + round(900 * share)))
    style = "border-left:3px solid #d13a40;padding-left:10px;margin-top:6px"
    return f'<div style="{style}"><b>{message}</b>{body}</div>'


def _traceback(state: PanelState, share: float) -> list[str]:
    most = round(TEXT_BUDGET // 2 * share)
    if not state.traceback or not most:
        return []
    lines = [clip(line, 300) for line in state.traceback[-most:].rstrip().splitlines()]
    return lines[-TRACEBACK_LINES:]
