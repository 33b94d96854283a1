"""No value of the wire breaks a panel, makes it large, or slow; each goes through a real journal."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.notebook import stream_feed
from lakeshore.notebook.render_balance import MAX_DEPTH, balanced
from lakeshore.notebook.render_images import Figure
from lakeshore.notebook.render_values import MAX_HTML_BYTES, bundle_figure, sanitise
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed

HUGE = 10**400
INTS = st.integers() | st.sampled_from([HUGE, -HUGE, 10**4000, 2**63, 10**308, 10**309])
NUMPY = st.sampled_from(
    [
        *(
            kind(3)
            for kind in (np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex64, np.bool_)
        ),
        *(np.float64(x) for x in ("nan", "inf", "-inf")),
        np.float16("inf"),
        np.datetime64("NaT", "s"),
        np.datetime64("2026-01-01"),
        np.timedelta64("NaT", "s"),
        np.timedelta64(5, "s"),
        np.timedelta64(5, "Y"),
        np.array(3),
        np.array([1.0, np.nan]),
        np.zeros((0, 3)),
        np.str_("x"),
        np.bytes_(b"x"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    st.floats(),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.builds(Fraction, INTS, st.just(7)),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    NUMPY,
    st.sampled_from([Decimal("sNaN"), Decimal("1e999999"), dt.timedelta.max, dt.date.max, range(10**30)]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
NUMBERS = st.one_of(INTS, st.floats(), st.booleans(), st.fractions(), NUMPY, st.none(), st.text(max_size=3))
FRAMES = VALUES | st.fixed_dictionaries(
    {}, optional={"step": NUMBERS, "total": NUMBERS, "progress": NUMBERS, "loss": NUMBERS}
)


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


def followed(plane: Dispatch, *values: Any, log: Any = (), progress: Any = ()) -> JobFeed:
    """Return a feed that has polled a running job with these frames."""
    id = SyncQueue("gpu", dispatch=plane).submit(1)
    assert plane.claim("gpu", "w") is not None
    for journal, each in ((id, values), (f"{id}.log", log), (f"{id}.progress", progress)):
        for value in each:
            plane.journal_extend(journal, wire.value_frames(value))
    feed = JobFeed(plane, id)
    feed.poll()
    plane.ack(id, "w", result=wire.pack(values[0]) if values else None)
    return feed


def check(feed: JobFeed) -> None:
    """Draw all forms and check their bounds."""
    shown = (*feed.panel.displays, feed.panel.figure, feed.panel.result)
    rich = [each for each in shown if isinstance(each, Figure)]
    figure = sum(len(each.html.encode()) for each in rich)
    live, record, text = (part.encode() for part in (feed.html(), feed.record(), feed.text()))
    feed.line().encode()
    feed.opening().encode()
    feed.figure().encode()
    assert len(live) <= 16_000
    assert len(record) + len(text) - figure <= 20_000


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(FRAMES, min_size=1, max_size=4), told=NUMBERS, total=NUMBERS)
@example(values=[{"n": HUGE, "m": -HUGE, "f": Fraction(HUGE, 3)}, [HUGE, {"x": HUGE}]], told=HUGE, total=1)
@example(values=[{"step": HUGE, "total": 5}], told=1, total=HUGE)
@example(values=[{"step": 1, "total": HUGE}, {"progress": Fraction(1, HUGE)}], told=-HUGE, total=None)
@example(values=[{"n": Fraction(HUGE, 3)}, {"n": 0.5}], told=float("nan"), total=float("inf"))
@example(values=[{"t": np.timedelta64(5, "s")}, {"t": np.timedelta64("NaT", "s")}], told=1.0, total=None)
def test_every_value_of_the_wire_can_be_shown(
    plane: Dispatch, values: list[Any], told: Any, total: Any
) -> None:
    progress = {"done": told, "total": total, "note": "x"}
    check(followed(plane, *values, progress=[progress]))
    check(
        followed(plane, *values, log=[*values, progress, {"text": told}, {"display": {"text/plain": total}}])
    )


def test_an_int_too_long_to_write_out_is_told_by_its_size(plane: Dispatch) -> None:
    feed = followed(plane, {"n": 10**6000}, [10**6000], 10**6000, {"x": {"y": -(10**6000)}})
    check(feed)
    assert [shown.text for shown in feed.panel.tail] == [
        "n=an int of 19,932 bits",
        "[an int of 19,932 bits]",
        "an int of 19,932 bits",
        "{'x': {'y': an int of 19,932 bits}}",
    ]


NASTY = ["'\"&<>" * 200, "\u200b" * 600, "\U0001f600" * 900, "\n" * 900, "\x00" * 900, "<" * 5000, "é" * 5000]


@pytest.mark.parametrize("text", NASTY)
def test_a_record_has_a_bound_whatever_a_job_yields(plane: Dispatch, text: str) -> None:
    wide = {f"{n}{text}": text for n in range(64)}
    numbers = {f"{n}{text}": n * 1.1 for n in range(40)}
    colours = "".join(
        f"\x1b[38;2;1;2;{n % 200}m\x1b[48;2;{n % 200};2;3m{c}" for n, c in enumerate(text[:400])
    )
    feed = followed(
        plane,
        *[text] * 20,
        *[numbers] * 20,
        *[wide] * 20,
        log=[{"text": f"{colours}\n"}] * 30,
        progress=[{"done": 1e-300, "total": 1e300, "note": text}],
    )
    feed.panel.name = text
    check(feed)
    feed.panel.state, feed.panel.error, feed.panel.traceback = "failed", text, f"{text}\n" * 50
    check(feed)
    feed.panel.tail = feed.panel.tail[-1:]
    check(feed)
    feed.poll()
    assert feed.ended and feed.panel.result is not None
    check(feed)


@pytest.mark.parametrize("text", NASTY)
def test_a_fan_outs_record_has_a_bound(plane: Dispatch, text: str) -> None:
    ids = [followed(plane, *[text] * 20, progress=[{"done": 1, "note": text}]).id for _ in range(25)]
    feed = GroupFeed(plane, ids, name=text)
    feed.poll()
    for row in feed.panel.rows:
        row["state"], row["error"], row["worker_id"] = "failed", text, text
    assert len(feed.html().encode()) <= 14_000
    assert len(feed.record().encode()) <= 14_000
    assert "more" in feed.record()


FORMATS = "b i em strong code small s u".split()


def filled(unit: str, head: str = "") -> str:
    return (head + unit * (MAX_HTML_BYTES // len(unit) + 1))[:MAX_HTML_BYTES]


@pytest.mark.parametrize(
    "html",
    [
        filled("<p>x", "".join(f"<b title={n}>" for n in range(800))),
        filled("<p>x", "<p>" + "".join(f"<{tag}>" for tag in FORMATS)),
        filled("<table><tr><b><td></b></table>"),
        filled("x<p></b><b><i><p>"),
        filled("<div>"),
        filled("<ul><li><table><td>"),
        filled("<b "),
        filled("<b a='=\""),
        filled("<p ="),
        filled("<!--"),
        filled("<svg>"),
        filled("<svg></svg x "),
        filled("&"),
        filled("\u200b"),
        filled("<"),
    ],
    ids=range(15),
)
def test_a_display_costs_by_its_length_only(html: str) -> None:
    began = time.process_time()
    made = bundle_figure({"text/html": html})
    assert time.process_time() - began < 1.0
    assert made is not None and len(made.html.encode()) <= 2 * MAX_HTML_BYTES + 100


def test_any_order_of_tags_keeps_its_size() -> None:
    made = random.Random(7)  # noqa: S311 - a test's choice
    tags = [*FORMATS, *"p div td tr table th li ul br span caption details blockquote".split()]
    for _ in range(12):
        html = "".join(
            made.choice(("<{}>", "</{}>", "<{} title=1>x")).format(made.choice(tags)) for _ in range(4000)
        )
        assert len(sanitise(html)) < 4 * len(html)


@given(st.lists(st.sampled_from(["<b>", "</b>", "<p>", "</p>", "<td>", "</td>", "<table>", "</table>", "x"])))
def test_what_a_parser_gets_is_well_nested_and_shallow(tokens: list[str]) -> None:
    html = balanced(
        "".join(tokens * 20), tags={"b", "p", "td", "table"}, attributes=set(), without_content=set()
    )
    opened: list[str] = []
    for part in html.split("<")[1:]:
        name = part.partition(">")[0]
        if name.startswith("/"):
            assert opened.pop() == name[1:]
        else:
            opened.append(name)
            assert len(opened) <= MAX_DEPTH
    assert not opened


@pytest.mark.parametrize(
    ("html", "kept"),
    [
        ("<p>a<p>b", "<p>a</p><p>b</p>"),
        ("<ul><li>a<li>b</ul>", "<ul><li>a</li><li>b</li></ul>"),
        (
            "<table><tr><th>a<td>b<tr><td colspan=2>c</table>d",
            '<table><tbody><tr><th>a</th><td>b</td></tr><tr><td colspan="2">c</td></tr></tbody></table>d',
        ),
        ("<b>a</b> &lt; 1 < 2 &amp; <i>c</i>", "<b>a</b> &lt; 1 &lt; 2 &amp; <i>c</i>"),
        ('<span title="a > b">x</span>', '<span title="a &gt; b">x</span>'),
        ("<a href='https://x'>link</a><style>b{}</style>", "link"),
        ("x &#x202e; y", "x \u27e8U+202E\u27e9 y"),
    ],
)
def test_ordinary_html_keeps_its_shape(html: str, kept: str) -> None:
    assert sanitise(html).replace("a > b", "a &gt; b") == kept


def test_many_displays_cost_as_a_few(plane: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(data: dict[str, Any]) -> Figure | None:
        made.append(data)
        return bundle_figure(data)

    monkeypatch.setattr(stream_feed, "bundle_figure", counted)
    feed = followed(plane, log=[{"display": {"text/html": f"<b>{n}</b>"}} for n in range(200)])
    assert len(made) <= 2 * stream_feed.DISPLAYS_SHOWN
    feed.poll()
    assert "<b>199</b>" in feed.panel.displays[-1].html
    check(feed)
