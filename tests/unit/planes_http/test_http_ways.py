"""Proxies, certificates and the wrong kind of port: found at once, and named by what has to be changed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from unit.planes_http.field import Field

from lakeshore import HttpDispatch, PlaneUnavailable
from lakeshore.planes.http_line import _hint
from lakeshore.planes.http_ways import WayError, certificates, proxy_of

Connect = Callable[..., HttpDispatch]


@pytest.mark.parametrize(
    ("entries", "url", "direct"),
    [
        ("*", "https://cp.example", True),
        ("cp.example", "https://cp.example", True),
        ("example", "https://cp.example", True),
        (" x , .example", "https://cp.example", True),
        ("cp.example:8080", "https://cp.example:8080", True),
        ("cp.example:8080", "https://cp.example", False),
        ("cp.examp", "https://cp.example", False),
        ("[::1],fe80::/10,[::1]:80,10.0.0.0/8", "https://cp.example", False),
        ("10.0.0.0/8", "https://10.1.2.3:8443", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("fd00::/8", "https://[fd00::1]:8443", True),
        ("[fd00::1]", "https://[fd00::1]", True),
        ("fd00::1", "https://[fd00::1]:1", True),
        ("[fd00::1]:80", "https://[fd00::2]:80", False),
        ("", "https://cp.example", False),
    ],
)
def test_no_proxy_takes_names_addresses_and_networks(
    entries: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", entries)
    assert proxy_of(url) == (None if direct else "http://proxy.example:3128")
    HttpDispatch(url).close()


def test_the_scheme_s_own_proxy_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of("https://cp.example") is None
    monkeypatch.setenv("all_proxy", "http://a:1")
    monkeypatch.setenv("https_proxy", "http://s:2")
    assert proxy_of("https://cp.example") == "http://s:2"
    assert proxy_of("http://cp.example") == "http://a:1"
    monkeypatch.setenv("https_proxy", " ")
    assert proxy_of("https://cp.example") is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("https_proxy", "socks4://s3cret@127.0.0.1:1", "HTTPS_PROXY is no address"),
        ("all_proxy", "http://u:s3cret@[::1", "ALL_PROXY is no address"),
        ("https_proxy", "socks5://s3cret@127.0.0.1:1", r"pip install 'httpx\[socks\]'"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    try:
        import socksio  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        if value.startswith("socks5"):
            pytest.skip("socks is installed")
    with pytest.raises(PlaneUnavailable, match=said) as caught:
        HttpDispatch("https://cp.example")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "empty", "folder", "text"])
@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_a_file_of_authorities_that_is_none_is_named(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.pem"
    if kind == "folder":
        path.mkdir()
        if name != "SSL_CERT_FILE":
            pytest.skip("it may be a folder")
    elif kind != "missing":
        path.write_text("hello" if kind == "text" else "")
    monkeypatch.setenv(name, str(path))
    with pytest.raises(WayError, match=f"{name}='.*ca.pem': no file of certificates"):
        certificates()
    with pytest.raises(PlaneUnavailable, match=name):
        HttpDispatch("https://cp.example")


def test_other_tools_authorities_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import certifi

    for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):  # each over the one before
        monkeypatch.setenv(name, certifi.where())
        assert certificates().cert_store_stats()["x509_ca"] > 0
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    assert certificates().cert_store_stats()["x509_ca"] == 0


@pytest.fixture
def alerting() -> Iterator[str]:
    """A TLS server, as one that is spoken to in plain HTTP answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_port_that_speaks_the_other_kind_is_told_at_once(
    field: Field, alerting: str, connect: Connect
) -> None:
    began = time.monotonic()
    with pytest.raises(PlaneUnavailable, match="plain HTTP there: write http://"):
        connect(field.url.replace("http:", "https:"), timeout=20).submit("gpu", b"e", id="a")
    with pytest.raises(PlaneUnavailable, match="where it is TLS, write https://"):
        connect(alerting, timeout=20).submit("gpu", b"e", id="a")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("self-signed certificate", "Set SSL_CERT_FILE"),
        ("unable to get local issuer certificate", "Set SSL_CERT_FILE"),
        ("certificate has expired", "renewed"),
        ("certificate is not yet valid", "clock"),
        ("Hostname mismatch, certificate is not valid for 'localhost'.", "another host"),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'.", "another host"),
    ],
)
def test_what_mends_a_certificate_depends_on_its_fault(why: str, hint: str) -> None:
    told = str(ssl.SSLCertVerificationError(1, f"[SSL: CERTIFICATE_VERIFY_FAILED] {why} (_ssl.c:1006)"))
    assert hint in _hint(told)
    assert ("SSL_CERT_FILE" in _hint(told)) == (hint == "Set SSL_CERT_FILE")
