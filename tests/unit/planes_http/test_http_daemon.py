"""The daemon against a control plane: flags, environment, trust, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit.planes_http.loopback import TOKEN

from lakeshore import InvocationFailed, SyncQueue, settings, thunk
from lakeshore.worker.spawn import Spawned


def daemon(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", "--once", *flags]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)


@pytest.fixture
def q(connect, ours) -> SyncQueue:
    return SyncQueue("gpu", dispatch=connect(ours))


def test_by_value_functions_run_only_where_they_are_allowed(q, ours, tmp_path):
    def local() -> int:
        return 42

    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    refused = q.submit(thunk(local))
    done = daemon("--url", ours.url, "--token-file", str(token), "--root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with pytest.raises(InvocationFailed, match="--allow-pickled"):
        q.result(refused)
    taken = q.submit(thunk(local))
    done = daemon("--url", ours.url, "--token-file", str(token), "--root", str(tmp_path), "--allow-pickled")
    assert done.returncode == 0, done.stderr
    assert q.result(taken) == 42
    assert TOKEN not in done.stdout + done.stderr


def test_the_environment_fills_the_gaps_and_yields_stream(q, ours, tmp_path):
    def squares(n: int):
        for i in range(n):
            yield i * i
        return "done"

    inv = q.submit(thunk(squares, 4))
    done = daemon(
        "--allow-pickled", "--root", str(tmp_path), LAKESHORE_URL=ours.url, LAKESHORE_CLIENT_TOKEN=TOKEN
    )
    assert done.returncode == 0, done.stderr
    assert q.status(inv)["state"] == "succeeded", (q.status(inv), done.stderr)
    assert list(q.stream(inv)) == [0, 1, 4, 9]
    assert q.result(inv) == "done"


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_bodies_and_what_they_start_do_not_see_the_token(q, ours, tmp_path, isolation):
    def look() -> list[str]:
        import os
        import subprocess
        import sys

        code = "import os; print(dict(os.environ))"
        started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return [str(dict(os.environ)), started.stdout]

    inv = q.submit(thunk(look))
    done = daemon(
        *("--allow-pickled", "--isolation", isolation, "--root", str(tmp_path)),
        LAKESHORE_URL=ours.url,
        LAKESHORE_CLIENT_TOKEN=TOKEN,
    )
    assert done.returncode == 0, done.stderr
    for seen in q.result(inv):
        assert "LAKESHORE_URL" in seen
        assert TOKEN not in seen


def test_a_child_of_this_process_starts_without_the_token(monkeypatch):
    monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", TOKEN)
    spawned = Spawned()
    try:
        started = Path(f"/proc/{spawned.process.pid}/environ")
        if not started.exists():
            pytest.skip("no /proc here")
        assert TOKEN.encode() not in started.read_bytes()
    finally:
        spawned.close()
    assert os.environ["LAKESHORE_CLIENT_TOKEN"] == TOKEN


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("postgresql://u:S3CRET@h:5432/db?sslmode=require", "postgresql://u@h:5432/db?sslmode=require"),
        ("postgresql://u:S3@CRET@h1:1,h2:2/db", "postgresql://u@h1:1,h2:2/db"),
        ("postgres://h/db?password=S3CRET&a=1", "postgres://h/db?a=1"),
        ("postgresql:///db?user=a&sslpassword=S3CRET", "postgresql:///db?user=a"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("https://cp.example:8443/lake", "https://cp.example:8443/lake"),
        ("no address", "no address"),
    ],
)
def test_bodies_see_the_plane_s_address_without_its_password(url, bare, monkeypatch):
    monkeypatch.setenv("LAKESHORE_URL", url)
    monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", TOKEN)
    child = settings.without_token()
    assert child["LAKESHORE_URL"] == bare
    assert "LAKESHORE_CLIENT_TOKEN" not in child
    assert os.environ["LAKESHORE_URL"] == url
    settings.forget_token()
    assert os.environ["LAKESHORE_URL"] == bare
    assert "LAKESHORE_CLIENT_TOKEN" not in os.environ


def test_an_address_and_a_token_may_end_in_a_newline(monkeypatch):
    monkeypatch.setenv("LAKESHORE_URL", " https://cp.example\n")
    monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", f"{TOKEN}\n")
    assert settings.read().url == "https://cp.example"
    assert settings.read().token == TOKEN


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--url", "http://example.com", "--token", "s3cret"], "--insecure"),
        (["--url", "ftp://example.com"], "ftp"),
        (["--url", "http://127.0.0.1:9", "--token-file", "/no/such/file"], "--token-file"),
    ],
)
def test_a_bad_address_or_token_file_is_one_line(flags, said):
    done = daemon(*flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "s3cret" not in done.stderr


def test_the_flags_are_documented():
    text = Path("docs/worker.md")
    if not text.exists():
        pytest.skip("the guide is not beside these tests")
    for name in ("--token-file", "--insecure", "LAKESHORE_INSECURE"):
        assert name in text.read_text("utf-8")
