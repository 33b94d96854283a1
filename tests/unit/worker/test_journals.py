"""The journals of a running job: order, group commits, bounded logs, outages of the plane."""

from __future__ import annotations

import contextlib
import time

import pytest

from lakeshore import ClaimLost, Dispatch, PlaneUnavailable, WaitTimeout, wire
from lakeshore.worker.guard import Guard
from lakeshore.worker.journals import LOG_LIMIT, Flusher, Journals
from lakeshore.worker.keeper import Running


@pytest.fixture
def flusher():
    flusher = Flusher()
    flusher.start()
    yield flusher
    flusher.close()


def running(plane, lease):
    plane.submit("gpu", b"e", id="j")
    return Running(plane.claim("gpu", "w"), "w", Guard(), lease, None)


def journals_of(plane, flusher, **options):
    return Journals(plane, running(plane, 5), flusher, **options)


def bodies(plane, id):
    got = []
    with contextlib.suppress(WaitTimeout):  # the journal is open: what is there comes first
        for _, data in plane.journal_read(id, timeout=0):
            got.append(wire.Frame.from_bytes(data).body)
    return got


class Counting(Dispatch):
    """Counts commits of frames; can be away for a while."""

    commits = 0
    away = 0

    def journal_append(self, *args, **options):
        self._commit()
        return super().journal_append(*args, **options)

    def journal_extend(self, *args, **options):
        self._commit()
        return super().journal_extend(*args, **options)

    def _commit(self):
        if self.away:
            self.away -= 1
            raise PlaneUnavailable("append: the disk is full")
        self.commits += 1


@pytest.fixture
def plane():
    plane = Counting(":memory:")
    yield plane
    plane.close()


def test_a_slow_value_is_committed_before_the_call_returns(plane, flusher):
    journals = journals_of(plane, flusher)
    for n in range(3):
        journals.values(wire.value_frames(n))
        assert bodies(plane, "j") == list(range(n + 1))
        time.sleep(0.003)


def test_fast_values_get_group_commits_in_order_and_the_last_needs_no_close(plane, flusher):
    journals = journals_of(plane, flusher)
    for n in range(5000):
        journals.values(wire.value_frames(n))
    until = time.monotonic() + 5
    while len(bodies(plane, "j")) < 5000 and time.monotonic() < until:
        time.sleep(0.001)
    assert bodies(plane, "j") == list(range(5000))
    assert plane.commits < 2500


def test_close_leaves_nothing_behind(plane, flusher):
    journals = journals_of(plane, flusher)
    for n in range(100):
        journals.values(wire.value_frames(n))
        journals.write("stdout", f"{n}\n")
        journals.progress(n, 100)
    journals.close()
    assert bodies(plane, "j") == list(range(100))
    assert "".join(item["text"] for item in bodies(plane, "j.log")) == "".join(f"{n}\n" for n in range(100))
    assert bodies(plane, "j.progress")[-1]["done"] == 99


def test_an_outage_is_ridden_out_without_loss_or_double(plane, flusher):
    journals = journals_of(plane, flusher)
    plane.away = 3
    for n in range(10):
        journals.values(wire.value_frames(n))
    journals.close()
    assert bodies(plane, "j") == list(range(10))


def test_an_outage_past_the_lease_loses_nothing_that_nobody_took(plane, flusher):
    journals = Journals(plane, running(plane, 0), flusher)
    plane.away = 5
    journals.values(wire.value_frames(1))
    assert bodies(plane, "j") == [1]


@pytest.mark.parametrize("reason", ["release", "lost", "cancelled"])
def test_an_outage_ends_for_a_body_that_is_to_stop(plane, flusher, reason):
    job = running(plane, 30)
    journals = Journals(plane, job, flusher)
    plane.away = 10**6
    job.door.reason = reason
    with pytest.raises(ClaimLost, match="the plane is away, and the body was told to stop"):
        journals.values(wire.value_frames(1))


def test_a_lost_claim_is_told_at_the_next_value(plane, flusher):
    journals = journals_of(plane, flusher)
    plane.cancel("j")
    with pytest.raises(ClaimLost):
        for n in range(10):
            journals.values(wire.value_frames(n))
            time.sleep(0.002)


def test_a_flood_of_output_is_bounded_rated_and_says_what_it_dropped(plane, flusher):
    journals = journals_of(plane, flusher)
    line = "x" * 99 + "\n"
    for n in range(30_000):
        journals.write("stdout" if n % 2 else "stderr", line)
    journals.close()
    items = bodies(plane, "j.log")
    text = "".join(item["text"] for item in items)
    assert LOG_LIMIT <= len(text) <= LOG_LIMIT + 200
    assert f"{30_000 * 100 - LOG_LIMIT:,} more bytes of output dropped" in items[-1]["text"]
    assert len(items) < 60


def test_colours_and_carriage_returns_are_kept(plane, flusher):
    journals = journals_of(plane, flusher)
    journals.write("stderr", "\r 10%|\x1b[31m#\x1b[0m")
    journals.write("stderr", "\r 20%|##")
    journals.close()
    assert bodies(plane, "j.log") == [{"stream": "stderr", "text": "\r 10%|\x1b[31m#\x1b[0m\r 20%|##"}]


def test_lone_surrogates_do_not_break_the_log(plane, flusher):
    journals = journals_of(plane, flusher)
    journals.write("stdout", "caf\udce9")
    journals.close()
    assert bodies(plane, "j.log") == [{"stream": "stdout", "text": "caf?"}]


def test_many_displays_keep_the_newest(plane, flusher):
    journals = journals_of(plane, flusher)
    for n in range(500):
        journals.display({"text/plain": str(n)})
    journals.close()
    items = bodies(plane, "j.log")
    shown = [item["display"]["text/plain"] for item in items if "display" in item]
    assert shown[-1] == "499"
    assert len(shown) < 100
    assert "displays dropped" in items[-1]["text"]


def test_without_a_log_nothing_is_written_but_the_tee_hears_it(plane, flusher):
    heard = []
    journals = journals_of(plane, flusher, log=False, tee=heard.append)
    journals.write("stdout", "hi\n")
    journals.display({"text/plain": "x"})
    journals.close()
    assert bodies(plane, "j.log") == []
    assert heard == ["hi\n"]
