"""The rows that tell which code is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lakeshore import Dispatch
from lakeshore.planes.store_tokens import Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

ROW: dict[str, Any] = {
    "remote": "https://example.com/a.git",
    "commit": "c" * 40,
    "branch": "main",
    "backend": "git",
    "archiveKey": "0" * 64 + ".tar.gz",
    "storageName": "code",
    "sizeBytes": 123,
    "submodules": [{"path": "lib", "commit": "d" * 40}],
    "dirty": False,
}


class Client:
    """What a client does, by hand, in a namespace of its own."""

    def __init__(self, url: str, ns: str, token: str | None = None) -> None:
        self.url, self.ns = url, quote(ns, safe="")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def register(self, **row: Any) -> httpx.Response:
        return self.post({**ROW, **row})

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(
            f"{self.url}/v1/namespaces/{self.ns}/code-repos", json=body, headers=self.headers, verify=False
        )

    def lookup(self, ns: str | None = None, **query: str) -> httpx.Response:
        asked = {"remote": ROW["remote"], "commit": ROW["commit"], **query}
        path = f"{self.url}/v1/namespaces/{ns or self.ns}/code-repos/lookup"
        return httpx.get(path, params=asked, headers=self.headers, verify=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Dispatch(":memory:") as plane, background(create_app(plane, Options(auth=False))) as found:
        yield found


@pytest.fixture
def client(url: str, request: pytest.FixtureRequest) -> Client:
    return Client(url, request.node.name[:200])


def test_a_row_is_found_by_remote_and_commit_in_its_namespace(client: Client) -> None:
    assert client.lookup().status_code == 404
    assert client.register().json() == ROW
    assert client.lookup().json() == ROW
    assert client.lookup(commit="e" * 40).status_code == 404
    assert client.lookup(remote="https://example.com/b.git").status_code == 404
    assert client.lookup(ns="other").status_code == 404


def test_a_later_row_takes_the_place_of_an_earlier_one(client: Client) -> None:
    for n in range(5):
        assert client.register(sizeBytes=n % 2).is_success
        assert client.lookup().json()["sizeBytes"] == n % 2


def test_what_is_left_out_takes_its_default(client: Client) -> None:
    short = {name: ROW[name] for name in ("remote", "commit", "archiveKey")}
    answer = client.post({**short, "unknown": 1, "branch": None})
    assert answer.json() == {
        **short,
        "branch": None,
        "backend": "git",
        "storageName": "code",
        "sizeBytes": 0,
        "submodules": [],
        "dirty": False,
    }


def test_a_remote_never_shows_its_credentials(client: Client) -> None:
    secret = "https://user:s3cret@example.com/a.git"
    assert "s3cret" not in client.register(remote=secret).text
    found = client.lookup(remote=secret)
    assert found.json()["remote"] == ROW["remote"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote": None},
        {"remote": ""},
        {"remote": "a\nb"},
        {"commit": 7},
        {"commit": "c" * 5000},
        {"archiveKey": "../../etc"},
        {"sizeBytes": -1},
        {"sizeBytes": "1"},
        {"submodules": "lib"},
        {"submodules": ["x" * 100_000]},
        {"dirty": "no"},
        {"branch": 7},
    ],
)
def test_a_wrong_field_is_named(wrong: dict[str, Any], client: Client) -> None:
    answer = client.register(**wrong)
    assert answer.status_code == 400
    assert next(iter(wrong)).lower().removeprefix("archive") in answer.json()["error"]["message"].lower()
    assert client.lookup().status_code == 404


def test_a_question_without_a_commit_is_told(client: Client) -> None:
    assert client.lookup(commit="").status_code == 400


def test_a_worker_looks_and_does_not_register() -> None:
    with Dispatch(":memory:") as plane:
        token, _ = Tokens(plane).create(ns="default", role="worker")
        with background(create_app(plane, Options())) as url:
            worker = Client(url, "default", token)
            assert worker.register().status_code == 403
            assert worker.lookup().status_code == 404
