"""Long polls and streams: woken by what happens, given up with the client, answered before a stop."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgpack
import pytest

from lakeshore import Dispatch, HttpDispatch, wire
from lakeshore.planes.protocol import FINISHED, FRAMES, MSGPACK, ROWS

NS = "/v1/namespaces/default"


def until(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def later(seconds: float, call) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


@pytest.fixture
def behind(served):
    """The same store, opened as another process would."""
    with Dispatch(served.plane.path) as plane:
        yield plane


def wait_for(served, id: str = "a", seconds: float = 20.0):
    began = time.monotonic()
    told = served.post(f"{NS}/producer/await", {"invocation_id": id, "timeout_s": seconds}).told
    return told, time.monotonic() - began


@pytest.mark.parametrize("by", ["this server", "another process"])
def test_an_await_ends_with_the_job(served, behind, by):
    plane = served.plane if by == "this server" else behind
    plane.submit("gpu", b"e", id="a")
    plane.claim("gpu", "w")
    timer = later(0.3, lambda: plane.ack("a", "w", result=b"r"))
    told, took = wait_for(served)
    timer.join()
    assert told == {"state": "succeeded", "result_blob": b"r"}
    assert 0.25 < took < 0.9


@pytest.mark.parametrize("by", ["this server", "another process"])
def test_a_poll_ends_with_a_job(served, behind, by):
    plane = served.plane if by == "this server" else behind
    timer = later(0.3, lambda: plane.submit("gpu", b"e", id="a"))
    began = time.monotonic()
    assert [job["invocation_id"] for job in served.poll(timeout_s=20)] == ["a"]
    assert time.monotonic() - began < 0.9
    timer.join()


def test_a_poll_sees_what_becomes_due_and_what_lapses(served):
    served.plane.submit("gpu", b"e", id="delayed", delay=0.5)
    served.plane.submit("gpu", b"e", id="lapsing")
    served.plane.claim("gpu", "dead", lease=1.2)
    began = time.monotonic()
    assert [job["invocation_id"] for job in served.poll(timeout_s=20)] == ["delayed"]
    assert 0.3 < time.monotonic() - began < 1.1
    assert [job["invocation_id"] for job in served.poll(timeout_s=20)] == ["lapsing"]
    assert time.monotonic() - began < 2.6


def test_many_pollers_get_a_job_each(served):
    got: list[str] = []

    def poll(n: int) -> None:
        with httpx.Client(base_url=served.url, timeout=30) as http:
            body = {"worker_id": f"w{n}", "timeout_s": 20, "queue": "gpu"}
            answer = http.post("/v1/daemon/poll", content=msgpack.packb(body))
            got.extend(each["body"]["invocation_id"] for each in msgpack.unpackb(answer.content)["commands"])

    threads = [threading.Thread(target=poll, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: served.app.serving.hearing.waiting == 20)
    began = time.monotonic()
    for n in range(20):
        served.submit(f"job-{n}")
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"job-{n}" for n in range(20))
    assert time.monotonic() - began < 5


def test_a_poll_whose_client_has_gone_takes_no_job(served):
    for n in range(5):
        with served.line() as line:
            poll = {"worker_id": "gone", "timeout_s": 25, "queue": f"q{n}"}
            line.sendall(served.raw("POST", "/v1/daemon/poll", msgpack.packb(poll)))
            until(lambda: served.app.serving.hearing.waiting == 1)
        until(lambda: served.app.serving.hearing.waiting == 0)
        served.plane.submit(f"q{n}", b"e", id=f"job-{n}")
        assert served.submit("after").status_code == 200
        assert served.plane.get(f"job-{n}")["attempt"] == 0


def test_a_hold_is_no_longer_than_asked(serve):
    served = serve(hold=0.3)
    served.plane.submit("gpu", b"e", id="a")
    told, took = wait_for(served, seconds=3600)
    assert told == {"state": "pending"}
    assert 0.25 < took < 1.5
    began = time.monotonic()
    assert served.poll(queue="empty", timeout_s=3600) == []
    assert 0.25 < time.monotonic() - began < 1.5


def read(served, since=-1, accept=ROWS, id="a", query="", **headers):
    return served.get(
        f"{NS}/producer/invocations/{id}/result/stream?since={since}{query}", accept=accept, **headers
    )


def test_rows_are_verbatim_and_end_with_the_journal(served):
    frames = [b"not a frame", wire.Frame(0, 7, "x").to_bytes(), b""]
    for data in frames:
        served.plane.journal_append("a", None, data)
    served.plane.journal_append("a", None, b"last", final=True)
    answer = read(served)
    assert answer.headers["content-type"] == ROWS
    assert answer.headers[FINISHED] == "1"
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(answer.content)
    assert list(unpacker) == [[n, data] for n, data in enumerate([*frames, b"last"])]
    unpacker.feed(read(served, since=1).content)
    assert [seq for seq, _ in unpacker] == [2, 3]


def test_plain_frames_carry_the_row_s_seq_and_no_boundaries(served):
    served.plane.submit("gpu", b"e", id="a")
    for attempt in (1, 2):
        served.plane.claim("gpu", "w")
        served.plane.journal_append("a", None, wire.Frame(0, 0, f"of {attempt}").to_bytes())
        if attempt == 1:
            served.plane.nack("a", "w", error="E")
    served.plane.journal_append("a", None, b"\x01raw", final=True)
    answer = read(served, since=0, accept="*/*")
    assert answer.headers["content-type"] == FRAMES
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(answer.content)
    assert list(unpacker) == [[0, 2, "of 2", None], [0, 3, b"\x01raw", None]]


def test_a_quiet_stream_of_rows_is_kept_alive_and_one_of_frames_is_not_touched(serve):
    served = serve(keepalive=0.1)
    threading.Timer(0.75, lambda: served.plane.journal_append("a", 0, b"x", final=True)).start()
    quiet = read(served).content
    assert quiet.endswith(msgpack.packb([0, b"x"]))
    assert 4 <= quiet.count(b"\xc0") <= 8
    threading.Timer(0.3, lambda: served.plane.journal_append("b", 0, wire.end_frame(0), final=True)).start()
    assert read(served, id="b", accept=FRAMES).content == wire.end_frame(0)


def test_a_stream_ends_with_its_row_even_without_a_frame(served, behind):
    behind.submit("gpu", b"e", id="a")
    behind.claim("gpu", "w")
    later(0.2, lambda: behind.ack("a", "w"))
    began = time.monotonic()
    assert read(served).content == b""
    assert time.monotonic() - began < 1.2


def test_more_streams_than_a_token_may_have_are_429(serve):
    served = serve(streams=3)
    with httpx.Client(base_url=served.url) as http:
        path = f"{NS}/producer/invocations/t/result/stream?since=-1"
        opened = [
            http.send(http.build_request("GET", path, headers={"accept": ROWS}), stream=True)
            for _ in range(3)
        ]
        answer = read(served)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        for each in opened:
            each.close()
        until(lambda: served.app.serving.streams == 0)
    assert read(served, query="&wait=0").status_code == 200


def test_500_streams_and_500_polls_are_open_at_once(served):
    before = threading.active_count()
    with contextlib.ExitStack() as lines:
        streams = []
        for n in range(500):
            streams.append(lines.enter_context(served.line()))
            path = f"{NS}/producer/invocations/t{n % 50}/result/stream?since=-1"
            streams[-1].sendall(served.raw("GET", path, accept=ROWS))
            poll = {"worker_id": f"w{n}", "timeout_s": 25, "queue": f"q{n % 50}"}
            lines.enter_context(served.line()).sendall(
                served.raw("POST", "/v1/daemon/poll", msgpack.packb(poll))
            )
        until(lambda: served.app.serving.hearing.waiting == 1000, 30)
        assert threading.active_count() < before + 15  # the pools of the server, no thread a wait
        began = time.monotonic()
        assert served.submit("a").status_code == 200
        with contextlib.closing(HttpDispatch(served.url)) as plane:
            for n in range(50):
                plane.journal_append(f"t{n}", 0, b"x", final=True)
        for line in streams:
            data = b""
            while b"0\r\n\r\n" not in data:
                data += line.recv(4096)
        assert time.monotonic() - began < 10


def test_a_stop_answers_polls_and_breaks_streams_off(tmp_path):
    from lakeshore.server import Options, create_app
    from lakeshore.server.run import background

    with Dispatch(tmp_path / "d.sqlite") as plane:
        plane.submit("gpu", b"e", id="a")
        plane.claim("gpu", "w")
        told: dict[str, object] = {}

        def ask(name: str, method: str, path: str, body: object, accept: str) -> None:
            try:
                content = None if body is None else msgpack.packb(body)
                answer = httpx.request(
                    method, url + path, content=content, headers={"accept": accept}, timeout=30
                )
                told[name] = msgpack.unpackb(answer.content)
            except httpx.RemoteProtocolError:
                told[name] = "cut"

        app = create_app(plane, Options(auth=False))
        with background(app) as url:
            asked = [
                (
                    "poll",
                    "POST",
                    "/v1/daemon/poll",
                    {"worker_id": "w", "queue": "x", "timeout_s": 25},
                    MSGPACK,
                ),
                ("await", "POST", f"{NS}/producer/await", {"invocation_id": "a", "timeout_s": 25}, MSGPACK),
                ("rows", "GET", f"{NS}/producer/invocations/a/result/stream?since=-1", None, ROWS),
                ("frames", "GET", f"{NS}/producer/invocations/a/result/stream?since=-1", None, FRAMES),
            ]
            threads = [threading.Thread(target=ask, args=each) for each in asked]
            for thread in threads:
                thread.start()
            until(lambda: app.serving.hearing.waiting == 4)
            began = time.monotonic()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 3
    assert told == {"poll": {"commands": []}, "await": {"state": "running"}, "rows": "cut", "frames": "cut"}


def test_two_servers_of_one_file_hear_of_each_other(serve):
    one, two = serve(), serve()
    one.submit("a")
    with ThreadPoolExecutor(1) as pool:
        body = {"invocation_id": "a", "timeout_s": 10}
        waiting = pool.submit(one.post, "/v1/namespaces/default/producer/await", body)
        (job,) = two.poll()
        ack = {"invocation_id": "a", "state": "succeeded", "result_blob": b"r", "worker_id": "w"}
        began = time.monotonic()
        assert two.post("/v1/daemon/ack", {**ack, "fence": job["fence"]}).status_code == 200
        assert waiting.result(10).told["result_blob"] == b"r"
        assert time.monotonic() - began < 5
