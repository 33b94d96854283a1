"""Behind nginx, which cuts what is quiet for too long: waits, streams and uploads go through.

The long form (``LONG_TESTS=1``) has nginx's own 60 s: it takes about 9 minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lakeshore import Dispatch, HttpDispatch
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
LONG = os.environ.get("LONG_TESTS") == "1"
CUT_SECONDS = 60 if LONG else 1
ROUNDS = 3 if LONG else 2
PATIENCE = 20 + 3 * CUT_SECONDS
pytestmark = pytest.mark.timeout(900 if LONG else 300)
CONF = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    client_max_body_size 64m;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {url};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_read_timeout {cut}s;
        }}
    }}
}}
"""


@pytest.fixture
def through(tmp_path: Path):
    """Start servers behind nginx: ``through(keepalive=...)`` gives the store and a client."""
    if NGINX is None:
        pytest.skip("no nginx: install it to try what stands behind one")
    with contextlib.ExitStack() as opened:

        def start(**options: float) -> tuple[Dispatch, HttpDispatch]:
            plane = opened.enter_context(Dispatch(tmp_path / "d.sqlite"))
            url = opened.enter_context(background(create_app(plane, Options(auth=False, **options))))
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            conf = tmp_path / "nginx.conf"
            conf.write_text(CONF.format(folder=tmp_path, port=port, url=url, cut=CUT_SECONDS))
            process = subprocess.Popen([NGINX, "-c", str(conf), "-e", str(tmp_path / "error.log")])
            opened.callback(process.wait, 10)
            opened.callback(process.terminate)
            end = time.monotonic() + 10
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < end, (tmp_path / "error.log").read_text()
                    time.sleep(0.02)
            client = HttpDispatch(f"http://127.0.0.1:{port}", timeout=PATIENCE)
            opened.callback(client.close)
            return plane, client

        yield start


def test_a_quiet_stream_is_kept_alive_or_goes_on_from_its_cursor(through):
    for keepalive in (0.25 * CUT_SECONDS, 60.0 * CUT_SECONDS):  # within nginx's patience; past it, so it cuts
        plane, client = through(keepalive=keepalive)
        journal = f"t{keepalive:g}"

        def post(plane=plane, journal=journal) -> None:
            for n in range(ROUNDS):
                time.sleep(CUT_SECONDS + 0.4)
                plane.journal_append(journal, n, b"%d" % n, final=n == ROUNDS - 1)

        writer = threading.Thread(target=post)
        writer.start()
        assert list(client.journal_read(journal, timeout=PATIENCE)) == [(n, b"%d" % n) for n in range(ROUNDS)]
        writer.join()


def test_waits_longer_than_nginx_has_patience_for(through):
    plane, client = through(hold=30.0 * CUT_SECONDS)
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    timer = threading.Timer(CUT_SECONDS * 2.5, lambda: plane.ack("a", "w", result=b"r"))
    timer.start()
    assert client.result("a", timeout=PATIENCE) == b"r"
    timer.join()
    assert client.submit("gpu", b"x" * 30_000_000, id="large") == "large"
    assert client.envelope("large") == b"x" * 30_000_000
