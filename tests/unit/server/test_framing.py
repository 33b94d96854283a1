"""Requests that two servers in a row may read differently are refused, and end their connection."""

from __future__ import annotations

import re
from typing import Any

import pytest

HOST = b"Host: localhost\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/daemon/poll HTTP/1.1\r\n" + HOST
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LAST = b"0\r\n\r\n"
H2C = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


def statuses(served: Any, *parts: bytes) -> tuple[list[int], bool]:
    """Return the statuses that a line's bytes get, and whether it was closed then."""
    told = b""
    with served.line() as line:
        line.settimeout(0.5)
        try:
            for part in parts:
                line.sendall(part)
            while more := line.recv(65536):
                told += more
            closed = True
        except ConnectionError:
            closed = True
        except TimeoutError:
            closed = False
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", told)], closed


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n" + LAST,
        POST + CHUNKED + b"Content-Length: 4\r\n\r\n" + LAST,
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\naaaa",
        POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n\x80",
        POST + b"Content-Length: 1, 1\r\n\r\n\x80",
        POST + b"Content-Length: +4\r\n\r\naaaa",
        POST + b"Content-Length: 0x1\r\n\r\n\x80",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 18446744073709551617\r\n\r\n\x80",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n" + LAST,
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + LAST,
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + LAST,
        POST + b"Transfer-Encoding: identity\r\n" + CHUNKED + b"\r\n" + LAST,
        POST + CHUNKED + CHUNKED + b"\r\n" + LAST,
        POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + LAST,
        POST + b"Transfer-Encoding : chunked\r\n\r\n" + LAST,
        POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + LAST,
        POST + CHUNKED + b"\r\n1\na\n0\n\n",
        POST + CHUNKED + b"\r\n1\r\n\x80\n0\r\n\r\n",
        POST + CHUNKED + b"\r\n1;a\nb\r\n\x80\r\n" + LAST,
        POST + CHUNKED + b"\r\nFFFFFFFFFFFFFFFFF\r\n",
        POST + H2C + b"Content-Length: %d\r\n\r\n" % len(NEXT),  # its body is the request that follows
        GET + H2C + b"\r\n",
        GET + H2C.replace(b"h2c", b"websocket") + b"\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        GET.replace(b"1.1", b"2.0") + b"\r\n",
        b"GET /healthz\r\n" + HOST + b"\r\n",
        b"GET /healthz#x HTTP/1.1\r\n" + HOST + b"\r\n",
        GET + HOST + b"\r\n",
        b"GET http://localhost/healthz HTTP/1.1\r\n" + 2 * HOST + b"\r\n",
        GET + b"X: a\r\n b\r\n\r\n",
        GET + b"X: a\0b\r\n\r\n",
        GET + b"X: a\rb\r\n\r\n",
        GET + b"X : 4\r\n\r\n",
        GET + b": x\r\n\r\n",
        GET + b"\n",
        GET.replace(b"\r", b"") + b"\n",
    ],
)
def test_what_may_be_read_in_two_ways_is_refused_and_nothing_after_it_is_served(
    shared: Any, sent: bytes
) -> None:
    assert statuses(shared, sent + NEXT) == ([400], True)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_body_behind_an_upgrade_is_no_request(shared: Any, parts: int) -> None:
    head = POST + H2C + b"Content-Length: %d\r\n\r\n" % len(NEXT)
    sent = [head + NEXT] if parts == 1 else [head, NEXT]
    assert statuses(shared, *sent) == ([400], True)


def test_a_refusal_says_why(shared: Any) -> None:
    with shared.line() as line:
        line.sendall(GET + H2C + b"\r\n")
        told = b""
        while more := line.recv(4096):
            told += more
    assert b"connection: close" in told.lower()
    assert b"Send the request without" in told


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"Content-Length: 4\r\n\r\naaaa",
        GET + b"Transfer-Encoding: Chunked\r\n\r\n4;ext=1\r\naaaa\r\n0\r\nTrailer: x\r\n\r\n",
        GET + b"Upgrade: h2c\r\n\r\n",  # a word, not asked of this connection
        b"\r\n" + GET + b"\r\n",
        b"GET http://localhost/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
def test_what_is_plain_is_served_and_so_is_the_next(shared: Any, sent: bytes) -> None:
    last = NEXT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert statuses(shared, sent + last) == ([200, 200], True)
