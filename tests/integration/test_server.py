"""The control plane as a process: its command, its stops and restarts, and what it never tells."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import httpx
import pytest
from integration.served import Process

from lakeshore import DispatchError, HttpDispatch, SyncQueue, thunk
from lakeshore.cli.app import run
from lakeshore.planes.default import default_plane, set_default_plane


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Run a command line in this process: ``cli("token", "list")`` gives code, stdout, stderr."""
    monkeypatch.setenv("LAKESHORE_HOME", str(tmp_path))

    def call(*argv: str, **env: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            code = run(list(argv))
            if env:
                default_plane().close()
                set_default_plane(None)
        return code, *capsys.readouterr()

    return call


def test_a_laptop_needs_no_other_set_up(tmp_path, cli):
    with Process(tmp_path) as server:
        file = next(path for path in (tmp_path / "tokens").iterdir() if "127.0.0.1" in path.name)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        first = server.token
        assert file.read_text().strip() == first
        # the command line, a worker and a notebook's code find it by LAKESHORE_URL alone
        with contextlib.closing(HttpDispatch(server.url, token=first)) as plane:
            q = SyncQueue("gpu", dispatch=plane)
            inv = q.submit(thunk(lambda *n: sum(n), 1, 2, 3))
            worker = [sys.executable, "-m", "lakeshore.daemon", "--queue", "gpu", "--once", "--allow-pickled"]
            env = {**os.environ, "LAKESHORE_HOME": str(tmp_path), "LAKESHORE_URL": server.url}
            done = subprocess.run([*worker, "--root", str(tmp_path)], env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert q.result(inv, timeout=10) == 6
        by_name = server.url.replace("127.0.0.1", "localhost")
        for url in (server.url, by_name):
            assert json.loads(cli("queues", "--json", LAKESHORE_URL=url)[1]) == {"gpu": {"succeeded": 1}}
        code, _, err = cli("queues", LAKESHORE_URL=server.url, LAKESHORE_HOME=str(tmp_path / "else"))
        assert code == 3
        assert "no valid token" in err
    with Process(tmp_path) as again:
        assert "lsk_" not in again.said  # printed once
        with contextlib.closing(HttpDispatch(again.url, token=first)) as plane:
            assert plane.queues() == {"gpu": {"succeeded": 1}}


def test_tokens_are_made_listed_and_taken_back(tmp_path, cli):
    with Process(tmp_path) as server:
        made = cli("token", "create", "--role", "producer", "--name", "ci", "--expires", "30d")
        token = made[1].strip()
        told = json.loads(cli("token", "create", "--role", "worker", "--namespace", "x", "--json")[1])
        with contextlib.closing(HttpDispatch(server.url, token=token)) as plane:
            plane.submit("gpu", b"e", id="a")
            with pytest.raises(DispatchError, match="403"):
                plane.claim("gpu", "w")
            rows = json.loads(cli("token", "list", "--json")[1])
            assert [(row["role"], row["namespace"]) for row in rows[:2]] == [
                ("worker", "x"),
                ("producer", "default"),
            ]
            assert rows[1]["last_used_at"] is not None
            assert rows[1]["expires_at"] > time.time() + 29 * 86400
            _, out, err = cli("token", "list")
            assert token not in out + err
            assert told["token"] not in out + err
            assert cli("token", "revoke", rows[1]["id"])[0] == 0
            time.sleep(1.1)
            with pytest.raises(DispatchError, match="401"):
                plane.queues()
    store = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert token.encode() not in store
    for argv in (
        ("create", "--role", "king"),
        ("create", "--namespace", "*"),
        ("create", "--expires", "soon"),
        ("revoke", "abcdef"),
        ("revoke", "a"),
    ):
        code, out, err = cli("token", *argv)
        assert code in (2, 3), argv
        assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--host", "0.0.0.0", "--no-auth"], 2, "loopback only"),
        (["--host", "0.0.0.0"], 2, "--insecure"),
        (["--ssl-certfile", "/no/such.pem"], 2, "no such file"),
        (["--ssl-keyfile", "/no/such.pem"], 2, "--ssl-certfile"),
        (["--store", "mysql://x/y"], 3, "SQLite file"),
        (["--store", "/no/such/folder/d.sqlite"], 3, "/no/such/folder"),
        (["--max-body", "lots"], 2, "64M"),
        (["--field-lease", "x"], 2, "duration"),
        (["--log", "xml"], 2, "json"),
        (["--host", "192.0.2.1", "--insecure"], 3, "192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_one_line(cli, flags, code, said):
    got, _, err = cli("serve", "--port", "0", *flags)
    assert got == code, err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_port_in_use_is_one_line(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = cli("serve", "--port", str(taken.getsockname()[1]))
    assert (code, len(err.splitlines())) == (3, 1)
    assert "another --port" in err


def test_it_is_served_over_tls(tmp_path, cli):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem"]
        + ["-out", tmp_path / "cert.pem", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    flags = ("--ssl-certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile", str(tmp_path / "key.pem"))
    with Process(tmp_path, *flags) as server:
        assert server.url.startswith("https://")
        env = {"LAKESHORE_URL": server.url, "SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        assert cli("queues", **env)[:2] == (0, "no queues\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_who_waits_and_a_restart_goes_on(tmp_path, number):
    with Process(tmp_path, "--no-auth") as server:
        plane = HttpDispatch(server.url)
        plane.submit("gpu", b"e", id="a")
        claimed = plane.claim("gpu", "w")
        got: dict[str, object] = {}
        threads = [
            threading.Thread(target=lambda: got.update(result=plane.result("a", timeout=30))),
            threading.Thread(target=lambda: got.update(frames=list(plane.journal_read("a", timeout=30)))),
            threading.Thread(target=lambda: got.update(claim=plane.claim("other", "w", wait=30))),
        ]
        for thread in threads:
            thread.start()
        plane.journal_append("a", None, b"1", worker_id="w", fence=claimed.fence)
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began < 3
        server.start()
        plane.journal_append("a", None, b"2", worker_id="w", fence=claimed.fence)
        plane.submit("other", b"e", id="b")
        plane.ack("a", "w", result=b"r", fence=claimed.fence)
        for thread in threads:
            thread.join(30)
        plane.close()
    assert got["result"] == b"r"
    assert got["frames"] == [(0, b"1"), (1, b"2")]
    assert got["claim"].id == "b"
    assert "Traceback" not in server.said


def test_a_token_is_told_nowhere(tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with Process(tmp_path, "--log", "json") as server:
        token = server.token
        printed = server.said
        plane, stranger = HttpDispatch(server.url, token=token), HttpDispatch(server.url, token=token[:-1])
        errors: list[object] = [repr(plane)]
        plane.submit("gpu", b"e", id="a")
        list_of = [
            lambda: plane.submit("gpu", b"other", id="a"),
            lambda: plane.ack("a", "w"),
            lambda: plane.result("no-such"),
            lambda: stranger.queues(),
        ]
        for call in list_of:
            with pytest.raises(DispatchError) as caught:
                call()
            error: BaseException | None = caught.value
            while error is not None:
                errors += [repr(error), str(error), error.args]
                error = error.__cause__ or error.__context__
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}) as http:
            metrics = http.get("/metrics")
            assert metrics.status_code == 200
            for path in (
                f"/{token}",
                f"/v1/namespaces/{token}/queues",
                f"/v1/namespaces/default/queues?token={token}",
            ):
                http.get(path)
            http.post("/v1/daemon/poll", content=token.encode())
            http.get("/healthz", headers={"X-Token": token, "User-Agent": token, "Origin": f"http://{token}"})
            http.request(token[:10], "/healthz")
        plane.close()
        stranger.close()
        assert 'lakeshore_jobs{namespace="default",queue="gpu",state="queued"} 1.0' in metrics.text
    said = server.said.replace(printed, "", 1)
    lines = [json.loads(line) for line in said.splitlines()]
    assert {"at", "client", "method", "route", "status", "ms", "token"} <= lines[0].keys()
    seen = "".join(map(str, [said, metrics.text, errors, caplog.text, *capfd.readouterr()]))
    assert token not in seen
    assert token[4:-1] not in seen
