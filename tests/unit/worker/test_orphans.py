"""What a dead worker process held: handed on at once, as a loss, and nobody else's touched."""

from __future__ import annotations

import os

from lakeshore.queues.job import id_prefix, new_worker_id
from lakeshore.worker.orphans import hand_on

DEAD = 2**22 + 1  # above any process id
MINE = f"{id_prefix(DEAD)}abcdef"


def test_its_jobs_are_claimed_at_once_and_count_as_losses(plane, q):
    jobs = [q.submit(n) for n in range(3)]
    held = [plane.claim("gpu", MINE, lease=60).id for _ in range(2)]
    other = plane.claim("gpu", new_worker_id(), lease=60).id
    assert sorted(hand_on(plane, "gpu", DEAD)) == sorted(held) == sorted(jobs[:2])
    again = [plane.claim("gpu", "next") for _ in range(2)]
    assert sorted(claimed.id for claimed in again) == sorted(held)
    assert [claimed.attempt for claimed in again] == [2, 2]
    assert [plane.get(id)["losses"] for id in held] == [1, 1]
    assert plane.claim("gpu", "next") is None
    assert plane.get(other)["worker_id"].startswith(id_prefix(os.getpid()))


def test_a_job_that_killed_three_is_a_poison_pill_all_the_same(plane, q):
    inv = q.submit(1)
    for _ in range(3):
        assert plane.claim("gpu", MINE).id == inv
        assert hand_on(plane, "gpu", DEAD) == [inv]
    assert plane.claim("gpu", "next").id == inv
    assert plane.get(inv)["losses"] == 3


def test_a_process_whose_id_only_begins_alike_is_left_alone(plane, q):
    q.submit(1)
    plane.claim("gpu", f"{id_prefix(DEAD * 10)}abcdef")
    assert hand_on(plane, "gpu", DEAD) == []
    assert plane.claim("gpu", "next") is None


def test_other_queues_are_left_alone(plane, q):
    plane.submit("other", b"x", id="j")
    plane.claim("other", MINE)
    assert hand_on(plane, "gpu", DEAD) == []
