"""The file side channel: signed URLs, parts, resumes, digests; what a stranger sees of it is nothing."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lakeshore import Dispatch
from lakeshore.planes import store_tokens
from lakeshore.planes.protocol_files import digest_header, read_content_range, read_digest, read_range
from lakeshore.planes.store_tokens import Tokens
from lakeshore.server import Options, create_app, storages
from lakeshore.server.answers import Refusal
from lakeshore.server.run import background
from lakeshore.server.signing import Grant, Signer

DATA = os.urandom(300_000)
put, get, post, head = (
    functools.partial(getattr(httpx, verb), verify=False) for verb in ("put", "get", "post", "head")
)


class Client:
    """What a client does, by hand."""

    def __init__(self, url: str, ns: str = "default", token: str | None = None) -> None:
        self.ns, self.base = ns, url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def post(self, path: str, headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
        return post(self.base + path, headers={**self.headers, **(headers or {})}, **body)  # type: ignore[arg-type]

    def presign(self, key: str, operation: str, *, storage: str = "files", **more: object) -> httpx.Response:
        path = f"/v1/namespaces/{quote(self.ns, safe='')}/storages/{storage}/presign"
        return self.post(path, json={"expiresIn": 60, **more, "key": key, "operation": operation})

    def url(self, key: str, operation: str, **more: object) -> str:
        answer = self.presign(key, operation, **more)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        return str(answer.json()["url"])

    def put(self, key: str, data: bytes = DATA, **headers: str) -> httpx.Response:
        return put(self.url(key, "put"), content=data, headers=headers)

    def part(self, url: str, first: int, last: int, data: bytes = DATA, digest: str | None = None):
        return put(
            url,
            content=data[first : last + 1],
            headers={
                "Content-Range": f"bytes {first}-{last}/{len(data)}",
                "Repr-Digest": digest or sha(data),
            },
        )

    def ask(self, url: str, data: bytes = DATA) -> httpx.Response:
        headers = {"Content-Range": f"bytes */{len(data)}", "Repr-Digest": sha(data)}
        return put(url, headers=headers)

    def get(self, key: str, **headers: str) -> httpx.Response:
        return get(self.url(key, "get"), headers=headers)


def sha(data: bytes) -> str:
    return digest_header(hashlib.sha256(data).hexdigest())


@pytest.fixture(scope="module", params=["folder", "memory://lakeshore-test"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path_factory.mktemp("storage"))
    else:
        fsspec = pytest.importorskip("fsspec")
        yield request.param
        fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="module")
def url(place: str) -> Iterator[str]:
    with Dispatch(":memory:") as plane:
        with background(create_app(plane, Options(auth=False, storage=place))) as found:
            yield found


@pytest.fixture
def client(url: str, request: pytest.FixtureRequest) -> Client:
    return Client(url, ns=request.node.name[:200])


def test_a_file_put_whole_is_read_whole_and_in_part(client: Client) -> None:
    assert client.get("a/b.bin").status_code == 404
    stored = client.put("a/b.bin")
    assert stored.status_code == 200
    assert stored.json() == {
        "key": "a/b.bin",
        "sizeBytes": len(DATA),
        "digest": "sha256:" + hashlib.sha256(DATA).hexdigest(),
    }
    whole = client.get("a/b.bin")
    assert whole.content == DATA
    assert whole.headers["repr-digest"] == sha(DATA)
    assert whole.headers["content-disposition"] == "attachment"
    assert "sandbox" in whole.headers["content-security-policy"]
    rest = client.get("a/b.bin", Range="bytes=299990-")
    assert (rest.status_code, rest.content) == (206, DATA[-10:])
    assert rest.headers["content-range"] == "bytes 299990-299999/300000"
    assert client.get("a/b.bin", Range="bytes=5-9").content == DATA[5:10]
    assert client.get("a/b.bin", Range="bytes=300000-").status_code == 416
    assert client.get("a/b.bin", **{"If-Match": '"0"', "Range": "bytes=5-"}).status_code == 412
    found = head(client.url("a/b.bin", "get"))
    assert (found.status_code, found.headers["content-length"]) == (200, "300000")


def test_an_empty_file_is_a_file(client: Client) -> None:
    assert client.put("empty", b"").status_code == 200
    assert client.get("empty").content == b""
    assert client.ask(client.url("empty too", "put"), b"").status_code == 200


def test_parts_come_in_any_order_again_and_after_a_restart(place: str, tmp_path: Path) -> None:
    def serve() -> tuple[Dispatch, object]:
        plane = Dispatch(str(tmp_path / "store.sqlite"))
        return plane, background(create_app(plane, Options(auth=False, storage=place)))

    plane, serving = serve()
    with plane, serving as url:
        client = Client(url)
        target = client.url("big", "put")
        assert client.ask(target).json() == {"receivedBytes": 0, "totalBytes": len(DATA)}
        first = client.part(target, 0, 99_999)
        assert (first.status_code, first.headers["range"]) == (202, "bytes=0-99999")
        assert client.part(target, 200_000, 299_999).headers["range"] == "bytes=0-99999"
        assert client.get("big").status_code == 404
    plane, serving = serve()  # another server of the same store: it knows what came, and the old URL
    with plane, serving as url:
        client = Client(url)
        target = url + target[target.index("/v1/") :]
        assert client.ask(target).headers["range"] == "bytes=0-99999"
        assert client.part(target, 0, 99_999).status_code == 202
        done = client.part(target, 100_000, 199_999)
        assert (done.status_code, done.headers["repr-digest"]) == (200, sha(DATA))
        assert client.get("big").content == DATA
        assert client.part(target, 100_000, 199_999).status_code in (200, 202)  # its answer was lost
        assert client.ask(target).status_code == 200


def test_a_content_that_is_there_is_not_sent_again(client: Client) -> None:
    client.put("one")
    assert client.ask(client.url("two", "put")).status_code == 200
    assert client.get("two").content == DATA
    stranger = Client(client.base, ns="other")
    assert stranger.ask(stranger.url("two", "put")).status_code == 202  # what others have opens nothing


def test_a_wrong_digest_publishes_nothing_and_starts_anew(client: Client) -> None:
    url = client.url("bad", "put")
    assert client.put("bad", DATA, **{"Repr-Digest": sha(b"else")}).status_code == 400
    assert client.part(url, 0, 199_999, digest=sha(b"else")).status_code == 202
    refused = client.part(url, 200_000, 299_999, digest=sha(b"else"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_digest")
    assert client.get("bad").status_code == 404
    assert client.part(url, 200_000, 299_999, digest=sha(b"else")).headers.get("range") is None


def test_a_key_holds_what_was_written_last_and_a_resume_tells(client: Client) -> None:
    client.put("k", b"old" * 100)
    etag = client.get("k").headers["etag"]
    client.put("k", b"new" * 100)
    assert client.get("k").content == b"new" * 100
    assert client.get("k", **{"If-Match": etag, "Range": "bytes=100-"}).status_code == 412


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": "bytes 0-9/10"},
        {"Content-Range": "bytes 0-9/10", "Repr-Digest": "md5=:AAAA:"},
        {"Content-Range": "bytes 5-2/10", "Repr-Digest": sha(b"")},
        {"Content-Range": "bytes 0-10/10", "Repr-Digest": sha(b"")},
        {"Content-Range": "bytes -1-3/10", "Repr-Digest": sha(b"")},
        {"Content-Range": "words 0-9/10", "Repr-Digest": sha(b"")},
        {"Content-Range": "bytes 0-8/10", "Repr-Digest": sha(b"")},  # the body has one byte less
        {"Content-Range": "bytes 1000000-1000007/99999999999999", "Repr-Digest": sha(b"")},
        {"Content-Range": "bytes 0-99999999/100000000", "Repr-Digest": sha(b"")},
    ],
)
def test_a_part_that_is_none_is_refused(headers: dict[str, str], client: Client) -> None:
    answer = put(client.url("k", "put"), content=b"12345678", headers=headers)
    assert answer.status_code in (400, 413)
    assert answer.json()["error"]["message"]
    assert client.get("k").status_code == 404


def test_a_size_over_the_limit_is_refused_however_it_comes(client: Client) -> None:
    url = client.url("k", "put", sizeBytes=1000)
    assert put(url, content=bytes(1001)).status_code == 413
    assert put(url, content=iter([bytes(600), bytes(600)])).status_code == 413
    headers = {"Content-Range": "bytes 0-9/1001", "Repr-Digest": sha(b"")}
    assert put(url, content=bytes(10), headers=headers).status_code == 413
    assert client.presign("k", "put", sizeBytes=1 << 50).status_code == 413
    assert client.get("k").status_code == 404
    assert put(url, content=bytes(1000)).status_code == 200


def test_many_uploads_of_one_key_end_whole(client: Client) -> None:
    answers: list[int] = []

    def send(first: int) -> None:
        url = client.url("k", "put")
        for n in range(3):
            start = (first + n) % 3 * 100_000
            answers.append(client.part(url, start, start + 99_999).status_code)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 202}
    assert client.ask(client.url("k", "put")).status_code == 200
    assert client.get("k").content == DATA


def test_a_body_that_is_cut_leaves_nothing(client: Client) -> None:
    def cut() -> Iterator[bytes]:
        yield b"x" * 1000
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        put(client.url("k", "put"), content=cut())
    assert client.get("k").status_code == 404


# ---- what a URL opens


def test_a_url_opens_one_operation_on_one_file_for_a_time(client: Client) -> None:
    client.put("k")
    read, write = client.url("k", "get"), client.url("k", "put")
    assert put(read, content=b"").status_code == 403
    assert get(write).status_code == 403
    assert post(read).status_code == 405
    base, _, mac = read.rpartition(".")
    for odd in (base, f"{base}.", f"{base}.{mac[:-2]}AA", f"{base}x.{mac}", base[:-40], f"{base}.é", "!!.!!"):
        odd_url = odd if "://" in odd else f"{client.base}/v1/files/{odd}"
        assert get(odd_url).status_code in (403, 404), odd


def test_a_url_expires() -> None:
    from lakeshore.server.filing import Place

    signer = Signer(b"s" * 32)
    grant = Grant(Place("n", "s", "k"), "get", 10, 1000.0)
    assert signer.read(signer.sign(grant), 999.0) == grant
    with pytest.raises(Refusal, match="expired"):
        signer.read(signer.sign(grant), 1000.1)
    with pytest.raises(Refusal, match="did not sign"):
        Signer(b"t" * 32).read(signer.sign(grant), 1.0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"key": "k"},
        {"key": "k", "operation": "delete"},
        {"key": "", "operation": "get"},
        {"key": "/abs", "operation": "get"},
        {"key": "../up", "operation": "get"},
        {"key": "a/../../up", "operation": "get"},
        {"key": "a\\b", "operation": "get"},
        {"key": "a\x00b", "operation": "get"},
        {"key": "C:/x", "operation": "get"},
        {"key": "k" * 256, "operation": "get"},
        {"key": "k/" * 600, "operation": "get"},
        {"key": 7, "operation": "get"},
        {"key": "k", "operation": "get", "expiresIn": -1},
        {"key": "k", "operation": "get", "expiresIn": "soon"},
        {"key": "k", "operation": "get", "expiresIn": 1e9},
        {"key": "k", "operation": "put", "sizeBytes": -1},
        ["key"],
    ],
)
def test_a_request_for_a_url_that_is_none_names_the_field(body: object, client: Client) -> None:
    answer = client.post(f"/v1/namespaces/{quote(client.ns, safe='')}/storages/files/presign", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "bad_request"
    assert not client.post(
        f"/v1/namespaces/{quote(client.ns, safe='')}/storages/files/presign", content=b"\xff"
    ).is_success


def test_another_namespace_storage_or_key_sees_nothing(url: str, client: Client) -> None:
    client.put("k")
    assert Client(url, ns="other").get("k").status_code == 404
    assert get(client.url("k", "get", storage="code")).status_code == 404
    assert client.get("K").status_code == 404
    assert client.get("a/../k").content == DATA  # the same key


def test_tokens_are_asked_for_a_url_and_not_for_what_it_opens(tmp_path: Path) -> None:
    with Dispatch(":memory:") as plane:
        tokens = Tokens(plane)
        mine, _ = tokens.create(ns="mine", role="worker")
        theirs, _ = tokens.create(ns="theirs", role="producer")
        with background(create_app(plane, Options(storage=str(tmp_path)))) as url:
            worker = Client(url, "mine", mine)
            assert worker.put("k").status_code == 200
            assert worker.get("k").content == DATA
            assert Client(url, "mine").presign("k", "get").status_code == 401
            assert Client(url, "mine", theirs).presign("k", "get").status_code == 404
            assert Client(url, "theirs", theirs).get("k").status_code == 404


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_url_dies_with_the_token_it_was_asked_for_with(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_tokens, "_TRUST_SECONDS", 0.0)
    with Dispatch(":memory:") as plane:
        tokens = Tokens(plane)
        text, kept = tokens.create(ns="default", role="producer", expires=30.0)
        other, _ = tokens.create(ns="default", role="producer")
        with background(create_app(plane, Options(storage=str(tmp_path)))) as url:
            client = Client(url, token=text)
            assert client.put("k", b"kept").status_code == 200
            read, write, part = client.url("k", "get"), client.url("k", "put"), client.url("parts", "put")
            assert client.part(part, 0, 99_999).status_code == 202
            if end == "revoked":
                tokens.revoke(kept.id)
            else:
                now = time.time()
                monkeypatch.setattr(store_tokens.time, "time", lambda: now + 40.0)
            for answer in (
                get(read),
                head(read),
                put(write, content=b"forged"),
                client.part(part, 100_000, len(DATA) - 1),
                client.ask(part),
            ):
                assert answer.status_code == 403
            assert "revoked or expired" in get(read).json()["error"]["message"]
            assert Client(url, token=other).get("k").content == b"kept"


def test_a_token_that_ends_while_a_file_is_sent_stores_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_tokens, "_TRUST_SECONDS", 0.0)
    with Dispatch(":memory:") as plane:
        tokens = Tokens(plane)
        text, kept = tokens.create(ns="default", role="producer")
        reader, _ = tokens.create(ns="default", role="producer")
        with background(create_app(plane, Options(storage=str(tmp_path)))) as url:

            def slowly() -> Iterator[bytes]:
                yield b"first"
                tokens.revoke(kept.id)
                yield b"rest"

            target = Client(url, token=text).url("k", "put")
            assert put(target, content=slowly()).status_code == 403
            assert Client(url, token=reader).get("k").status_code == 404


def test_a_url_is_good_for_an_hour_at_most(client: Client) -> None:
    for asked in (3600, 7200, 86400):
        answer = client.presign("k", "get", expiresIn=asked)
        assert time.time() + 3590 < answer.json()["expiresAt"] <= time.time() + 3600


def test_a_proxy_that_ends_tls_is_heard(client: Client) -> None:
    answer = client.post(
        f"/v1/namespaces/{quote(client.ns, safe='')}/storages/files/presign",
        json={"key": "k", "operation": "get"},
        headers={"X-Forwarded-Proto": "https", "Host": "localhost:9"},
    )
    assert answer.json()["url"].startswith("https://localhost:9/v1/files/")


def test_files_are_private_and_two_stores_share_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHORE_HOME", str(tmp_path))
    for n in range(2):
        with Dispatch(":memory:") as plane, background(create_app(plane, Options(auth=False))) as url:
            client = Client(url)
            assert client.get("k").status_code == 404
            client.put("k", bytes([n]))
            assert client.get("k").content == bytes([n])
    stores = list((tmp_path / "storage").iterdir())
    assert len(stores) == 2
    assert all(p.stat().st_mode & 0o077 == 0 for p in tmp_path.rglob("*") if p.is_file())


def test_a_storage_that_cannot_be_reached_says_how(tmp_path: Path) -> None:
    with Dispatch(":memory:") as plane:
        with background(create_app(plane, Options(auth=False, storage="nosuch://bucket"))) as url:
            answer = Client(url).presign("k", "get")
            assert answer.status_code == 503
            assert "nosuch" in answer.json()["error"]["message"]


# ---- the headers


@pytest.mark.parametrize("way", ["whole", "part"])
def test_a_full_storage_says_so(
    way: str, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    url = client.url("full", "put")
    monkeypatch.setattr(storages, "_write", full)
    answer = put(url, content=DATA) if way == "whole" else client.part(url, 0, 99)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert "Free space" in answer.json()["error"]["message"]
    assert not any(each.exc_info for each in caplog.records)
    monkeypatch.undo()
    assert put(url, content=DATA).status_code == 200


def test_headers_are_read() -> None:
    assert read_digest(None) is None
    assert read_digest(sha(b"x")) == hashlib.sha256(b"x").hexdigest()
    assert read_digest("sha-512=:AAAA:, " + sha(b"x")) == hashlib.sha256(b"x").hexdigest()
    assert read_content_range("bytes 0-9/10") == ((0, 9), 10)
    assert read_content_range("bytes */10") == (None, 10)
    assert read_range("bytes=3-") == (3, None)
    assert read_range("bytes=3-4") == (3, 4)
    for odd in ("bytes=4-3", "bytes=-5", "bytes=1-2,4-5", "lines=1-2", "", None):
        assert read_range(odd) is None
