"""Jobs and workers on a plane that a `--plane` names: hints name it, and commands find the job there."""

from __future__ import annotations

from pathlib import Path

from lakeshore.notebook import elsewhere
from lakeshore.notebook.stream_feed import JobFeed
from tests.unit.notebook.conftest import Notebook


def submit(nb: Notebook, where: Path) -> str:
    out = nb.run(f"%%lakeshore submit live --plane {where} --out j --text\nprint('hello')\nx = 6 * 7")
    assert out.error is None
    assert f"%lakeshore worker start live --plane {where}`" in out.out
    return str(nb.names["j"])


def test_a_job_on_another_plane_is_found_by_every_command(nb: Notebook, tmp_path: Path) -> None:
    where = tmp_path / "other.sqlite"
    id = submit(nb, where)
    assert nb.plane.invocations() == []
    assert nb("%lakeshore show j")["id"] == id
    assert nb(f"%lakeshore cancel {id}")[0]["cancelled"] is True
    assert nb(f"%lakeshore requeue {id[:20]}")[0]["requeued"] is True
    assert "queued" in nb.run("%lakeshore stream j --text").out
    worker = nb(f"%lakeshore worker start live --plane {where}")
    assert nb("%lakeshore wait j --timeout 20") == 42
    assert nb("%lakeshore result j") == 42
    assert str(nb("%lakeshore logs j")) == "hello\n"
    assert nb(f"%lakeshore worker start live --plane {where}") is worker
    nb("%lakeshore worker stop live")


def test_a_wait_is_for_the_jobs_of_one_plane(nb: Notebook, tmp_path: Path) -> None:
    submit(nb, tmp_path / "other.sqlite")
    nb("%%lakeshore submit gpu -q --out here\n1 + 1")
    assert "several planes" in nb.refused("%lakeshore wait here j")


def test_an_id_that_is_on_no_plane_here_is_said_to_be_an_id(nb: Notebook, tmp_path: Path) -> None:
    id = submit(nb, tmp_path / "other.sqlite")
    elsewhere.forget()
    said = nb.refused("%lakeshore show j")
    assert f"the variable j holds {id}, of no job on Dispatch(':memory:'" in said
    assert "%lakeshore plane says which plane this is" in said


def test_the_default_plane_is_named_by_no_hint(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q --out j\n1 + 1")
    feed = JobFeed(nb.plane, nb.names["j"])
    feed.poll()
    assert feed.panel.notes[0].endswith("`%lakeshore worker start gpu`")


def test_a_reload_says_which_workers_it_stopped(nb: Notebook) -> None:
    nb("%lakeshore worker start 'my gpu'")
    said = nb.run("%reload_ext lakeshore").out
    assert said == (
        "lakeshore: the worker for 'my gpu' (thread) was stopped with the extension. "
        "%lakeshore worker start 'my gpu' starts one again\n"
    )
    assert nb.run("%reload_ext lakeshore").out == ""
