"""Rules of the frame journal: seqs, finals, attempts, claims, trims, and how a read ends."""

from __future__ import annotations

from lakeshore import wire
from lakeshore.conformance.case import TINY_LEASE, Case, holds, lapse, raises, same, together
from lakeshore.errors import ClaimLost, WaitTimeout


def _append(case: Case, *frames: bytes, journal: str | None = None) -> None:
    for frame in frames:
        case.plane.journal_append(journal or case.id(), None, frame)


def _frames(case: Case, journal: str, since: int = -1) -> list[tuple[int, bytes]]:
    """Return what is there now."""
    found = []
    try:
        for pair in case.plane.journal_read(journal, since=since, timeout=0):
            found.append(pair)  # noqa: PERF402 - what came before the timeout counts
    except WaitTimeout:
        pass  # no more frames now
    return found


def frames_come_back_in_order(case: Case) -> None:
    """Any bytes of any number come back verbatim, in order, with their seqs, from any cursor."""
    topic = f"t {case.id()}"
    bodies = [b"", b"\0", b"x" * 5000, *(b"%d" % i for i in range(1500))]
    same(case.plane.journal_extend(topic, bodies), len(bodies) - 1, "last seq")
    same(case.plane.journal_extend(topic, []), -1, "extend by none")
    want = list(enumerate(bodies))
    same(_frames(case, topic), want, "all frames")
    for since in (0, 511, 1000, len(bodies) - 1, len(bodies) + 5):
        same(_frames(case, topic, since), want[since + 1 :], f"frames after {since}")


def an_explicit_seq_is_idempotent(case: Case) -> None:
    """A seq that exists is absorbed, its `final` too; None takes the next."""
    topic, append = f"t {case.id()}", case.plane.journal_append
    same([append(topic, seq, b"%d" % seq) for seq in (0, 1, 5)], [0, 1, 5], "seqs")
    same(append(topic, 1, b"other"), 1, "a repeat")
    same(append(topic, 1, b"other", final=True), 1, "a final repeat")
    same(append(topic, None, b"6"), 6, "the next")
    same(_frames(case, topic), [(0, b"0"), (1, b"1"), (5, b"5"), (6, b"6")], "frames")


def malformed_frames_are_refused(case: Case) -> None:
    """Negative seqs and what is no bytes are `ValueError`, and nothing is written."""
    topic, append = f"t {case.id()}", case.plane.journal_append
    for seq in (-1, "0", 1.0, True):
        raises(ValueError, f"seq {seq!r}", append, topic, seq, b"")
    raises(ValueError, "a frame of text", append, topic, None, "text")
    raises(ValueError, "a frame of None", case.plane.journal_extend, topic, [b"a", None])
    raises(ValueError, "keep_last -1", case.plane.journal_trim, topic, keep_last=-1)
    same(_frames(case, topic), [], "frames")


def concurrent_appends_get_different_seqs(case: Case) -> None:
    """With any number of writers, seq=None hands out each seq once and loses nothing."""
    topic = f"t {case.id()}"

    def write(name: int) -> list[int]:
        return [case.plane.journal_append(topic, None, b"%d-%d" % (name, i)) for i in range(25)]

    seqs = [seq for some in together(4, write) for seq in some]
    same(sorted(seqs), list(range(100)), "seqs")
    same(len({body for _, body in _frames(case, topic)}), 100, "frames")


def a_final_frame_ends_the_read(case: Case) -> None:
    """A read ends after the first final frame, from any cursor, and shows nothing past it."""
    topic, append = f"t {case.id()}", case.plane.journal_append
    append(topic, None, b"0")
    append(topic, None, b"1", final=True)
    append(topic, None, b"2")
    append(topic, None, b"3", final=True)
    same(case.read(topic), [(0, b"0"), (1, b"1")], "frames")
    same(case.read(topic, since=0), [(1, b"1")], "frames after 0")
    same(case.read(topic, since=1), [], "frames after the final one")
    same(case.read(topic, since=3), [], "frames after that")


def a_trimmed_final_frame_still_ends_the_read(case: Case) -> None:
    """A journal that was ended and then trimmed ends, and waits for nothing."""
    topic = f"t {case.id()}"
    case.plane.journal_append(topic, None, b"0")
    case.plane.journal_append(topic, None, b"1", final=True)
    same(case.plane.journal_trim(topic), 2, "trimmed")
    same(case.read(topic), [], "read from the start")
    same(case.read(topic, since=0), [], "read from a cursor")


def a_terminal_row_ends_the_read(case: Case) -> None:
    """Without a final frame a read ends when the row is terminal and all frames are out."""
    claimed = case.claimed()
    case.plane.journal_extend(claimed.id, [b"%d" % i for i in range(700)])
    _append(case, b"log", journal=f"{claimed.id}.log")
    raises(WaitTimeout, "a read while it runs", case.read, timeout=0)
    case.plane.ack(claimed.id, "w")
    same(len(case.read()), 700, "frames")
    same(case.read(since=698), [(699, b"699")], "the last frame")
    same(case.read(f"{claimed.id}.log"), [(0, b"log")], "the log")
    same(case.read(f"{claimed.id}.progress"), [], "an empty sibling")
    case.submit("b")
    case.plane.cancel(case.id("b"))
    same(case.read(case.id("b")), [], "an empty journal of a cancelled job")


def an_ending_appends_its_frame(case: Case) -> None:
    """`frame=` is the final frame, in the commit of the ending; a refused or repeated ending adds none."""
    claimed = case.claimed()
    _append(case, b"0")
    raises(ClaimLost, "ack by another worker", case.plane.ack, claimed.id, "w2", frame=b"end")
    case.plane.ack(claimed.id, "w", frame=b"end", fence=claimed.fence)
    case.plane.ack(claimed.id, "w", frame=b"end", fence=claimed.fence)
    same(case.read(), [(0, b"0"), (1, b"end")], "frames")
    failed = case.claimed("b")
    case.plane.nack(failed.id, "w", error="E", retry=False, frame=b"err")
    same(case.read(failed.id), [(0, b"err")], "frames of a failed job")
    raises(ValueError, "a frame of a retry", case.plane.nack, failed.id, "w", error="E", frame=b"f")


def an_append_may_be_guarded(case: Case) -> None:
    """With worker or fence an append needs that claim; without, a plane at hand takes it in any state."""
    append, id = case.plane.journal_append, case.id()
    raises(ClaimLost, "append to an unknown job", append, id, None, b"f", worker_id="w")
    case.submit()
    raises(ClaimLost, "append to a queued job", append, id, None, b"f", worker_id="w")
    claimed = case.claim(lease=TINY_LEASE)
    same(append(id, None, b"0", worker_id="w", fence=claimed.fence), 0, "the worker's append")
    same(append(f"{id}.log", None, b"0", worker_id="w", fence=claimed.fence), 0, "its log")
    raises(ClaimLost, "another worker's", append, id, None, b"f", worker_id="w2")
    raises(ClaimLost, "another fence's", append, id, None, b"f", fence=claimed.fence + 1)
    raises(ClaimLost, "another fence's log", append, f"{id}.log", None, b"f", fence=9)
    raises(ClaimLost, "another fence's extend", case.plane.journal_extend, id, [b"f"], fence=9)
    lapse()
    same(append(id, None, b"1", fence=claimed.fence), 1, "append under a lapsed lease nobody took")
    case.plane.ack(id, "w")
    raises(ClaimLost, "after the end", append, id, None, b"f", worker_id="w", fence=claimed.fence)
    try:
        seq = append(id, None, b"2")
    except ClaimLost:  # a control plane wants the job's claim, whoever appends
        return
    same(seq, 2, "an unguarded append")


def attempts_never_mix(case: Case) -> None:
    """A later attempt opens with a BEGIN in the claim's commit; a read from the start begins there."""
    claimed = case.claimed()
    _append(case, b"old")
    _append(case, b"old log", journal=f"{claimed.id}.log")
    live = case.plane.journal_read(claimed.id, timeout=5.0)
    same(next(live), (0, b"old"), "a live reader's first frame")
    case.plane.nack(claimed.id, "w", error="E")
    again = case.claim()
    begin = wire.attempt_frame(1, 2)
    _append(case, b"new")
    same(_frames(case, claimed.id), [(1, begin), (2, b"new")], "a read from the start")
    same(_frames(case, claimed.id, 0), [(1, begin), (2, b"new")], "a read from a cursor")
    same(_frames(case, f"{claimed.id}.log"), [(1, begin)], "the log")
    same([next(live), next(live)], [(1, begin), (2, b"new")], "the live reader goes on")
    same(_frames(case, f"{claimed.id}.progress"), [], "an empty sibling gets no BEGIN")
    case.plane.ack(again.id, "w", frame=b"end")
    same(case.read(), [(1, begin), (2, b"new"), (3, b"end")], "in the end")


def every_way_back_opens_an_attempt(case: Case) -> None:
    """After a lapsed lease, a release or a requeue too, a read from the start shows nothing from before."""
    plane = case.plane
    case.claimed(lease=TINY_LEASE)
    _append(case, b"0")
    lapse()
    second = case.claim()
    same(_frames(case, case.id()), [(1, wire.attempt_frame(1, 2))], "after a lapsed lease")
    plane.release(second.id, "w")
    third = case.claim()
    same(_frames(case, case.id()), [(2, wire.attempt_frame(2, 2))], "after a release")
    plane.nack(third.id, "w", error="E", retry=False, frame=b"err")
    same(case.read(), [(2, wire.attempt_frame(2, 2)), (3, b"err")], "after a failure")
    plane.requeue(third.id)
    same(_frames(case, case.id()), [], "after a requeue nothing is read from the start")
    case.claim()
    same(_frames(case, case.id()), [(4, wire.attempt_frame(4, 1))], "after a requeue and a claim")


def a_retry_undoes_final(case: Case) -> None:
    """A final frame of an attempt that is retried, released or lost does not end the journal."""
    for way in ("nack", "release", "lapse"):
        claimed = case.claimed(way, lease=TINY_LEASE if way == "lapse" else 30.0)
        case.plane.journal_append(claimed.id, None, b"err", final=True)
        same(case.read(claimed.id), [(0, b"err")], "the attempt's own end")
        if way == "nack":
            case.plane.nack(claimed.id, "w", error="E")
        elif way == "release":
            case.plane.release(claimed.id, "w")
        else:
            lapse()
        case.claim()
        raises(WaitTimeout, f"a read after {way}", case.read, claimed.id, timeout=0)
        case.plane.journal_append(claimed.id, 0, b"err", final=True)
        raises(WaitTimeout, f"a late repeat after {way}", case.read, claimed.id, timeout=0)
        case.plane.cancel(claimed.id)


def seqs_never_restart(case: Case) -> None:
    """Not by trim, retry or requeue; a trimmed seq is absorbed."""
    claimed = case.claimed()
    _append(case, b"0", b"1", b"2")
    same(case.plane.journal_trim(claimed.id), 3, "trimmed")
    same(case.plane.journal_append(claimed.id, 1, b"again"), 1, "an append at a trimmed seq")
    same(_frames(case, claimed.id), [], "frames")
    same(case.plane.journal_append(claimed.id, None, b"3"), 3, "the next seq")
    case.plane.nack(claimed.id, "w", error="E", retry=False)
    case.plane.requeue(claimed.id)
    case.claim()
    same(case.plane.journal_append(claimed.id, None, b"5"), 5, "the next seq after requeue and BEGIN")


def trim_keeps_the_last(case: Case) -> None:
    """Trim drops all but the last frames and says how many; reads go on with what is left."""
    topic, trim = f"t {case.id()}", case.plane.journal_trim
    same(trim(topic), 0, "trim of nothing")
    case.plane.journal_extend(topic, [b"%d" % i for i in range(10)])
    same(trim(topic, keep_last=20), 0, "more than there are")
    same(trim(topic, keep_last=4), 6, "dropped")
    want = [(i, b"%d" % i) for i in range(6, 10)]
    same(_frames(case, topic), want, "from the start")
    same(_frames(case, topic, 2), want, "from a cursor before what is left")
    same(trim(topic, keep_last=4), 0, "again")
    same(trim(topic), 4, "all")


def readers_do_not_disturb_each_other(case: Case) -> None:
    """Any number of readers, each with its cursor; one that reconnects sees every later frame once."""
    topic = f"t {case.id()}"
    _append(case, b"0", b"1", b"2", journal=topic)
    one = case.plane.journal_read(topic, timeout=5)
    two = case.plane.journal_read(topic, timeout=5)
    same([next(one), next(two), next(one)], [(0, b"0"), (0, b"0"), (1, b"1")], "two readers")
    _append(case, b"3", journal=topic)
    same([next(one), next(one)], [(2, b"2"), (3, b"3")], "the first goes on")
    same(_frames(case, topic, 1), [(2, b"2"), (3, b"3")], "a reader that reconnects")
    one.close()  # type: ignore[attr-defined]
    same(next(two), (1, b"1"), "the other goes on")


def a_topic_waits_for_its_first_frame(case: Case) -> None:
    """An id with neither row nor frames is a topic: reading it waits."""
    error = raises(WaitTimeout, "a read", case.read, f"t {case.id()}", timeout=0.05)
    holds(isinstance(error, TimeoutError), "WaitTimeout is a TimeoutError")
