"""A magic's line as words: splitting and expansion."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from lakeshore.notebook import words

NAMES = {"q": "gpu", "lr": 0.25, "cfg": type("C", (), {"queue": "cpu"})(), "xs": [1, 2], "n": 3}


def evaluate(text: str) -> Any:
    return eval(text, dict(NAMES))


def expanded(line: str) -> list[str]:
    return words.expand_all(words.split(line), evaluate)


@pytest.mark.parametrize(
    ("line", "out"),
    [
        ("", []),
        ("  gpu   -q ", ["gpu", "-q"]),
        ("'two words' \"three 'more' words\"", ["two words", "three 'more' words"]),
        ("a'b c'd", ["ab cd"]),
        (r'"say \"hi\""', ['say "hi"']),
        (r"two\ words", ["two words"]),
        (r"C:\data\x", [r"C:\data\x"]),
        ("''", [""]),
        ("submit gpu  # it's my job {", ["submit", "gpu"]),
        ("# all", []),
        ("gpu#1 '#2' \\#3 -a d={'#': 1} # 4", ["gpu#1", "#2", "\\#3", "-a", "d={'#': 1}"]),
        ("""-a cfg={"lr": 0.1, "n": [1, 2]} x""", ["-a", 'cfg={"lr": 0.1, "n": [1, 2]}', "x"]),
        ("-a s=f('a b', \"}\")", ["-a", "s=f('a b', \"}\")"]),
        ("-n run(1", ["-n", "run(1"]),
        ("-a name='a b' -n name='a b'", ["-a", "name='a b'", "-n", "name=a b"]),
        ("""-a "name='a b'" --arg=s="x" """, ["-a", "name='a b'", '--arg=s="x"']),
        ("-n :-) -q", ["-n", ":-)", "-q"]),
    ],
)
def test_split(line: str, out: list[str]) -> None:
    assert words.split(line) == out


def test_an_open_quote() -> None:
    with pytest.raises(UsageError, match="not closed"):
        words.split("gpu -n 'half")


@pytest.mark.parametrize(
    ("line", "out"),
    [
        ("$q", ["gpu"]),
        ("{q}", ["gpu"]),
        ("$cfg.queue", ["cpu"]),
        ("{cfg.queue}", ["cpu"]),
        ("run-$n-{n + 1}", ["run-3-4"]),
        ("{lr:.3f}", ["0.250"]),
        ("{xs}", ["[1, 2]"]),
        ("{len(xs)}", ["2"]),
        ("{ n }", ["3"]),
        ("$$q $5 a$", ["$q", "$5", "a$"]),
        ("{{q}}", ["{q}"]),
        ("{}", ["{}"]),
        ("""'{"a": {"b": [1, {}]}}'""", ['{"a": {"b": [1, {}]}}']),
        ("""{"on": true, "off": null}""", ['{"on": true, "off": null}']),
        ("-a lr=$lr", ["-a", "lr=(lr)"]),
        ("-a lr={lr}", ["-a", "lr=(lr)"]),
        ("-a s={1, 2}", ["-a", "s={1, 2}"]),
        ("""-a d={"lr": lr}""", ["-a", 'd={"lr": lr}']),
        ("--arg=k=$n", ["--arg=k=(n)"]),
    ],
)
def test_expand(line: str, out: list[str]) -> None:
    assert expanded(line) == out


@pytest.mark.parametrize(
    "line", ["$nope", "{nope}", "{nope.x}", "{1/0}", "{q.nope}", "$cfg.nope", "{two words}", "{q"]
)
def test_what_cannot_be_expanded_is_an_error(line: str) -> None:
    with pytest.raises(UsageError):
        expanded(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_braces_reach_us_intact(value: Any) -> None:
    text = json.dumps({"v": value})
    assert words.expand(text.replace("$", "$$"), evaluate).replace("$$", "$") in (
        text,
        text.replace("$$", "$"),
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]))))
def test_what_a_shell_quotes_comes_back(texts: list[str]) -> None:
    assert words.split(" ".join(map(shlex.quote, texts))) == texts


@given(st.text())
def test_any_line_is_split_and_expanded_or_refused(line: str) -> None:
    try:
        expanded(line)
    except UsageError:
        pass
