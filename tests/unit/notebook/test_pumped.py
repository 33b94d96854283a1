"""Colab, faked by its module: a cell that waits draws the panel itself, and says so."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.unit.notebook.conftest import Notebook


@pytest.fixture
def colab(nb: Notebook, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    nb("%lakeshore worker start gpu;")
    return nb


def test_a_wait_draws_from_the_cell(colab: Notebook) -> None:
    cell = colab.run("%%lakeshore submit gpu --wait 20 -r value\nfor n in range(3):\n    yield n\n'end'")
    assert cell.error is None, cell.err
    assert "this cell draws the panel while it waits" in cell.out
    assert "succeeded" in cell.out
    assert colab.names["_lakeshore"] in cell.out


def test_a_fan_out_and_a_stream_do_too(colab: Notebook) -> None:
    colab("def f(x): return x")
    cell = colab.run("%%lakeshore submit gpu --wait 20 -r values\nruns = [f(x) for x in range(3)]")
    assert colab.names["values"] == [0, 1, 2]
    assert "this cell draws" in cell.out
    assert "this cell draws" in colab.run("%lakeshore stream runs --wait").out


def test_without_a_wait_it_says_how_to_follow(colab: Notebook) -> None:
    cell = colab.run("%%lakeshore submit gpu\n1")
    assert f"%lakeshore stream {colab.names['_lakeshore']} --wait" in cell.out
