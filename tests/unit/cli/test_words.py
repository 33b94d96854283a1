"""What a command says of a control plane is in its own words, and what a job said is left as it is."""

from __future__ import annotations

import pytest
from unit.planes_http.ours import Ours

from lakeshore import Dispatch, errors
from lakeshore.cli import app
from lakeshore.cli.app import run
from lakeshore.cli.words import for_terminal
from lakeshore.server import Options

PYTHONS = ("token=", "base_url", "insecure=True", " get:", " invocations:", "claim:")


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["queues"], ["cancel", "x"], ["doctor"]], ids=str)
def test_a_refused_token_is_told_by_option(home, capsys, words: list[str]) -> None:
    with Ours(Dispatch(":memory:"), options=Options()) as ours:
        assert run([*words, "--url", ours.url]) in (1, 3)
    out, err = capsys.readouterr()
    said = out + err
    assert f" {ours.url} refuses with 401" in said
    assert "--token-file" in said
    assert "LAKESHORE_CLIENT_TOKEN" in said
    assert not [word for word in PYTHONS if word in said]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://a:b@127.0.0.1", "give --token-file FILE"),
        ("http://192.0.2.1", "--insecure or LAKESHORE_INSECURE=1"),
        ("http://127.0.0.1/?x", "query or fragment"),
    ],
)
@pytest.mark.parametrize("words", [["ls"], ["worker", "start", "--queue", "gpu"]], ids=lambda words: words[0])
def test_an_address_that_cannot_be_is_told_by_option(
    home, capsys, words: list[str], url: str, told: str
) -> None:
    assert run([*words, "--url", url]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lakeshore: --url (or LAKESHORE_URL)")
    assert told in err
    assert err.count("\n") == 1
    assert not [word for word in PYTHONS if word in err]


def test_an_address_for_a_file_is_known(home, capsys) -> None:
    assert run(["ls", "--plane", "127.0.0.1:8080"]) == 2
    assert "--url http://127.0.0.1:8080" in capsys.readouterr().err
    assert run(["ls", "--plane", "none.sqlite"]) == 2
    assert "--url" not in capsys.readouterr().err


def test_a_command_keeps_its_name_and_a_job_its_words(home, capsys, monkeypatch) -> None:
    assert for_terminal("cancel: http://x does not have it") == "cancel: http://x does not have it"
    assert for_terminal("get: http://x is away") == "http://x is away"
    assert for_terminal("loss: 3") == "loss: 3"
    said = "base_url: pass token= to get: x"

    def fails(*args: object, **kwargs: object) -> None:
        raise errors.InvocationFailed(said, type="ValueError")

    monkeypatch.setattr("lakeshore.cli.where.Where.open", fails)
    assert app.run(["ls"]) == 1
    assert said in capsys.readouterr().err
