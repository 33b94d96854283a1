"""What a server noted of a row stays while the row does, and at every server of the store."""

from __future__ import annotations

import os
from typing import Any

import httpx
import msgpack
import pytest

from lakeshore import Dispatch
from lakeshore.planes.store_notes import Notes
from lakeshore.planes.store_tokens import Tokens
from lakeshore.planes.store_within import RESERVED, Within
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

SUBMIT = "/v1/namespaces/default/producer/submit"
JOB = {"invocation_id": "a", "queue": "gpu", "args_blob": b"e", "function": "f", "code_context": {"v": 1}}


def test_a_long_job_keeps_its_maker(serve):
    first, second = serve(auth=True), serve(auth=True)
    first.submit(token=first.token("producer"))
    mine = first.token("worker")
    (job,) = first.poll(token=mine, lease=600.0)
    claim = {"invocation_id": "a", "worker_id": "w", "fence": job["fence"]}
    first.app.serving.notes.forget(older_than=0)
    for verb, body in (
        ("heartbeat", {"lease": 600.0}),
        ("result-chunk", {"seq": None, "bytes": b"frame"}),
        ("ack", {"state": "succeeded", "result_blob": b"of 31 days"}),
    ):
        answer = second.post(f"/v1/daemon/{verb}", {**claim, **body}, token=mine)
        assert answer.status_code == 200, (verb, answer.text)
    assert first.plane.result("a") == b"of 31 days"


def test_a_claim_of_a_client_in_the_field_outlives_its_server(tmp_path):
    with Dispatch(tmp_path / "d.sqlite") as plane:
        mine, others = (Tokens(plane).create(ns="default", role="worker")[0] for _ in range(2))
        plane.submit("gpu", b"e", id="a")
        poll = {"queue": "gpu", "worker_id": "w", "capacity": 1}
        assert len(ask(plane, "poll", mine, poll)[1]["commands"]) == 1
    with Dispatch(tmp_path / "d.sqlite") as plane:  # a newer version, say
        ended = {"invocation_id": "a", "state": "succeeded", "result_blob": b"r"}
        assert ask(plane, "ack", others, ended)[0] == 409
        assert ask(plane, "ack", mine, ended)[0] == 200
        assert plane.result("a") == b"r"


def ask(plane: Dispatch, verb: str, token: str, body: Any) -> tuple[int, Any]:
    """Ask a server of the store that is started for it."""
    with background(create_app(plane, Options(auth=True))) as url:
        headers = {"authorization": f"Bearer {token}", "accept": "application/x-msgpack"}
        answer = httpx.post(
            f"{url}/v1/daemon/{verb}", content=msgpack.packb(body), headers=headers, trust_env=False
        )
        return answer.status_code, msgpack.unpackb(answer.content)


def test_what_was_said_of_a_job_waits_with_it(served):
    assert served.post(SUBMIT, JOB).status_code == 200
    served.app.serving.notes.forget(older_than=0)
    (job,) = served.poll()
    assert (job["function"], job["code_context"]) == ("f", {"v": 1})


def test_notes_go_with_their_row_and_others_with_time(guarded):
    assert guarded.post(SUBMIT, JOB, token=guarded.token("producer")).status_code == 200
    mine = guarded.token("worker")
    (job,) = guarded.poll(token=mine, lease=600.0, nonce=os.urandom(16))
    row = Within(guarded.plane, "default").row_of("a")
    keep = Within(guarded.plane, RESERVED)
    journals = [f"claim-row-{row}", f"submit-row-{row}"]

    def noted() -> list[str]:
        read = guarded.plane._read(
            lambda tx: tx.rows("silent_notes", {"ns": RESERVED, "cut": 1e12, "after": ""})
        )
        return [name for name in journals if keep.next_seqs(name)[0]] + ["silent"] * len(read)

    assert noted() == [*journals, "silent"]  # the last is who was answered what
    guarded.app.serving.notes.forget(older_than=3600)
    assert noted() == [*journals, "silent"]
    guarded.app.serving.notes.forget(older_than=0)
    assert noted() == journals
    guarded.plane.ack("a", "w", fence=job["fence"])
    assert Notes(guarded.plane).claimer(row, job["fence"]) is not None
    assert guarded.plane.prune(older_than=0) == 1
    guarded.app.serving.notes.forget(older_than=3600)
    assert noted() == [*journals, "silent", "silent"]
    guarded.app.serving.notes.forget(older_than=0)
    assert noted() == []
    assert Notes(guarded.plane).claimer(row, job["fence"]) is None


def test_a_thousand_notes_go_in_steps(served):
    keep = Within(served.plane, RESERVED)
    for n in range(1100):
        keep.journal_append(f"frames-{n}", None, b"x")
    served.submit()  # its note stays
    served.app.serving.notes.forget(older_than=0)
    left = served.plane._read(lambda tx: tx.rows("silent_topics", {"ns": RESERVED, "cut": 1e12}))
    assert len(left) == 1


@pytest.mark.parametrize("journal", ["claim-row-", "claim-row-0", "submit-row-99999999999", "claim-rows"])
def test_a_note_of_no_row_goes(served, journal):
    Within(served.plane, RESERVED).journal_append(journal, None, b"x")
    served.submit()
    served.plane.claim("gpu", "w")
    served.app.serving.notes.forget(older_than=0)
    assert served.app.serving.notes._at(journal, 0) is None
