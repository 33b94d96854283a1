"""Which plane the options name: over the environment, refused where they contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from lakeshore import Dispatch, HttpDispatch, settings
from lakeshore.cli.where import Where, path_of, place
from lakeshore.planes.default import default_plane, set_default_plane


@pytest.fixture
def default(home):
    set_default_plane(None)
    plane = default_plane()
    yield plane
    plane.close()
    set_default_plane(None)


def test_no_option_is_the_default_plane_and_stays_open(default):
    with Where().plane() as plane:
        assert plane is default
    assert default.queues() == {}


def test_a_store_is_a_file_or_its_directory(default, home, tmp_path):
    default.submit("gpu", b"x", id="j")
    for text in (str(home), str(home / "dispatch.sqlite"), f"sqlite:///{home}/dispatch.sqlite"):
        with Where(store=text).plane() as plane:
            assert plane is not default
            assert plane.count("gpu") == 1
    with Where(namespace="other").plane() as plane:
        assert isinstance(plane, Dispatch)
        assert plane.count("gpu") == 0


@pytest.mark.parametrize("text", ["none.sqlite", "."])
def test_a_store_that_is_not_there_is_not_made(home, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.BadParameter, match=r"--plane .*there is no file"):
        Where(store=text).open()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_url_and_its_token_file(home, tmp_path, monkeypatch):
    monkeypatch.setattr("lakeshore.cli.where._first_contact", lambda environment, url: None)
    (tmp_path / "token").write_text("secret\n")
    where = Where(url="http://127.0.0.1:1", token_file=tmp_path / "token", namespace="team")
    assert where.environment().token == "secret"
    with where.plane() as plane:
        assert isinstance(plane, HttpDispatch)
        assert plane.namespace == "team"
        assert "secret" not in repr(plane)
    monkeypatch.setenv("LAKESHORE_URL", "http://127.0.0.1:1")
    assert Where(token_file=tmp_path / "token").environment().token == "secret"
    assert Where(store=str(tmp_path)).environment().url is None


def test_options_that_contradict_each_other(home, tmp_path):
    for where in (
        Where(store="x", url="http://127.0.0.1:1"),
        Where(token_file=tmp_path / "token"),
        Where(url="http://127.0.0.1:1", token_file=Path("/nonexistent/token")),
    ):
        with pytest.raises(typer.BadParameter, match="--"):
            where.environment()


def test_a_plane_is_a_file_or_an_address(home):
    assert place(None, None) == (None, None)
    assert place(None, "https://cp") == ("https://cp", None)
    assert place("https://cp", None) == place("https://cp", "https://cp") == ("https://cp", None)
    assert place("sqlite:///x.sqlite", None) == (None, "sqlite:///x.sqlite")
    for plane, url in (("mysql://host/db", None), ("https://a", "https://b")):
        with pytest.raises(typer.BadParameter, match="--plane"):
            place(plane, url)


def test_keys_and_values_of_a_database_are_refused_without_the_password(home):
    with pytest.raises(typer.BadParameter, match="postgresql://user@host") as refused:
        path_of("host=db password=s3cret", settings.read())
    assert "s3cret" not in str(refused.value)
