"""Printed text as a terminal would show it, and hostile text made harmless."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore.notebook.render_colours import _luminance, line_html
from lakeshore.notebook.render_terminal import MAX_COLUMNS, Terminal, line_text, visible


def shown(*chunks: str, n: int = 50) -> list[str]:
    terminal = Terminal()
    for chunk in chunks:
        terminal.feed(chunk)
    return [line_text(line) for line in terminal.lines(n)]


def html(*chunks: str) -> str:
    terminal = Terminal()
    for chunk in chunks:
        terminal.feed(chunk)
    return "\n".join(line_html(line) for line in terminal.lines(50))


def test_carriage_return_overwrites_as_a_terminal_does() -> None:
    assert shown("  1%|   | 1/100\r100%|###| 100/100\ndone\n") == ["100%|###| 100/100", "done"]
    assert shown("abcdef\rxy") == ["xycdef"]
    assert shown("abcdef\rxy\x1b[K") == ["xy"]
    assert shown("a\r\nb\r\n") == ["a", "b"]
    assert shown("abc\b\bX") == ["aXc"]
    assert shown("a\tb") == ["a       b"]


def test_chunks_may_cut_a_line_or_an_escape_anywhere() -> None:
    whole = "one \x1b[31mred\x1b[0m\rtwo\nthree\x1b[38;2;1;2;3mx"
    for cut in range(len(whole)):
        assert html(whole[:cut], whole[cut:]) == html(whole), cut


def test_colours_stand_inline_and_nothing_else_of_an_escape_survives() -> None:
    assert html("\x1b[31mred\x1b[0m plain") == '<span style="color:#d13a40">red</span> plain'
    assert html("\x1b[1;92mok") == '<span style="color:#23863a"><b>ok</b></span>'
    assert html("\x1b[38;5;196mx") == '<span style="color:#ff0000">x</span>'
    assert html("\x1b[48;2;1;2;300mx") == '<span style="background-color:#0102ff;color:#fff">x</span>'
    assert html("\x1b[7;31mx") == '<span style="background-color:#d13a40;color:#fff">x</span>'
    assert html("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert html("\x1b[2J\x1b[999;999Hx\x1b(B\x07") in ("x", "x(B", "xB")


@pytest.mark.parametrize("colour", ["255;255;255", "0;0;0", "255;255;0", "0;0;255", "128;128;128"])
def test_a_colour_of_the_bodys_own_reads_on_white_and_on_black(colour: str) -> None:
    shown = html(f"\x1b[38;2;{colour}mx")
    light = _luminance(shown.partition("color:")[2][:7])
    assert 1.05 / (light + 0.05) > 3.8 and (light + 0.05) / 0.05 > 3.5


def test_markup_is_escaped() -> None:
    assert html("<script>alert(1)</script></div>\n") == "&lt;script&gt;alert(1)&lt;/script&gt;&lt;/div&gt;"


@pytest.mark.parametrize(
    "bomb",
    [
        "x" * 1_000_000,
        "\x1b[" * 300_000,
        "\x1b[" + "1;" * 400_000 + "m",
        "\x1b[31m" * 150_000,
        "\r" * 1_000_000,
        "\n" * 1_000_000,
        "\x1b]" + "y" * 900_000,
        "\b\t" * 400_000,
        "\x1b" * 500_000,
    ],
    ids=["long line", "open csi", "long csi", "colours", "returns", "newlines", "osc", "moves", "escapes"],
)
def test_a_bomb_costs_little_and_shows_little(bomb: str) -> None:
    terminal = Terminal()
    began = time.perf_counter()
    terminal.feed(bomb)
    assert time.perf_counter() - began < 1.0
    lines = terminal.lines(24)
    assert len(lines) <= 24
    assert sum(len(line_html(line)) for line in lines) < 30_000
    terminal.feed("\nstill here")
    assert line_text(terminal.lines(1)[0]) == "still here"


def test_a_long_line_says_how_much_is_missing() -> None:
    terminal = Terminal()
    terminal.feed("x" * (MAX_COLUMNS + 1234))
    assert line_text(terminal.lines(1)[0]) == "x" * MAX_COLUMNS + "… +1,234 characters"


def test_only_the_last_lines_are_kept() -> None:
    assert shown("".join(f"{n}\n" for n in range(1000)), n=3) == ["997", "998", "999"]


def test_an_attempt_is_divided_from_the_one_before() -> None:
    terminal = Terminal()
    terminal.feed("half a li")
    terminal.divide("attempt 2")
    terminal.feed("again\n")
    assert [line_text(line) for line in terminal.lines(9)] == ["half a li", "── attempt 2 ──", "again"]


def test_hidden_and_reordering_characters_are_shown() -> None:
    assert visible("a\u202eb\u200bc\x00\x1b\x7f\ud800\u2028") == "a⟨U+202E⟩b⟨U+200B⟩c␀␛␡\ufffd⏎"
    assert visible("tab\tand\nnewline, 日本, é, 👩‍🔬") == "tab\tand\nnewline, 日本, é, 👩‍🔬"


@given(st.text(st.characters(), max_size=300))
def test_any_text_is_inert_and_can_be_sent(text: str) -> None:
    out = html(text)
    out.encode("utf-8")
    assert not set(out) & set("\x1b\r\x00\u202e\u2066\u200f")
    assert "<" not in out.replace("<span", "").replace("</span", "")
