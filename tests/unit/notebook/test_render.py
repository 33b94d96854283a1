"""A job's state as HTML and text: complete, escaped, small."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import nh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore.notebook import render, render_state, render_text, render_words
from lakeshore.notebook.render import NO_BREAK
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_numbers import LEFT, fields_table, sparkline
from lakeshore.notebook.render_overview import (
    GroupState,
    QueueState,
    group_html,
    group_record,
    group_text,
    queue_html,
    queue_text,
)
from lakeshore.notebook.render_state import Metric, PanelState, Progress
from lakeshore.notebook.render_style import STATE_COLOURS, STYLE
from lakeshore.notebook.render_terminal import Terminal
from lakeshore.notebook.render_values import show
from lakeshore.states import State

NOW = 1000.0
ID = "01KPZ4T9Q0V7M2D8R5XW3YHBNC"
HOSTILE = "</div></pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[31m\x00"


def training(rows: int = 20) -> PanelState:
    losses = [math.exp(-n / 15) for n in range(60)]
    metrics = {"loss": Metric("loss"), "accuracy": Metric("accuracy")}
    for loss in losses:
        metrics["loss"].add(loss)
        metrics["accuracy"].add(1 - loss)
    terminal = Terminal()
    terminal.feed("".join(f"epoch {n} \x1b[32mok\x1b[0m\n" for n in range(60)))
    return PanelState(
        ID,
        "train",
        "gpu",
        "running",
        attempt=1,
        worker="host-1",
        submitted_at=900.0,
        started_at=940.0,
        frames=60,
        rate=1.2,
        progress=Progress(60, 100, "warming up"),
        metrics=metrics,
        tail=[show({"epoch": n, "loss": losses[n], "note": "x"}) for n in range(60 - rows, 60)],
        log=terminal.lines(render_words.RECORD_LINES),
    )


class Balance(HTMLParser):
    """Raises when an element that must be closed is not."""

    OPTIONAL = {"tr", "td", "th", "thead", "tbody"}
    VOID = {"img", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID | self.OPTIONAL:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.OPTIONAL:
            assert self.stack and self.stack[-1] == tag, (tag, self.stack)
            self.stack.pop()


def parsed(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Balance()
    parser.feed(html)
    assert parser.stack == []
    for tag, attributes in parser.tags:
        assert tag not in {"script", "iframe", "svg", "a"}
        assert not any(name.startswith("on") for name in attributes)
    return parser.tags


def test_a_running_panel_tells_all() -> None:
    html = render.panel_html(training(), NOW)
    parsed(html)
    for word in (
        "running",
        "train",
        ID,
        "gpu",
        "host-1",
        "1 min 0 s",
        "60 frames",
        "1.2/s",
        "60 of 100, 60%",
    ):
        assert word in html, word
    assert "about 40 s left" in html and "warming up" in html
    assert 'role="status"' in html and 'aria-valuenow="60"' in html
    assert html.count("data:image/svg+xml") == 2
    assert "attempt" not in html
    assert "attempt 2" in render.panel_html(replace(training(), attempt=2), NOW)


def bare(html: str) -> str:
    """What GitHub leaves of a saved output: no stylesheet, no style, class or data attribute, no picture."""
    names = "align alt height width title colspan rowspan open src".split()
    tags = "b code pre div span table thead tbody tr th td img br p i em strong details summary".split()
    return nh3.clean(
        html, tags=set(tags), clean_content_tags={"script", "style"}, attributes={"*": set(names)}
    )


def words(html: str) -> str:
    """The text as it is read: inline elements join, all others part."""
    text = re.sub(r"</?(?:b|code|span|img|i)\b[^>]*>", "", bare(html))
    return re.sub(r"\n{2,}", "\n", unescape(re.sub(r"<[^>]*>", "\n", text))).replace(NO_BREAK, " ")


@pytest.mark.parametrize("make", [render.panel_html, render.record_html])
def test_all_is_read_without_a_style_or_a_class(make: Callable[[PanelState, float], str]) -> None:
    state = replace(training(), state="succeeded", finished_at=970.0, result=show(2))
    html = make(state, NOW)
    text = words(html)
    assert "style" not in bare(html) and "class" not in bare(html)
    head = "\u25cf succeeded · train · gpu · on host-1 · 30 s · 60 frames, 1.2/s"
    assert f"{head} · {ID}\n" in text
    assert re.search(r"^loss 0\.\d+ +\u00b7 accuracy 0\.\d+ *$", text, re.MULTILINE), text
    assert "\nresult 2\n" in text
    assert "\nlast values\nepoch\nloss\nnote\n" in text and "\nlog\nepoch " in text
    assert "<table>" in html and 'align="right"' in bare(html)


def test_every_picture_of_ours_has_its_size() -> None:
    for tag, attributes in parsed(render.panel_html(training(), NOW)):
        if tag == "img":
            assert (attributes["width"], attributes["height"]) == ("64", "15")


def test_the_states_dot_has_its_colour_without_the_stylesheet() -> None:
    for state in State:
        assert f"color:{STATE_COLOURS[state]}" in render.state_html(state)


@pytest.mark.parametrize(
    ("value", "html", "text"),
    [
        (2, "result</span> <b>2</b>", "result 2"),
        ("<done>", "<b>&lt;done&gt;</b>", "result <done>"),
        ([1, 2.5, "x"], "<b>[1, 2.5, 'x']</b>", "result [1, 2.5, 'x']"),
        ("one\ntwo", "<pre>one\ntwo</pre>", "result:\n  one\n  two"),
        ({"rounds": 40, "accuracy": 0.97}, "<th>rounds<th>accuracy", "result rounds=40  accuracy=0.97"),
        ("x" * 5000, f"<pre>{'x' * 600}\u2026", "result:\n  xxx"),
    ],
)
def test_a_result_is_shown_bounded(value: object, html: str, text: str) -> None:
    state = PanelState(ID, "f", "gpu", "succeeded", result=show(value))
    assert html in render.record_html(state, NOW) and html in render.panel_html(state, NOW)
    assert text in render_text.record_text(state, NOW)
    parsed(render.record_html(state, NOW).removeprefix(f"<style>{STYLE}</style>"))
    assert len(render.record_html(state, NOW)) < 12_000


def test_no_result_leaves_no_word_of_it() -> None:
    state = PanelState(ID, "f", "gpu", "succeeded")
    assert "result" not in render.record_html(state, NOW).removeprefix(f"<style>{STYLE}</style>")
    assert "result" not in render_text.record_text(state, NOW)


def test_a_result_says_more_in_one_line_than_the_last_value() -> None:
    assert render_text.status_line(replace(training(), state="succeeded", result=show(2)), NOW).endswith(
        "result 2"
    )


def test_a_rich_result_stands_in_the_record_and_once() -> None:
    picture = Figure('<img alt="" src="data:image/png;base64,AA==">', "Figure")
    state = replace(training(), state="succeeded", result=picture, figure=picture)
    assert render.record_html(state, NOW).count("base64") == 1
    assert "base64" not in render.panel_html(state, NOW) and "Figure" in render.panel_html(state, NOW)
    assert render_text.record_text(state, NOW).count("Figure") == 1


@pytest.mark.parametrize("how", ["frozen", "detached"])
def test_what_no_longer_follows_does_not_move(how: str) -> None:
    known = replace(training(), following=how)
    assert "lk-any" in render.panel_html(replace(known, progress=None), NOW)
    for state in (known, replace(known, progress=None), replace(known, progress=Progress(7, None, "x"))):
        record = render.record_html(state, NOW).removeprefix(f"<style>{STYLE}</style>")
        assert "lk-any" not in record and "animation" not in record
        assert ("progressbar" in record) == (state is known), "a bar only where its length is known"


def test_table_and_log_begin_at_the_same_height() -> None:
    assert "align-items:start" in STYLE and "align-items:end" not in STYLE
    html = render.panel_html(training(), NOW)
    assert html.count('font-size:11px;opacity:.72">') == 2, "each has its caption"


def test_a_live_panel_fits_its_budget() -> None:
    assert len(render.panel_html(training(), NOW)) < 5_000


def test_a_record_is_small_static_and_complete() -> None:
    state = replace(training(), state="succeeded", finished_at=970.0, following="ended")
    record = render.record_html(state, NOW)
    assert len(record) < 10_000
    parsed(record)
    assert record.startswith("<style>") and 'role="status"' in record
    assert ID in record and "succeeded" in record and "30 s" in record


def test_the_largest_record_stays_under_20_kilobytes() -> None:
    terminal = Terminal()
    terminal.feed("".join(f"\x1b[3{n % 8}m{'x' * 500}\n" for n in range(200)))
    metrics = {f"metric_{n}": Metric(f"metric_{n}") for n in range(60)}
    for metric in metrics.values():
        for n in range(500):
            metric.add(math.sin(n) * 1e6)
    state = replace(
        training(),
        state="failed",
        error="ValueError: " + "e" * 5000,
        traceback="\n".join("t" * 400 for _ in range(500)),
        log=terminal.lines(render_words.RECORD_LINES),
        tail=[show("v" * 5000) for _ in range(20)],
        metrics=metrics,
    )
    assert len(render.record_html(state, NOW).encode()) < 20_000
    wide = replace(state, tail=[show({f"key_{n}": n * 1.1 for n in range(60)}) for _ in range(20)])
    assert len(render.record_html(wide, NOW).encode()) < 20_000
    assert len(render_text.record_text(state, NOW)) < 20_000


def test_a_figure_stands_in_the_record_and_apart_from_the_live_panel() -> None:
    state = replace(training(), figure=Figure('<img alt="" src="data:image/png;base64,AA==">', "loss curve"))
    assert "base64" not in render.panel_html(state, NOW)
    assert "base64" in render.figure_html(state)
    assert "base64" in render.record_html(state, NOW)
    assert "figure: loss curve" in render_text.record_text(state, NOW)
    assert render.figure_html(training()) == ""


@pytest.mark.parametrize("make", [render.panel_html, render.record_html])
def test_hostile_text_is_inert_wherever_it_stands(make: object) -> None:
    terminal = Terminal()
    terminal.feed(HOSTILE + "\n")
    metric = Metric(HOSTILE)
    metric.add(1.0)
    metric.add(2.0)
    state = PanelState(
        ID,
        HOSTILE,
        HOSTILE,
        "failed",
        2,
        HOSTILE,
        started_at=1.0,
        error=HOSTILE,
        traceback=HOSTILE,
        frames=3,
        progress=Progress(1, 2, HOSTILE),
        metrics={HOSTILE: metric},
        tail=[show(HOSTILE), show({HOSTILE: HOSTILE}), show([HOSTILE])],
        log=terminal.lines(5),
        notes=[HOSTILE],
    )
    html = make(state, NOW)  # type: ignore[operator]
    tags = parsed(html.removeprefix(f"<style>{STYLE}</style>"))
    assert all(a.get("src", "data:image/svg+xml").startswith("data:image/svg+xml") for _, a in tags)
    assert "\u202e" not in html and "\x1b" not in html and "\x00" not in html


@given(st.text(st.characters(), max_size=80), st.floats(), st.floats() | st.none(), st.integers())
def test_any_state_renders(text: str, done: float, total: float | None, count: int) -> None:
    metric = Metric(text)
    for value in (done, 1.0, count % 10**400):
        metric.add(value) if abs(value) < 1e308 or value != value else None
    state = PanelState(
        ID,
        text,
        text,
        "running",
        started_at=done,
        progress=Progress(done, total, text),
        tail=[show(text), show({text: done})],
    )
    state.metrics[text] = metric
    for html in (render.panel_html(state, NOW), render.record_html(state, NOW)):
        html.encode("utf-8")
    render_text.record_text(state, NOW).encode("utf-8")
    render_text.status_line(state, NOW)


def test_a_queued_job_says_how_long_and_what_is_missing() -> None:
    state = PanelState(
        ID, None, "gpu", submitted_at=988.0, notes=["start one with `%lakeshore worker start gpu`"]
    )
    html = render.panel_html(state, NOW)
    assert "waiting 12 s" in html and "<code>%lakeshore worker start gpu</code>" in html
    assert "due in 30 s" in render.panel_html(replace(state, not_before=1030.0), NOW)


def test_a_failure_shows_the_users_lines_and_the_next_command() -> None:
    trace = 'Traceback:\n  File "<lakeshore train cell 4>", line 7, in train\nValueError: nan'
    state = PanelState(
        ID, "train", "gpu", "failed", error="ValueError: nan", traceback=trace, following="ended"
    )
    for shown in (render.record_html(state, NOW), render_text.record_text(state, NOW)):
        assert "ValueError: nan" in shown and "line 7, in train" in shown
        assert f"%lakeshore requeue {ID}" in shown


@pytest.mark.parametrize("how", ["frozen", "detached"])
def test_a_panel_that_stopped_following_says_how_to_go_on(how: str) -> None:
    shown = render_text.record_text(replace(training(), following=how), NOW)
    assert how in shown and f"%lakeshore stream {ID}" in shown


def test_text_always_has_id_state_and_last_values() -> None:
    state = PanelState(
        ID, state="succeeded", frames=3, tail=[show(f"{word}-{n}") for n, word in enumerate("abc")]
    )
    text = render_text.record_text(state, NOW)
    assert text.splitlines()[0] == f"succeeded · {ID}"
    assert text.splitlines()[-3:] == ["  a-0", "  b-1", "  c-2"]


def test_the_opening_is_one_line() -> None:
    html = render.opening_html(training())
    assert "\n" not in html and ID in html and html.startswith('<div class="lakeshore-panel"')


def test_every_colour_of_the_theme_has_a_fall_back() -> None:
    assert all(
        "," in use for use in re.findall(r"var\((--(?:jp|vscode)[^()]*(?:\([^()]*\))?[^()]*)\)", STYLE)
    )
    assert "</" not in STYLE and "\n" not in STYLE and "url(" not in STYLE


def test_a_duration_gets_coarser() -> None:
    cases = {
        0.42: "0.4 s",
        12.2: "12 s",
        59.7: "1 min 0 s",
        250: "4 min 10 s",
        1000: "16 min",
        11100: "3 h 5 min",
    }
    for seconds, text in cases.items():
        assert render_words.duration(seconds) == text
    assert render_words.duration(200_000) == "2 d 7 h"
    assert render_words.duration(-5) == "0.0 s"
    assert render_words.duration(float("nan")) == "?"


def test_a_metric_keeps_a_bounded_history_of_all_that_came() -> None:
    metric = Metric("loss")
    for n in range(100_000):
        metric.add(n)
    assert metric.value == 99_999
    assert len(metric.points) <= render_state.POINTS_KEPT
    assert metric.points[0] == 0 and metric.points[-1] > 90_000


@given(st.lists(st.floats(), max_size=50))
def test_any_points_make_a_sparkline(points: list[float]) -> None:
    image = sparkline(points)
    assert image == "" or (image.startswith('<img alt="" width="64" height="15"') and len(image) < 750)
    assert image == "" or ("width=%2764%27 height=%2715%27" in image)
    assert "nan" not in image and "inf" not in image


def test_a_table_aligns_its_decimals() -> None:
    html = fields_table([[("n", 1), ("loss", 0.5), ("s", "x")], [("n", 2), ("loss", 0.12345), ("s", "y")]])
    assert "<td>0.5000<" in html and "<td>0.1235<" in html and f"<td{LEFT}>x" in html
    assert "+5 more keys" in fields_table([[(str(n), n) for n in range(15)]])
    assert "<td>0.001<" in fields_table([[("lr", 0.001), ("x", 1)]])


def row(n: int, state: str, **more: object) -> dict[str, object]:
    base = {"id": f"ID{n:03}", "state": state, "queue": "gpu", "attempt": 1, "error": None, "worker_id": "w"}
    return {**base, "started_at": 990.0, "finished_at": None, **more}


def test_a_group_counts_and_lists_failures_first() -> None:
    rows = [row(n, "succeeded", finished_at=995.0) for n in range(30)]
    rows += [row(30, "failed", error="ValueError: <b>", finished_at=992.0), row(31, "running")]
    state = GroupState("grid", rows)
    html = group_html(state, NOW)
    parsed(html)
    assert "31 of 32 ended" in html and "ValueError: &lt;b&gt;" in html and "and 12 more" in html
    assert html.index("ID030") < html.index("ID031") < html.index("ID000")
    assert "30 succeeded" in group_text(state, NOW)
    assert len(group_record(state, NOW)) < 20_000


def test_a_group_says_which_job_is_which() -> None:
    rows = [row(0, "succeeded", finished_at=995.0), row(1, "running")]
    named = GroupState("grid", rows, names={"ID000": "train(0.1)", "ID001": "train(<0.3>)"})
    text = words(group_record(named, NOW))
    assert "grid \u00b7 1 of 2 ended \u00b7 \u25cf running 1 \u00b7 \u25cf succeeded 1\n" in text
    assert "\n\u25cf succeeded\ntrain(0.1)\nID000\n5.0 s\n" in text
    assert "train(&lt;0.3&gt;)" in group_html(named, NOW)
    assert "train(0.1)" in group_text(named, NOW)
    assert "\njob\n" not in words(group_record(GroupState("grid", rows), NOW))
    assert (
        len(group_record(replace(named, rows=[row(n, "failed", error="E" * 500) for n in range(99)]), NOW))
        < 20_000
    )


def test_a_queue_shows_counts_jobs_and_workers() -> None:
    workers = [{"worker_id": "host-1<b>", "running": 1, "seen_at": 990.0}]
    state = QueueState("gpu", {"queued": 2, "running": 1}, [row(1, "running")], workers, ["no worker"])
    parsed(queue_html(state, NOW).removeprefix(f"<style>{STYLE}</style>"))
    text = queue_text(state, NOW)
    assert "gpu · 2 queued, 1 running" in text and "ID001" in text and "seen 10 s ago" in text


def test_a_group_that_goes_on_says_when_it_was_seen_and_how_to_go_on() -> None:
    rows = [row(0, "succeeded"), row(1, "queued")]
    for said in (group_record(GroupState("grid", rows), NOW), group_text(GroupState("grid", rows), NOW)):
        assert "as of " in said and "%lakeshore ls gpu" in said
        assert "%lakeshore stream ID001" in said
    assert "as of" not in group_html(GroupState("grid", rows), NOW)
    assert "as of" not in group_record(GroupState("grid", rows[:1]), NOW)
