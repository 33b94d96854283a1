"""An id that is used again after a prune is another job: nothing that was noted of the first is its."""

from __future__ import annotations

import os

SUBMIT = "/v1/namespaces/default/producer/submit"
JOB = {"invocation_id": "nightly", "queue": "gpu", "args_blob": b"e"}


def test_a_reused_id_belongs_to_the_token_that_claims_it_now(serve):
    first, second = serve(auth=True), serve(auth=True)
    producer, old, new = (first.token(role) for role in ("producer", "worker", "worker"))

    def submit(version: int) -> None:
        body = {**JOB, "function": f"f{version}", "code_context": {"v": version}}
        assert first.post(SUBMIT, body, token=producer).status_code == 200

    submit(1)
    nonce = {"nonce": os.urandom(16)}
    (job,) = first.poll("w", token=old, lease=600.0, **nonce)
    assert (job["function"], job["code_context"]) == ("f1", {"v": 1})
    claim = {"invocation_id": "nightly", "worker_id": "w", "fence": job["fence"]}
    assert first.post("/v1/daemon/ack", {**claim, "state": "succeeded"}, token=old).status_code == 200
    assert first.plane.prune(older_than=0) == 1
    submit(2)
    (job,) = first.poll("w", token=new, lease=600.0)
    assert (job["function"], job["code_context"], job["fence"]) == ("f2", {"v": 2}, claim["fence"])
    for served in (second, first):
        assert served.poll("w", token=old, lease=600.0, again=True, **nonce) == []
        for verb, body in (
            ("heartbeat", {"lease": 9.0}),
            ("release", {}),
            ("result-chunk", {"seq": None, "bytes": b"forged"}),
            ("ack", {"state": "succeeded", "result_blob": b"forged"}),
        ):
            for who in (claim, {"invocation_id": "nightly"}):
                answer = served.post(f"/v1/daemon/{verb}", {**who, **body}, token=old)
                assert answer.status_code == 409, (verb, answer.text)
        assert served.post("/v1/daemon/heartbeat", {**claim, "lease": 600.0}, token=new).status_code == 200
    assert second.post("/v1/daemon/ack", {**claim, "state": "succeeded"}, token=new).status_code == 200


def test_a_claim_that_an_ending_made_is_its_token_s(guarded):
    producer, mine, theirs = guarded.token("producer"), guarded.token("worker"), guarded.token("worker")
    for id in ("a", "b"):
        assert guarded.submit(id, token=producer).status_code == 200
    (job,) = guarded.poll(token=mine, lease=60.0)
    ending = {
        "invocation_id": job["invocation_id"],
        "worker_id": "w",
        "fence": job["fence"],
        "state": "succeeded",
        "next": {"queue": "gpu", "lease": 60.0},
    }
    (following,) = guarded.post("/v1/daemon/ack", ending, token=mine).told["commands"]
    body = {"invocation_id": following["body"]["invocation_id"], "lease": 9.0}
    assert guarded.post("/v1/daemon/heartbeat", body, token=theirs).status_code == 409
    assert guarded.post("/v1/daemon/heartbeat", body, token=mine).status_code == 200


def test_what_a_repeated_submit_says_is_not_taken(served):
    for version in (1, 2):
        answer = served.post(SUBMIT, {**JOB, "function": f"f{version}"})
        assert answer.status_code == 200
    assert served.poll()[0]["function"] == "f1"
