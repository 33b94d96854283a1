"""Base URLs, the token that nothing shows, proxies, certificates, and the default plane."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import shutil
import socket
import ssl
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.planes_http.field import Field
from unit.planes_http.loopback import TOKEN, drop, status, stream
from unit.planes_http.ours import Ours

from lakeshore import (
    Dispatch,
    DispatchError,
    HttpDispatch,
    InvocationFailed,
    LakeshoreError,
    PlaneUnavailable,
    settings,
)
from lakeshore.planes.default import open_plane
from lakeshore.planes.http_address import Address, Secret, stored_token, token_file

Connect = Callable[..., HttpDispatch]


@pytest.mark.parametrize(
    ("given", "url", "loopback"),
    [
        ("https://cp.example.com", "https://cp.example.com", False),
        ("https://CP.example.com:8443/lake/shore/", "https://cp.example.com:8443/lake/shore", False),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", True),
        ("http://127.9.9.9", "http://127.9.9.9", True),
        ("http://localhost:1", "http://localhost:1", True),
        ("http://lab.localhost", "http://lab.localhost", True),
        ("http://[::1]:8080", "http://[::1]:8080", True),
        ("http://[::ffff:127.0.0.1]", "http://[::ffff:127.0.0.1]", True),
        (" http://127.0.0.1:8080/\n", "http://127.0.0.1:8080", True),
        ("https://cp.example.com.", "https://cp.example.com.", False),
        ("https://10.0.0.1/a%20b", "https://10.0.0.1/a%20b", False),
    ],
)
def test_base_urls(given: str, url: str, loopback: bool) -> None:
    address = Address.read(given)
    assert (address.url, address.loopback) == (url, loopback)


@pytest.mark.parametrize(
    "url",
    [
        "", "cp.example.com", "ftp://x", "http://", "https:///path", "https://x?a=1", "https://x#f", "https://x?",
        "https://x:99999", "https://x:0", "https://[::1", "https://x y", "https://x/\n/", "https://x/a%zz",
        "https://x/../y", "https://x/%2e%2E/y", "https://exämple.com", "https://x/{ns}", None, 7, b"https://x",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: Any) -> None:
    with pytest.raises(DispatchError, match="base_url") as caught:
        HttpDispatch(url)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("url", [f"https://user:{TOKEN}@cp.example.com", f"http://{TOKEN}@127.0.0.1"])
def test_a_password_in_the_url_is_refused_unseen(url: str) -> None:
    with pytest.raises(DispatchError, match="pass token=") as caught:
        HttpDispatch(url)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["http://cp.example.com", "http://10.0.0.1:8080", "http://[2001:db8::1]"])
def test_plain_http_to_another_machine(url: str) -> None:
    with pytest.raises(DispatchError, match=r"(?s)would show the token.*insecure=True"):
        HttpDispatch(url, token=TOKEN)
    HttpDispatch(url, token=TOKEN, insecure=True).close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a\x00"}, "control character"),
        ({"namespace": ".."}, "cannot be part of a URL"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"token": b"x"}, "token: wants a str"),
        ({"token": "a b"}, "token: holds a character"),
        ({"token": "a\r\nX-Evil: 1"}, "token: holds a character"),
        ({"token": "é"}, "token: holds a character"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        HttpDispatch("https://cp.example.com", **options)
    assert "X-Evil" not in str(caught.value)


def test_a_prefix_stays_before_every_path(field: Field, connect: Connect) -> None:
    field.script["submit"] = [status(400)]
    with pytest.raises(DispatchError):
        connect(field.url + "/lake/shore/").submit("gpu", b"e", id="a")
    assert field.seen[0].path == "/lake/shore/v1/namespaces/default/producer/submit"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_loopback(connect: Connect) -> None:
    try:
        server = Ours(host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server:
        plane = connect(server)
        assert plane.submit("gpu", b"e", id="a") == "a"
        assert plane.count("gpu") == 1


# -- the token ----------------------------------------------------------------


def everything_of(error: BaseException) -> Iterator[str]:
    """Yield every text that an error and its chain carry, attributes of attributes included."""
    seen: set[int] = set()
    stack: list[object] = [error]
    while stack:
        each = stack.pop()
        if id(each) in seen or len(seen) > 2000:
            continue
        seen.add(id(each))
        yield f"{each!r} {each!s}"
        if isinstance(each, BaseException):
            stack += [each.__cause__, each.__context__, *each.args, *vars(each).values()]
            yield "".join(traceback.format_exception(each))


ECHOES = {
    "body": status(400, f"authorization: Bearer {TOKEN}".encode()),
    "json": status(409, b'{"error": {"code": "dispatch", "message": "you sent %s"}}' % TOKEN.encode()),
    "late in a long body": status(500, b"x" * 280 + TOKEN.encode() + b"y" * 100),
    "page": status(200, f"<p>{TOKEN}</p>".encode(), content_type="text/html"),
    "content type": status(200, b"hi", content_type=f"text/{TOKEN}"),
    "redirect": status(302, location=f"https://elsewhere.example/{TOKEN}?t={TOKEN}"),
    "code": status(400, b'{"error": {"code": "%s", "message": ""}}' % TOKEN.encode()),
    "header": status(400, b"no", x_echo=f"Bearer {TOKEN}"),
    "garbage": status(200, b"\xc1" + TOKEN.encode()),
    "field": status(200, b"\x81\xa5state\xae" + TOKEN.encode()),
    "413": status(413, b'{"error": {"message": "%s"}}' % TOKEN.encode()),
    "401": status(401, TOKEN.encode(), www_authenticate=f"Bearer {TOKEN}"),
    "shouted": status(400, TOKEN.upper().encode()),
    "dropped": drop,
}


@pytest.mark.parametrize("echo", ECHOES)
def test_an_echoed_token_is_nowhere(
    field: Field, connect: Connect, caplog: pytest.LogCaptureFixture, echo: str
) -> None:
    caplog.set_level(logging.DEBUG)
    plane = connect(field, timeout=0.2)
    for name in ("submit", "await", "stream", "poll", "ack"):
        field.script[name] = [ECHOES[echo]] * 20
    errors: list[BaseException] = []
    for call in (
        lambda: plane.submit("gpu", b"e", id="a"),
        lambda: plane.get("a"),
        lambda: plane.result("a", timeout=0.3),
        lambda: list(plane.journal_read("a", timeout=0.3)),
        lambda: plane.claim("gpu", "w"),
        lambda: plane.count("gpu"),
    ):
        try:
            call()
        except LakeshoreError as exc:
            errors.append(exc)
    assert len(errors) == 6 or echo == "field"  # which some answers do not want
    assert not [text for each in errors for text in everything_of(each) if TOKEN.lower() in text.lower()]
    assert "httpcore" in caplog.text or echo == "dropped"
    assert TOKEN.lower() not in caplog.text.lower()


def test_a_failed_job_that_tells_of_the_token(field: Field, connect: Connect) -> None:
    field.rows["a"] = {"state": "failed", "error": {"type": "E", "message": TOKEN, "traceback": TOKEN}}
    with pytest.raises(InvocationFailed) as caught:
        connect(field).result("a")
    assert not [text for text in everything_of(caught.value) if TOKEN in text]


def test_no_view_of_the_plane_shows_it(field: Field, connect: Connect) -> None:
    plane = connect(field)
    assert repr(plane) == f"HttpDispatch({field.url!r}, namespace='default')"
    shown: list[object] = [plane]
    for _ in range(3):
        shown += [value for each in shown for value in getattr(each, "__dict__", {}).values()]
    assert not [each for each in shown if TOKEN in repr(each)]
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make an HttpDispatch"):
            copied(plane)


def test_a_short_token_is_hidden_too(field: Field, connect: Connect) -> None:
    field.script["submit"] = [status(400, b"you sent q7")]
    with pytest.raises(DispatchError) as caught:
        connect(field, token="q7").submit("gpu", b"e", id="a")
    assert "you sent ***" in str(caught.value)


def test_a_server_s_advice_is_not_taken_for_a_token() -> None:
    advice = "Send it as Authorization: Bearer TOKEN (token=), or Bearer TOKEN."
    assert Secret("tok-SECRET").scrub(advice) == advice
    assert (
        Secret(None).scrub("bearer TOKENabc, Bearer token, Bearer TOKEN-1")
        == "bearer ***, Bearer ***, Bearer ***"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("https://a..b", "1 to 63 letters"),
        (f"https://{'a' * 64}.example", "1 to 63 letters"),
        (f"https://{'a.' * 130}example", "1 to 63 letters"),
        ("127.0.0.1:8080", "loopback: http://127.0.0.1:8080 (--url, LAKESHORE_URL)"),
        ("cp.example.com/lake", "loopback: https://cp.example.com/lake (--url"),
        ('"https://cp.example.com"', "loopback: https://cp.example.com (--url"),
    ],
)
def test_an_address_is_refused_with_the_one_that_was_meant(url: str, said: str) -> None:
    with pytest.raises(DispatchError) as caught:
        HttpDispatch(url)
    assert said in str(caught.value)


def test_the_token_of_the_environment_goes_where_it_is_meant_to(
    field: Field, home: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(**options: Any) -> str | None:
        connect(field, **{"token": None, **options}).submit("gpu", b"e", id="a")
        return field.seen[-1].headers.get("authorization")

    assert sent() is None
    monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", TOKEN)
    assert sent() == f"Bearer {TOKEN}"
    for url in (field.url, f"{field.url}/other/", f" {field.url.upper()}\n"):
        monkeypatch.setenv("LAKESHORE_URL", url)
        assert sent() == f"Bearer {TOKEN}"
    assert sent(token="given") == "Bearer given"
    assert sent(token="") is None
    elsewhere = (
        "https://cp.example.com",
        field.url.replace("http:", "https:"),
        "http://127.0.0.1:1",
        "nonsense",
    )
    for url in (*elsewhere, "http://[::1", "postgresql://u@h/db"):
        monkeypatch.setenv("LAKESHORE_URL", url)
        assert sent() is None
    write_token(home, field.url)
    assert sent() == "Bearer stored-token"
    monkeypatch.setenv("LAKESHORE_URL", field.url)
    assert sent() == f"Bearer {TOKEN}"


def test_no_token_no_header(field: Field, connect: Connect) -> None:
    for token in (None, "", "  "):
        connect(field, token=token).submit("gpu", b"e", id="a")
    connect(field, token=f" {TOKEN}\n").submit("gpu", b"e", id="a")
    sent = [request.headers.get("authorization") for request in field.seen]
    assert sent == [None, None, None, f"Bearer {TOKEN}"]


def test_a_short_token_garbles_no_words() -> None:
    secret = Secret("t")
    assert secret.scrub("CERTIFICATE_VERIFY_FAILED at the host") == "CERTIFICATE_VERIFY_FAILED at the host"
    assert secret.scrub("token=t, Bearer t, 't'") == "token=***, Bearer ***, '***'"
    assert Secret("long-token").scrub("xlong-tokenx") == "x***x"


# -- proxies and certificates -------------------------------------------------


def test_no_proxy_for_loopback(ours: Ours, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert connect(ours).submit("gpu", b"e", id="a") == "a"


def test_the_proxy_of_the_environment_elsewhere(
    field: Field, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", field.url)
    plane = connect("http://cp.example.com", insecure=True, timeout=1)
    field.script["submit"] = [lambda request: request.send({"invocation_id": "a"})]
    assert plane.submit("gpu", b"e", id="a") == "a"
    assert field.seen[0].target == "http://cp.example.com/v1/namespaces/default/producer/submit"


@pytest.mark.parametrize("proxy", [f"socks9://u:{TOKEN}@x", f"http://u:{TOKEN}@[::1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(PlaneUnavailable, match="HTTPS_PROXY") as caught:
        HttpDispatch("https://cp.example.com")
    assert not [text for text in everything_of(caught.value) if TOKEN in text]


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate for loopback that no bundle knows, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    pem = tmp_path / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        + ["-keyout", str(pem), "-out", str(tmp_path / "cert.pem"), "-days", "2", "-subj", "/CN=lakeshore"]
        + ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        check=True,
        capture_output=True,
    )
    pem.write_text((tmp_path / "cert.pem").read_text() + pem.read_text())
    return pem


def test_an_authority_of_one_s_own(
    ours: Ours, connect: Connect, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    ours.server.socket = context.wrap_socket(ours.server.socket, server_side=True)
    url = ours.url.replace("http://", "https://")
    with pytest.raises(PlaneUnavailable, match="Set SSL_CERT_FILE"):
        connect(url, timeout=20, token="E").submit("gpu", b"e", id="a")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.with_name("cert.pem")))
    plane = connect(url)
    assert plane.submit("gpu", b"e", id="a") == "a"
    assert plane.count("gpu") == 1
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(PlaneUnavailable, match="SSL_CERT_FILE"):
        connect(url)


# -- the default plane --------------------------------------------------------


def write_token(home: Path, url: str, mode: int = 0o600) -> Path:
    path = token_file(home, url)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("stored-token\n")
    path.chmod(mode)
    return path


def test_the_default_plane_is_the_one_at_the_url(
    field: Field, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESHORE_URL", field.url + "/")
    monkeypatch.setenv("LAKESHORE_NAMESPACE", "lab")
    write_token(home, field.url)
    sent = []
    for token in (None, TOKEN):
        if token:
            monkeypatch.setenv("LAKESHORE_CLIENT_TOKEN", token)
        plane = open_plane(settings.read())
        assert isinstance(plane, HttpDispatch)
        assert plane.namespace == "lab"
        plane.submit("gpu", b"e", id="a")
        plane.close()
        sent.append(field.seen[-1].headers["authorization"])
    assert sent == ["Bearer stored-token", f"Bearer {TOKEN}"]


def test_without_a_url_it_is_the_file(home: Path) -> None:
    plane = open_plane(settings.read())
    assert isinstance(plane, Dispatch)
    plane.close()


def test_token_files(home: Path) -> None:
    url = "https://cp.example.com"
    assert stored_token(home, url) is None
    path = write_token(home, url)
    assert stored_token(home, url + "/") == "stored-token"
    assert stored_token(home, "https://cp.example.com:444") is None
    path.chmod(0o640)
    with pytest.raises(DispatchError, match="chmod 600"):
        stored_token(home, url)
    path.unlink()
    path.symlink_to(home / "elsewhere")
    with pytest.raises(DispatchError, match="cannot be read"):
        stored_token(home, url)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(DispatchError, match="chmod 600"):
        stored_token(home, url)
    path.unlink()
    path.write_bytes(b"\xff" * 10)
    path.chmod(0o600)
    with pytest.raises(DispatchError, match="holds no token"):
        stored_token(home, url)


def test_a_stream_s_garbage_does_not_tell(field: Field, connect: Connect) -> None:
    field.script["stream"] = [stream(f"<p>{TOKEN}".encode())]
    with pytest.raises(PlaneUnavailable) as caught:
        list(connect(field).journal_read("a", timeout=1))
    assert not [text for text in everything_of(caught.value) if TOKEN in text]
