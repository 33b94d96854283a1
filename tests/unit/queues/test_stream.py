"""Stream: every value once and in order, attempts never mixed, the end as the row says."""

from __future__ import annotations

import threading

import pytest

from lakeshore import Dispatch, InvocationFailed, Stream, SyncQueue, WaitTimeout, wire


@pytest.fixture
def q() -> SyncQueue:
    return SyncQueue("gpu", dispatch=Dispatch(":memory:"))


class Producer:
    """A job that is being worked on by hand, frame by frame."""

    def __init__(self, q: SyncQueue) -> None:
        self.plane, self.id = q.plane, q.submit("work")
        self.claim()

    def claim(self) -> None:
        claimed = self.plane.claim("gpu", "w")
        assert claimed.id == self.id
        self.fence = claimed.fence

    def emit(self, *values) -> None:
        for value in values:
            self.plane.journal_extend(self.id, wire.value_frames(value), worker_id="w", fence=self.fence)

    def succeed(self) -> None:
        self.plane.ack(self.id, "w", fence=self.fence, frame=wire.end_frame(0))

    def fail(self, *, retry: bool) -> None:
        frame = None if retry else wire.error_frame(0, type="ValueError", message="broke")
        self.plane.nack(self.id, "w", error="ValueError: broke", retry=retry, fence=self.fence, frame=frame)


def test_values_come_as_they_are_yielded(q):
    job = Producer(q)
    stream = q.stream(job.id, timeout=5)
    got = []
    reader = threading.Thread(target=lambda: got.extend(stream))
    reader.start()
    job.emit(None, 0, "", [], False, {})
    job.succeed()
    reader.join(5)
    assert got == [None, 0, "", [], False, {}]


@pytest.mark.parametrize("since", range(-1, 6))
def test_a_cursor_gives_exactly_what_follows(q, since):
    job = Producer(q)
    job.emit(*range(5))
    job.succeed()
    stream = q.stream(job.id, since=since)
    assert list(stream) == list(range(since + 1, 5))
    assert list(stream) == []


def test_the_cursor_resumes_in_another_reader(q):
    job = Producer(q)
    job.emit(*range(5))
    first = q.stream(job.id)
    assert [next(first), next(first)] == [0, 1]
    job.succeed()
    assert list(q.stream(job.id, since=first.cursor)) == [2, 3, 4]


def test_a_timeout_does_not_end_the_stream(q):
    job = Producer(q)
    job.emit(1)
    stream = q.stream(job.id, timeout=0.01)
    assert next(stream) == 1
    with pytest.raises(WaitTimeout, match=job.id):
        next(stream)
    job.emit(2)
    job.succeed()
    assert list(stream) == [2]


def test_attempts_do_not_mix(q):
    job = Producer(q)
    job.emit("a1", "a2")
    live = q.stream(job.id)
    assert next(live) == "a1"
    job.fail(retry=True)
    job.claim()
    job.emit("b1")
    job.succeed()
    late = q.stream(job.id)
    assert (list(late), late.attempt, late.gap) == (["b1"], 2, 0)
    assert next(live) == "a2"
    assert (next(live), live.attempt) == ("b1", 2)
    assert list(q.stream(job.id, since=0)) == ["a2", "b1"]


def test_a_released_attempt_does_not_mix_with_the_next(q):
    job = Producer(q)
    job.emit("dropped")
    job.plane.release(job.id, "w", fence=job.fence)
    job.claim()
    job.emit("kept")
    job.succeed()
    stream = q.stream(job.id)
    assert list(stream) == ["kept"]
    assert (stream.attempt, stream.run) == (1, 1)


def test_a_failure_comes_after_the_values(q):
    job = Producer(q)
    job.emit(1, 2)
    job.fail(retry=False)
    stream, got = q.stream(job.id), []
    with pytest.raises(InvocationFailed, match="ValueError: broke"):
        got.extend(iter(stream.__next__, object()))
    for since in (-1, 0, 1, 2, 3):
        with pytest.raises(InvocationFailed):
            list(q.stream(job.id, since=since))
    assert list(stream) == []


def test_a_requeued_job_streams_only_its_new_run(q):
    job = Producer(q)
    job.emit("old")
    job.fail(retry=False)
    q.requeue(job.id)
    with pytest.raises(WaitTimeout):
        next(q.stream(job.id, timeout=0.01))
    job.claim()
    job.emit("new")
    job.succeed()
    assert list(q.stream(job.id)) == ["new"]


def test_a_large_value_comes_whole_and_the_cursor_waits_for_it(q):
    big = b"x" * (wire.CHUNK_SIZE * 2 + 5)
    job = Producer(q)
    frames = wire.value_frames(big)
    assert len(frames) > 3
    job.emit("small")
    stream = q.stream(job.id, timeout=0.01)
    assert next(stream) == "small"
    for frame in frames[:2]:
        job.plane.journal_append(job.id, None, frame)
    with pytest.raises(WaitTimeout):
        next(stream)
    assert stream.cursor == 0
    for frame in frames[2:]:
        job.plane.journal_append(job.id, None, frame)
    job.succeed()
    assert next(stream) == big
    assert stream.cursor == len(frames)
    assert list(q.stream(job.id, since=0)) == [big]


def test_a_trimmed_journal_says_what_is_lost(q):
    job = Producer(q)
    job.emit(*range(10))
    stream = q.stream(job.id)
    assert next(stream) == 0
    reader = q.stream(job.id, since=stream.cursor)
    job.plane.journal_trim(job.id, keep_last=3)
    job.succeed()
    assert (list(reader), reader.gap) == ([7, 8, 9], 6)
    late = q.stream(job.id)
    assert (list(late), late.gap) == ([7, 8, 9], 7)


def test_frames_are_there_for_whoever_wants_them(q):
    job = Producer(q)
    job.emit("v")
    job.succeed()
    frames = list(q.stream(job.id).frames())
    assert [(seq, frame.kind.name) for seq, frame in frames] == [(0, "VALUE"), (1, "END")]


def test_the_repr_names_id_and_cursor(q):
    job = Producer(q)
    assert repr(q.stream(job.id)) == f"Stream(id={job.id!r}, cursor=-1)"
    assert isinstance(q.stream(job.id), Stream)


def test_a_log_ends_quietly_with_a_failed_job(q):
    job = Producer(q)
    line = {"stream": "stdout", "text": "hi\n"}
    job.plane.journal_extend(f"{job.id}.log", wire.value_frames(line), worker_id="w", fence=job.fence)
    job.fail(retry=False)
    assert list(q.logs(job.id)) == [line]
