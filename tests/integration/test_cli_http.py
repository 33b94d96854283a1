"""The command line on a control plane: ours, one of the field that lacks verbs, and one that is none."""

from __future__ import annotations

import json

import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import Loopback
from unit.planes_http.ours import Ours

from lakeshore.cli.app import run
from lakeshore.planes.default import default_plane, set_default_plane


class Website(Loopback):
    def serve(self, request):
        request.reply(200, b"<html>", {"content-type": "text/html"})


@pytest.fixture
def cli(home, capsys):
    def call(*argv):
        code = run([str(word) for word in argv])
        return code, *capsys.readouterr()

    return call


def test_every_look_works_by_url(cli, tmp_path):
    (tmp_path / "token").write_text("tok\n")
    with Ours() as ours:
        at = ("--url", ours.url, "--token-file", tmp_path / "token", "--json")
        ours.plane.submit("gpu", b"x", id="01ABC")
        assert [row["id"] for row in json.loads(cli("ls", *at)[1])] == ["01ABC"]
        assert json.loads(cli("show", "01A", *at)[1])["state"] == "queued"
        assert json.loads(cli("queues", *at)[1]) == {"gpu": {"queued": 1}}
        assert cli("workers", *at)[0] == 0
        assert cli("cancel", "01ABC", *at)[0] == 0
        assert cli("requeue", "01ABC", *at)[0] == 0
        assert ours.plane.count("gpu") == 1
        code, out, _ = cli("doctor", *at)
        assert code == 1  # a queue without a worker
        (trust,) = [row for row in json.loads(out) if row["check"] == "trust"]
        assert trust["state"] == "note"
        assert "whoever has a token may submit" in trust["found"]
        assert "chmod" not in out
        only = ("--only", "a_key_is_submitted_once")
        assert json.loads(cli("conformance", *only, *at)[1])[0]["ok"]


def test_the_environment_says_which_plane(cli, monkeypatch):
    with Ours() as ours:
        monkeypatch.setenv("LAKESHORE_URL", ours.url)
        set_default_plane(None)
        try:
            ours.plane.submit("gpu", b"x", id="01ABC")
            assert json.loads(cli("queues", "--json")[1]) == {"gpu": {"queued": 1}}
            code, _, err = cli("backup", "b.sqlite")
            assert code == 2
            assert "--plane" in err
        finally:
            default_plane().close()
            set_default_plane(None)


def test_an_older_control_plane_says_what_it_lacks(cli):
    with Field() as field:
        field.done("01ABC", {"loss": 0.5})
        at = ("--url", field.url)
        assert cli("result", "01ABC", *at)[:2] == (0, "{'loss': 0.5}\n")
        for command in (
            ("ls",),
            ("queues",),
            ("workers",),
            ("cancel", "01ABC"),
            ("prune", "--older-than", "1d"),
        ):
            code, out, err = cli(*command, *at)
            assert (code, out) == (2, ""), command
            assert err.count("\n") == 1
            assert "does not have it" in err
            assert field.url in err
        code, _, err = cli("show", "01A", *at)
        assert code == 2
        assert "Give the whole id" in err
        code, out, _ = cli("doctor", *at)
        assert code == 0
        assert "upgrade the control plane" in out


def test_what_is_no_control_plane_is_one_line_and_3(cli):
    with Website() as loopback:
        for command in (("ls",), ("conformance",)):
            code, out, err = cli(*command, "--url", loopback.url)
            assert (code, out) == (3, "")
            assert err.count("\n") == 1
            assert "text/html" in err
