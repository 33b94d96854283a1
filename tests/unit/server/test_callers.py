"""Who may do what, where: tokens, roles, namespaces, and pages of other sites."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx
import pytest

from lakeshore.planes import protocol

NS = "/v1/namespaces/default"
# method, path, body, roles that may
ROUTES = [
    ("POST", f"{NS}/producer/submit", {"invocation_id": "s", "queue": "q", "args_blob": b""}, "producer"),
    ("POST", f"{NS}/producer/submit-many", {"queue": "q", "items": []}, "producer"),
    ("POST", f"{NS}/producer/await", {"invocation_id": "x", "timeout_s": 0}, "producer worker"),
    ("GET", f"{NS}/producer/invocations/x/result/stream?since=-1&wait=0", None, "producer worker"),
    ("GET", f"{NS}/invocations", None, "producer worker"),
    ("GET", f"{NS}/queues", None, "producer worker"),
    ("GET", f"{NS}/queues/q/count", None, "producer worker"),
    ("GET", f"{NS}/workers", None, "producer worker"),
    ("POST", f"{NS}/invocations/x/cancel", {}, "producer"),
    ("POST", f"{NS}/invocations/x/requeue", {}, "producer"),
    ("POST", f"{NS}/journals/x/trim", {}, "producer"),
    ("POST", f"{NS}/prune", {"older_than": 1}, "producer worker"),
    ("POST", "/v1/daemon/poll", {"worker_id": "w", "queue": "q"}, "worker"),
    ("POST", "/v1/daemon/result-chunk", {"invocation_id": "topic", "bytes": b"x"}, "producer worker"),
    ("GET", "/metrics", None, ""),
]


@pytest.mark.parametrize("role", ["producer", "worker", "admin"])
def test_each_role_may_what_it_may_and_nothing_else(guarded, role):
    token = guarded.token(role)
    for method, path, body, roles in ROUTES:
        answer = guarded.ask(method, path, body, token=token)
        wanted = 200 if role == "admin" or role in roles.split() else 403
        assert answer.status_code == wanted, (role, path, answer.text)
        if wanted == 403:
            assert "worker" in answer.told["error"]["message"] or "admin" in answer.told["error"]["message"]


@pytest.mark.parametrize(("method", "path", "body", "roles"), ROUTES)
def test_no_route_answers_without_a_token(shared_guarded, method, path, body, roles):
    for header in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic eA=="}):
        answer = shared_guarded.ask(method, path, body, **header)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "nonsense" not in answer.text
    for query in ("token", "access_token"):
        token = shared_guarded.token("admin")
        joint = "&" if "?" in path else "?"
        assert shared_guarded.ask(method, f"{path}{joint}{query}={token}", body).status_code == 401


def test_what_says_nothing_of_jobs_wants_no_token(shared_guarded):
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert shared_guarded.get(path).status_code == 200


@pytest.mark.parametrize(("method", "path", "body", "roles"), [r for r in ROUTES if NS in r[1]])
def test_another_namespace_is_nothing(shared_guarded, method, path, body, roles):
    mine = shared_guarded.token("producer", ns="mine")
    answer = shared_guarded.ask(method, path, body, token=mine)
    assert (answer.status_code, answer.told["error"]["code"]) == (404, "not_found")
    there = shared_guarded.get("/v1/namespaces/no-such/queues", token=mine)
    assert there.told == shared_guarded.get("/v1/namespaces/default/queues", token=mine).told


def test_a_worker_gets_the_jobs_of_its_token_s_namespace(guarded):
    producer, worker = guarded.token("producer", ns="mine"), guarded.token("worker", ns="mine")
    assert guarded.submit("a", ns="mine", token=producer).status_code == 200
    assert guarded.submit("b", token=guarded.token("admin")).status_code == 200
    assert [job["invocation_id"] for job in guarded.poll(token=worker, capacity=9)] == ["a"]
    elsewhere = guarded.post(
        "/v1/daemon/poll", {"worker_id": "w", "queue": "gpu", "namespace": "default"}, token=worker
    )
    assert elsewhere.status_code == 404


def test_the_same_id_in_two_namespaces_is_two_jobs(guarded):
    admin = guarded.token("admin")
    for ns in ("one", "two"):
        assert guarded.submit("same", ns=ns, token=admin).told == {"invocation_id": "same"}
        assert guarded.get(f"/v1/namespaces/{ns}/queues", token=admin).told["queues"] == {
            "gpu": {"queued": 1}
        }
    assert guarded.get("/v1/namespaces/default/queues", token=admin).told["queues"] == {}


@pytest.mark.parametrize("verb", ["ack", "result-chunk", "heartbeat", "release"])
def test_a_worker_reports_only_for_claims_of_its_token(guarded, verb):
    guarded.submit(token=guarded.token("producer"))
    mine, theirs = guarded.token("worker"), guarded.token("worker")
    (job,) = guarded.poll("w", token=mine, lease=30.0)
    body = {"invocation_id": "a", "state": "succeeded", "bytes": b"f", "seq": None, "lease": 30.0}
    for claim in ({}, {"worker_id": "w"}, {"worker_id": "w", "fence": job["fence"]}, {"fence": job["fence"]}):
        answer = guarded.post(f"/v1/daemon/{verb}", {**body, **claim}, token=theirs)
        assert answer.status_code == 409, (claim, answer.text)
    assert guarded.plane.get("a")["state"] == "running"
    answer = guarded.post(f"/v1/daemon/{verb}", body, token=mine)  # as a client in the field does
    assert answer.status_code == 200, answer.text


def test_a_producer_may_post_to_topics_and_not_to_jobs(guarded):
    producer = guarded.token("producer")
    guarded.submit(token=producer)
    guarded.poll(token=guarded.token("worker"))
    post = {"invocation_id": "news", "seq": 0, "bytes": b"x", "final": False}
    assert guarded.post("/v1/daemon/result-chunk", post, token=producer).told == {
        "seq": 0,
        "duplicate": False,
    }
    assert guarded.post("/v1/daemon/result-chunk", post, token=producer).told == {"seq": 0, "duplicate": True}
    post["invocation_id"] = "a"
    assert guarded.post("/v1/daemon/result-chunk", post, token=producer).status_code == 403


def test_a_revoked_or_expired_token_is_refused(guarded):
    short = guarded.token("producer", expires=0.3)
    taken_back = guarded.token("producer")
    for token in (short, taken_back):
        assert guarded.get(f"{NS}/queues", token=token).status_code == 200
    guarded.tokens.revoke(taken_back)  # by another process, as far as the server knows
    end = time.monotonic() + 5
    while guarded.get(f"{NS}/queues", token=taken_back).status_code == 200 and time.monotonic() < end:
        time.sleep(0.05)
    for token in (short, taken_back):
        assert guarded.get(f"{NS}/queues", token=token).status_code == 401


def test_an_open_request_ends_with_its_token(guarded):
    worker, reader = guarded.token("worker"), guarded.token("producer")
    guarded.plane.submit("other", b"e", id="a")
    told: dict[str, object] = {}

    def poll() -> None:
        body = {"worker_id": "w", "queue": "gpu", "timeout_s": 20}
        told["poll"] = guarded.post("/v1/daemon/poll", body, token=worker).status_code

    def wait() -> None:
        body = {"invocation_id": "a", "timeout_s": 20}
        told["await"] = guarded.post(f"{NS}/producer/await", body, token=reader).status_code

    def follow() -> None:
        sent = {"authorization": f"Bearer {reader}", "accept": protocol.ROWS}
        path = f"{NS}/producer/invocations/a/result/stream?since=-1"
        told["stream"] = b""
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            guarded.http.stream("GET", path, headers=sent) as r,
        ):
            for data in r.iter_raw():
                told["stream"] += data

    waiting = [threading.Thread(target=each) for each in (poll, wait, follow)]
    for each in waiting:
        each.start()
    end = time.monotonic() + 10
    while guarded.app.serving.hearing.waiting < 3 and time.monotonic() < end:
        time.sleep(0.01)
    for token in (worker, reader):
        guarded.tokens.revoke(token)  # by another process, as far as the server knows
        while guarded.get(f"{NS}/queues", token=token).status_code != 401 and time.monotonic() < end:
            time.sleep(0.05)
    guarded.plane.journal_append("a", None, b"SECRET")
    guarded.plane.submit("gpu", b"e", id="b")
    guarded.plane.cancel("a")
    for each in waiting:
        each.join(10)
    assert told == {"poll": 401, "await": 401, "stream": b""}
    assert guarded.plane.get("b")["state"] == "queued"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_pages_of_other_sites_are_refused_by_every_method(shared, method):
    assert shared.ask(method, "/healthz", host="evil.example").status_code == 400
    assert shared.ask(method, "/healthz", origin="null").status_code == 403


@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        ("/healthz", ["localhost", "evil.example"], 400),
        ("/healthz", ["localhost", "localhost"], 400),
        ("/healthz", [], 400),
        ("http://evil.example/healthz", ["localhost"], 400),
        ("http://evil.example", ["localhost"], 400),
        ("http://localhost@evil.example/healthz", ["localhost"], 400),
        ("http://localhost/healthz", ["localhost"], 200),
        ("http://localhost/healthz", ["evil.example"], 200),
        ("http://localhost?x", ["localhost"], 200),
        ("//evil.example/healthz", ["localhost"], 404),
        ("/a://b", ["localhost"], 404),
    ],
)
def test_the_target_and_one_host_header_say_whom_a_request_is_for(shared, target, hosts, status):
    with shared.line() as line:
        told = "".join(f"Host: {host}\r\n" for host in hosts)
        line.sendall(f"GET {target} HTTP/1.1\r\n{told}Connection: close\r\n\r\n".encode())
        assert line.recv(100).split()[1] == str(status).encode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"host": "evil.example:8080"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"host": ""}, 400),
        ({"host": "127.0.0.1#evil.example"}, 400),
        ({"host": "127.0.0.1/evil.example"}, 400),
        ({"host": "127.0.0.1?evil.example"}, 400),
        ({"host": "127.0.0.1\\evil.example"}, 400),
        ({"host": "evil.example@127.0.0.1"}, 400),
        ({"host": "127.0.0.1:8080@evil.example"}, 400),
        ({"host": "127.0.0.1, evil.example"}, 400),
        ({"host": "127.0.0.1:port"}, 400),
        ({"host": "127.0.0.1:123456"}, 400),
        ({"host": "2130706433"}, 400),
        ({"host": "localhost."}, 400),
        ({"host": "[127.0.0.1]"}, 400),
        ({"host": "[::1"}, 400),
        ({"host": "[::1%25evil.example]"}, 400),
        ({"host": "[fe80::1%evil.example]"}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(shared, headers, status):
    assert shared.get("/healthz", **headers).status_code == status


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_ask_without_an_origin(shared, site):
    told = {"sec_fetch_site": site, "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
    for path in ("/", "/healthz", f"{NS}/queues", f"{NS}/producer/invocations/x/result/stream?wait=0"):
        answer = shared.get(path, **told)
        assert (answer.status_code, answer.headers["cross-origin-resource-policy"]) == (403, "same-origin")
    visit = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert shared.get("/", **visit).status_code != 403
    assert shared.get(f"{NS}/queues", **visit).status_code == 403
    assert shared.get("/", **{**visit, "sec_fetch_dest": "iframe"}).status_code == 403
    for own in ("same-origin", "none"):
        answer = shared.get("/healthz", **{**told, "sec_fetch_site": own})
        assert (answer.status_code, answer.headers["cross-origin-resource-policy"]) == (200, "same-origin")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "[fe80::1%25eth0]:80", "a.localhost", "cp.example"]
)
def test_its_own_names_are_answered(serve, host):
    served = serve(hosts=("cp.example",))
    assert served.get("/healthz", host=host).status_code == 200
    assert served.get("/healthz", host=host, origin=f"http://{host}").status_code == 200


def test_names_in_paths_cannot_climb(served):
    for ns in ("a%2Fb", "%2e%2e", "..%2f..", "a%00b", "%ff", "%01lakeshore"):
        answer = served.get(f"/v1/namespaces/{ns}/queues")
        assert answer.status_code in (200, 400), ns
        if answer.status_code == 200:
            assert answer.told == {"queues": {}}
    assert served.submit("x", ns="a%2Fb").status_code == 200
    assert served.get("/v1/namespaces/a%2Fb/queues").told["queues"] == {"gpu": {"queued": 1}}
    assert served.get("/v1/namespaces/a/b/queues").status_code == 404
    assert served.get("/v1/namespaces/%01lakeshore/queues").status_code == 400


def test_a_refusal_names_the_token_that_is_wanted(shared_guarded):
    answer = shared_guarded.ask("GET", "/metrics", None, token=shared_guarded.token("worker"))
    assert "a worker token may not do this; it wants an admin token." in answer.told["error"]["message"]
