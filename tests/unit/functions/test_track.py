"""`track` in a job, in a terminal, in a notebook, and where nobody looks."""

import io
import sys

import pytest

from lakeshore import track
from lakeshore.context import job_context


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_in_a_job_it_reports_and_the_last_always_arrives():
    seen = []
    with job_context(prefix="", root="/", invocation_id="i", on_progress=lambda *a: seen.append(a)):
        assert list(track(range(1000), description="d")) == list(range(1000))
        assert list(track(iter("ab"))) == ["a", "b"]
    assert seen[0] == (0.0, 1000.0, "d")
    assert (1000.0, 1000.0, "d") in seen
    assert seen[-1] == (2.0, 2.0, None)
    assert len(seen) < 30


def test_in_a_terminal_there_is_a_bar(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    screen = Tty()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(track(range(3), description="epoch")) == [0, 1, 2]
    assert "epoch" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_in_a_notebook_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert list(track([1, 2], description="epoch")) == [1, 2]
    out = capsys.readouterr().out
    assert "epoch: 2/2 100%" in out
    assert out.count("\n") == 1


def test_where_nobody_looks_it_is_silent(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert list(track(x for x in "ab")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


def test_an_error_in_the_loop_comes_through():
    def items():
        yield 1
        raise LookupError

    with pytest.raises(LookupError):
        list(track(items()))
