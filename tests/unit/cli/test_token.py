"""Tokens that a deployment states in files: taken once, refused where one could be guessed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lakeshore import Dispatch
from lakeshore.cli.app import run
from lakeshore.errors import DispatchError
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens

CHOSEN = "lsk_" + "a1B2_-" * 8


@pytest.fixture
def file(tmp_path: Path) -> Path:
    at = tmp_path / "token"
    at.write_text(f"{CHOSEN}\n")
    return at


def test_a_stated_token_is_taken_once(home: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["token", "create", "--role", "worker", "--namespace", "team", "--token-file", str(file)]
    assert run(words) == 0
    assert run([*words, "--json"]) == 0
    said = capsys.readouterr().out
    assert CHOSEN not in said
    assert json.loads(said[said.index("{") :])["token"] is None
    with Dispatch(home / "dispatch.sqlite") as plane:
        (token,) = Tokens(plane).list()
        assert (token.ns, token.role, token.expires_at) == ("team", "worker", None)
        assert Tokens(plane).find(CHOSEN) is not None


def test_a_stated_token_means_one_thing_and_stays_revoked() -> None:
    with Dispatch(":memory:") as plane:
        tokens = Tokens(plane)
        tokens.declare(CHOSEN, ns="team", role="worker")
        with pytest.raises(DispatchError, match=r"known already, as worker in 'team', not as admin in '\*'"):
            tokens.declare(CHOSEN, ns=EVERYWHERE, role="admin")
        tokens.revoke(CHOSEN)
        with pytest.raises(DispatchError, match=r"was revoked or has expired\. Declare another"):
            tokens.declare(CHOSEN, ns="team", role="worker")
        assert tokens.find(CHOSEN) is None


@pytest.mark.parametrize(
    "text", ["", "lsk_short", "secret" * 10, CHOSEN + "é", CHOSEN + " x", "lsk_" + "a" * 201]
)
def test_one_that_could_be_guessed_or_is_no_token(text: str) -> None:
    with Dispatch(":memory:") as plane:
        with pytest.raises(ValueError, match="wants lsk_ and 32 to 200") as caught:
            Tokens(plane).declare(text, ns="team", role="worker")
        assert not text or text not in str(caught.value)
        for wrong in (
            {"ns": EVERYWHERE, "role": "worker"},
            {"ns": "a", "role": "boss"},
            {"ns": "", "role": "admin"},
        ):
            with pytest.raises(ValueError, match=r"role|namespace"):
                Tokens(plane).declare(CHOSEN, **wrong)
        assert Tokens(plane).list() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["token", "create", "--token-file", "{none}"],
            "--token-file '{none}': cannot be read (No such file",
        ),
        (["token", "create", "--token-file", "{two}"], "wants one line, and nothing beside it"),
        (["token", "create", "--token-file", "{bytes}"], "cannot be read (it is no UTF-8)"),
        (["token", "create", "--token-file", "{file}", "--expires", "30d"], "has no end of its own"),
        (
            ["token", "list", "--store", "x.sqlite", "--store-file", "{file}"],
            "--store and --store-file: give one",
        ),
        (["token", "list", "--store-file", "{none}"], "--store-file '{none}': cannot be read"),
        (["serve", "--no-auth", "--admin-token-file", "{file}"], "--no-auth asks for none. Drop one"),
        (["serve", "--admin-token-file", "{two}"], "--admin-token-file '{two}': wants one line"),
        (["serve", "--port", "0", "--admin-token-file", "{weak}"], "wants lsk_ and 32 to 200"),
    ],
)
def test_what_is_said_of_files_that_cannot_be(
    home: Path, file: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name: tmp_path / name for name in ("none", "two", "bytes", "weak")} | {"file": file}
    names["two"].write_text("a\nb\n")
    names["bytes"].write_bytes(b"\xff\xfe")
    names["weak"].write_text("hunter2")
    assert run([word.format(**names) for word in words]) == 2
    told = capsys.readouterr().err
    assert said.format(**names) in told
    assert CHOSEN not in told and "hunter2" not in told


@pytest.mark.parametrize("words", [["create"], ["list"], ["revoke", "3f0c"]], ids=lambda words: words[0])
def test_a_control_planes_tokens_are_where_its_store_is(
    home: Path,
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LAKESHORE_URL", "https://cp.example.com")
    for store in ([], ["--store", "https://cp.example.com"]):
        assert run(["token", *words, *store]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Run this where the store is, and name that: --store PATH" in err
    assert not (home / "dispatch.sqlite").exists()
    assert run(["token", "create", "--store", str(tmp_path / "jobs.sqlite")]) == 0


def test_an_age_has_a_unit_and_the_end_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age in ("30", "30.5"):
        assert run(["token", "create", "--expires", age]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"--expires '{age}': of what? Write the unit: {age}d (days)" in err
    assert run(["token", "create", "--expires", "0"]) == 2
    assert "refused at once" in capsys.readouterr().err
    assert not (home / "dispatch.sqlite").exists()
    assert run(["token", "create", "--expires", "30d"]) == 0
    end = time.strftime("%Y-%m-%d", time.localtime(time.time() + 30 * 86400))
    assert f"good until {end}" in capsys.readouterr().err


def test_who_lists_or_revokes_makes_no_store_and_who_makes_one_says_so(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = tmp_path / "jobs.sqlite"
    for words in (["list"], ["revoke", "3f0c"]):
        for store, path in (([], home / "dispatch.sqlite"), (["--store", str(at)], at)):
            assert run(["token", *words, *store]) == 3
            assert f"there is no file {str(path)!r}, and so no tokens" in capsys.readouterr().err
            assert not path.exists()
    assert run(["token", "create", "--store", str(at)]) == 0
    assert f"a new store: {at}\n" in capsys.readouterr().err
    assert run(["token", "create", "--store", str(at), "--name", "the gpu box"]) == 0
    assert "new store" not in capsys.readouterr().err


def test_the_list_says_what_its_columns_are(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "--name", "the gpu box", "--expires", "2d", "--namespace", "team"]) == 0
    capsys.readouterr()
    assert run(["token", "list"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "role", "state", "namespace", "last", "used", "until", "name"]
    end = time.strftime("%Y-%m-%d", time.localtime(time.time() + 2 * 86400))
    assert row.split()[1:6] == ["producer", "live", "team", "never", end]
    assert row.index("the gpu box") == head.rindex("name")


def test_a_store_named_by_a_file(home: Path, file: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text(f"sqlite:///{tmp_path / 'jobs.sqlite'}\n")
    assert run(["token", "create", "--token-file", str(file), "--store-file", str(tmp_path / "store")]) == 0
    assert (tmp_path / "jobs.sqlite").exists()
    assert not (home / "dispatch.sqlite").exists()


def test_a_token_is_changed_as_the_guide_says(
    home: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text(str(tmp_path / "jobs.sqlite"))
    at = ["--store-file", str(tmp_path / "store")]
    assert run(["token", "create", "--role", "worker", "--token-file", str(file), *at]) == 0
    file.write_text(CHOSEN[::-1].replace("_ksl", "") + "\n")
    assert run(["token", "create", "--role", "worker", "--token-file", str(file), *at]) == 2
    file.write_text("lsk_" + "Z9-_" * 12)
    assert run(["token", "create", "--role", "worker", "--token-file", str(file), *at]) == 0
    capsys.readouterr()
    assert run(["token", "list", "--json", *at]) == 0
    new, old = (row["id"] for row in json.loads(capsys.readouterr().out))
    assert run(["token", "revoke", old, *at]) == 0
    with Dispatch(tmp_path / "jobs.sqlite") as plane:
        assert {token.id: token.live for token in Tokens(plane).list()} == {new: True, old: False}
