"""What a new user trips over, and the words that help: imports, syntax, sizes, ages, interrupts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshore.errors import Detached
from lakeshore.notebook import jobs
from tests.unit.notebook.conftest import Notebook


@pytest.fixture
def own(nb: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module beside the notebook that no other test knows."""
    (tmp_path / "beside.py").write_text("def old(n):\n    return n + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("beside", None)


def test_a_module_beside_the_notebook_in_a_whole_cell_is_told_of(nb: Notebook, own: Path) -> None:
    said = nb.run("%%lakeshore submit gpu --text\nimport beside\nx = beside.old(3) + 0").out
    assert f"line 2 imports beside on the worker, which has it only where it runs in {own}. " in said
    said = nb.run(
        "%%lakeshore submit gpu --text\ndef f():\n    import beside\n    return beside.old(3)\nf()"
    ).out
    assert "line 3 imports beside on the worker" in said
    assert (
        "on the worker, which"
        not in nb.run("%%lakeshore submit gpu --text\nimport json\nx = json.dumps(1) + str()").out
    )
    nb("import beside")
    said = nb.run("%%lakeshore submit gpu --text\nx = beside.old(3) + 0").out
    assert "on the worker, which" not in said
    assert nb.result(nb.names["_lakeshore"]) == 4


def test_a_name_that_a_loaded_module_has_not_is_refused_here(nb: Notebook, own: Path) -> None:
    nb("import beside")
    said = nb.refused("%%lakeshore submit gpu -q\nfrom beside import new\nnew(3)")
    assert "line 2: cannot import name 'new' from 'beside'" in said
    assert "importlib.reload(beside)" in said
    nb("%%lakeshore submit gpu -q\nfrom beside import old\nold(3)")
    assert nb.result(nb.names["_lakeshore"]) == 4
    nb("%%lakeshore submit gpu -q\nfrom xml import dom\ndom(3)")  # a submodule that is not loaded


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("x = 1\nreturn 5", ["line 3", "    return 5", "SyntaxError: 'return' outside function"]),
        ("y = (3 +", ["line 2", "    y = (3 +", "        ^", "SyntaxError: '(' was never closed"]),
    ],
)
def test_a_syntax_error_is_shown_without_frames(nb: Notebook, body: str, shown: list[str]) -> None:
    cell = nb.run(f"%%lakeshore submit gpu -q\n{body}")
    lines = [line for line in (cell.out + cell.err).rstrip().split("\n") if line.strip(" ^") or "(" in body]
    assert lines[0].startswith("  Cell In[") and lines[0].endswith(f"], {shown[0]}")
    assert lines[1:] == shown[1:]
    assert "NameError" in nb.run("nothing_of_this_name").out
    assert "SyntaxError" in nb.run("exec('1 +* 2')").out, "others are shown as ever"


def test_a_submit_that_does_not_parse_names_the_help_that_works(nb: Notebook) -> None:
    assert "(%lakeshore help submit for more)" in nb.refused("%%lakeshore submit gpu --nope\n1")
    assert "(-h for more)" in nb.refused("%lakeshore ls --nope")


def test_a_prune_wants_a_unit_and_can_be_tried(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q\n1 + 1")
    nb.drain()
    said = nb.refused("%lakeshore prune --older-than 30")
    assert "'30' of what? Write the unit: 30d (days), 30h, 30m or 30s" in said
    tried = nb("%lakeshore prune --older-than 0s --dry-run")
    assert tried == 1 and repr(tried).startswith("would remove 1 job")
    assert nb("%lakeshore prune --older-than 30d --dry-run") == 0
    assert nb("%lakeshore prune --older-than 0s --state failed --dry-run") == 0
    assert nb("%lakeshore prune --older-than 0s") == 1


def test_too_large_a_capture_names_the_flag(nb: Notebook) -> None:
    nb("big = bytes(2_000_000)")
    said = nb.refused("%%lakeshore submit gpu -q --max-size 1M\nx = len(big)")
    assert "over the limit of" in said and "Or allow more: --max-size SIZE, such as 50M." in said


def test_an_interrupt_says_that_a_job_is_queued(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q\n1 + 1")
    id = nb.names["_lakeshore"]
    with pytest.raises(Detached) as let_go, jobs.interruptible(nb.plane, [id]):
        raise KeyboardInterrupt
    assert str(let_go.value) == f"detached: {id} still runs once a worker takes it; %lakeshore cancel {id}"
    assert nb.plane.claim("gpu", "w") is not None
    with (
        pytest.raises(Detached, match=f"{id} still runs; %lakeshore cancel"),
        jobs.interruptible(nb.plane, [id]),
    ):
        raise KeyboardInterrupt


def test_doctor_quotes_a_queue(nb: Notebook) -> None:
    nb("%%lakeshore submit 'bad queue!' -q\n1 + 1")
    assert any("%lakeshore worker start 'bad queue!'" in str(row["fix"]) for row in nb("%lakeshore doctor"))


def test_a_traceback_of_a_whole_cell_begins_in_the_cell(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q\nx = 1\nx / 0")
    nb.drain()
    trace = str(nb("%lakeshore show _lakeshore")["traceback"])
    assert "line 3" in trace and "line 1" not in trace and "%%lakeshore" not in trace
