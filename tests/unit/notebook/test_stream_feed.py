"""What a panel knows of a job, polled by hand from a real plane."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from lakeshore import Dispatch, SyncQueue, wire
from lakeshore.errors import UnknownInvocation
from lakeshore.notebook import stream_cursor, stream_feed
from lakeshore.notebook.render_terminal import line_text
from lakeshore.notebook.stream_feed import JobFeed
from lakeshore.notebook.stream_overview import GroupFeed, queue_state
from lakeshore.planes.health import PRESENT_SECONDS


class Job:
    """A job whose worker is this test."""

    def __init__(self, plane: Dispatch, queue: str = "gpu") -> None:
        self.plane, self.queue = plane, queue
        self.id = SyncQueue(queue, dispatch=plane).submit({"x": 1})
        self.fence = 0

    def claim(self) -> None:
        claimed = self.plane.claim(self.queue, "host-1")
        assert claimed is not None and claimed.id == self.id
        self.fence = claimed.fence

    def emit(self, *values: Any, journal: str = "") -> None:
        frames = [frame for value in values for frame in wire.value_frames(value)]
        self.plane.journal_extend(f"{self.id}{journal}", frames)

    def say(self, text: str) -> None:
        self.emit({"stream": "stdout", "text": text}, journal=".log")

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        self.emit({"done": done, "total": total, "note": note}, journal=".progress")

    def succeed(self) -> None:
        self.plane.ack(self.id, "host-1", fence=self.fence, frame=wire.end_frame(0))

    def fail(self, *, retry: bool = False) -> None:
        error = {"type": "ValueError", "message": "loss is nan", "traceback": "line 7, in train"}
        self.plane.nack(self.id, "host-1", fence=self.fence, error=error, retry=retry)


@pytest.fixture
def plane() -> Iterator[Dispatch]:
    plane = Dispatch(":memory:")
    yield plane
    plane.close()


@pytest.fixture
def job(plane: Dispatch) -> Job:
    return Job(plane)


def texts(feed: JobFeed) -> list[str]:
    return [shown.text for shown in feed.panel.tail]


def test_a_job_from_queue_to_end(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id, name="train")
    assert feed.poll()
    assert feed.state == "queued" and not feed.ended
    assert feed.panel.notes == [
        "no worker has asked for queue 'gpu' lately; start one with `%lakeshore worker start gpu`"
    ]
    job.claim()
    job.emit({"loss": 0.5, "epoch": 1}, {"loss": 0.25, "epoch": 2})
    job.say("hello\n 50%\r100%")
    assert feed.poll()
    panel = feed.panel
    assert (panel.state, panel.attempt, panel.worker, panel.frames) == ("running", 1, "host-1", 2)
    assert panel.notes == []
    assert panel.metrics["loss"].value == 0.25 and panel.metrics["loss"].points == [0.5, 0.25]
    assert [line_text(line) for line in panel.log] == ["hello", "100%"]
    assert not feed.poll(), "nothing new, nothing to draw"
    job.succeed()
    assert feed.poll() and feed.ended and feed.state == "succeeded"
    assert texts(feed) == ["loss=0.5  epoch=1", "loss=0.25  epoch=2"]


def test_a_quoted_queue_name_can_be_pasted(plane: Dispatch) -> None:
    feed = JobFeed(plane, Job(plane, "my gpu").id)
    feed.poll()
    assert "%lakeshore worker start 'my gpu'" in feed.panel.notes[0]


def test_a_worker_that_asked_lately_is_seen(plane: Dispatch, job: Job) -> None:
    plane.claim("gpu", "host-9")
    plane.release(job.id, "host-9")
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert feed.panel.notes == []
    late = JobFeed(plane, job.id, clock=lambda: time.time() + PRESENT_SECONDS + 1)
    late.poll()
    assert late.panel.notes


def test_the_second_attempt_drops_the_values_of_the_first(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id)
    job.claim()
    job.emit({"loss": 1.0}, {"old": 2.0})
    job.say("first\n")
    job.progress(9, 10)
    feed.poll()
    assert feed.panel.frames == 2 and feed.panel.progress is not None
    job.fail(retry=True)
    feed.poll()
    assert feed.state == "queued"
    job.claim()
    job.emit({"loss": 3.0})
    job.say("second\n")
    feed.poll()
    panel = feed.panel
    assert (panel.attempt, panel.frames, panel.progress) == (2, 1, None)
    assert list(panel.metrics) == ["loss"] and texts(feed) == ["loss=3"]
    assert [line_text(line) for line in panel.log] == ["first", "── attempt 2 ──", "second"]
    fresh = JobFeed(plane, job.id)
    fresh.poll()
    assert texts(fresh) == ["loss=3"] and fresh.panel.attempt == 2
    assert "attempt 2" in feed.html()


def test_progress_from_the_body_beats_progress_from_frames(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id)
    job.claim()
    job.emit({"step": 3, "total": 10})
    feed.poll()
    assert feed.panel.progress is not None and feed.panel.progress.fraction == pytest.approx(0.3)
    assert list(feed.panel.metrics) == ["step"], "a total is the bar's, no metric"
    job.emit({"progress": 0.75})
    feed.poll()
    assert feed.panel.progress.fraction == 0.75
    job.progress(1, 4, "loading")
    job.emit({"progress": 0.9})
    feed.poll()
    feed.poll()
    assert feed.panel.progress.fraction == 0.25 and feed.panel.progress.note == "loading"


@pytest.mark.parametrize("value", [{"progress": 7}, {"progress": "x"}, {"step": 1, "total": 0}, {"step": 1}])
def test_other_numbers_are_no_progress(plane: Dispatch, job: Job, value: Any) -> None:
    job.claim()
    job.emit(value)
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert feed.panel.progress is None


def test_a_failure_brings_its_error(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id)
    job.claim()
    job.fail()
    feed.poll()
    assert feed.ended and feed.panel.error == "ValueError: loss is nan"
    assert feed.panel.traceback == "line 7, in train"


def test_a_requeued_job_starts_anew(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id)
    job.claim()
    job.emit("old")
    feed.poll()
    feed.requeue()
    feed.poll()
    assert feed.state == "queued" and not feed.ended
    job.claim()
    job.emit("new")
    feed.poll()
    assert texts(feed) == ["new"] and feed.panel.frames == 1


def test_a_backlog_is_worked_off_and_counted(
    plane: Dispatch, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_feed, "POLL_SECONDS", 0.0)
    job.claim()
    job.emit(*({"n": n} for n in range(1000)))
    job.succeed()
    feed = JobFeed(plane, job.id)
    polls = 0
    while not feed.ended:
        feed.poll()
        polls += 1
    assert polls > 5
    assert feed.panel.frames == 1000 and feed.panel.metrics["n"].value == 999
    assert texts(feed)[-1] == "n=999"


def test_twenty_thousand_frames_are_read_in_a_moment(plane: Dispatch, job: Job) -> None:
    job.claim()
    job.emit(*(f"line {n} " + "x" * 60 for n in range(20_000)))
    job.succeed()
    feed = JobFeed(plane, job.id)
    began = time.perf_counter()
    while not feed.ended:
        feed.poll()
    assert time.perf_counter() - began < 3.0
    assert feed.panel.frames == 20_000 and texts(feed)[-1].startswith("line 19999 ")
    assert len(feed.record()) < 20_000 and len(feed.html()) < 8_000


def test_a_chunked_value_is_one_value_and_a_huge_one_is_only_told_of(
    plane: Dispatch, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.claim()
    job.emit("before", "y" * 3_000_000, "after")
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert feed.panel.frames == 3
    assert texts(feed)[1].endswith("characters") and texts(feed)[2] == "after"
    monkeypatch.setattr(stream_cursor, "LARGE_BYTES", 2_000_000)
    other = JobFeed(plane, job.id)
    other.poll()
    assert texts(other) == ["before", "a value of 2.9 MiB, too large to show here", "after"]
    assert other.panel.frames == 3


def test_a_broken_frame_is_told_of(plane: Dispatch, job: Job) -> None:
    job.claim()
    for data in (b"", b"\xc1garbage", b"\x94\x00", wire.Frame(wire.FrameKind.CHUNK, 0, b"x").to_bytes()):
        plane.journal_append(job.id, None, data)
    job.emit("fine")
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert texts(feed)[-1] == "fine"
    assert all("cannot be read" in text for text in texts(feed)[:-1])


def test_trimmed_frames_are_told_of(plane: Dispatch, job: Job) -> None:
    job.claim()
    job.emit("a")
    feed = JobFeed(plane, job.id)
    feed.poll()
    job.emit("b", "c", "d")
    plane.journal_trim(job.id, keep_last=1)
    feed.poll()
    assert feed.panel.gap == 2 and texts(feed) == ["a", "d"]
    assert "2 trimmed frames not shown" in feed.text()


def display(job: Job, *texts: str) -> None:
    job.emit(*({"display": {"text/html": f"<b>{t}</b>", "text/plain": t}} for t in texts), journal=".log")


def shown(feed: JobFeed) -> list[str]:
    return [figure.text for figure in feed.panel.displays]


def test_all_displays_are_shown_up_to_a_number(plane: Dispatch, job: Job) -> None:
    job.claim()
    display(job, "first", "second")
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert shown(feed) == ["first", "second"] and feed.panel.displays_before == 0
    assert "<b>first</b>" in feed.record() and "<b>second</b>" in feed.figure()
    display(job, *"abcdefghi")
    job.succeed()
    feed.poll()
    assert shown(feed) == list("bcdefghi") and feed.panel.displays_before == 3
    says = f"3 earlier displays: <code>%lakeshore logs {job.id}</code>"
    assert says in feed.record() and says in feed.figure()
    assert "3 earlier displays: `%lakeshore logs" in feed.text() and "figure: i" in feed.text()


def test_displays_that_are_large_are_kept_while_they_fit(
    plane: Dispatch, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_feed, "DISPLAY_BYTES", 100)
    job.claim()
    display(job, "a" * 40, "b" * 40, "c" * 400)
    job.succeed()
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert shown(feed) == ["c" * 400] and feed.panel.displays_before == 2


def test_displays_are_those_of_this_attempt(plane: Dispatch, job: Job) -> None:
    job.claim()
    display(job, "old")
    feed = JobFeed(plane, job.id)
    feed.poll()
    job.fail(retry=True)
    job.claim()
    display(job, "new")
    job.succeed()
    feed.poll()
    assert shown(feed) == ["new"] and feed.panel.displays_before == 0


def test_a_display_of_the_body_is_made_safe(plane: Dispatch, job: Job) -> None:
    job.claim()
    job.emit({"display": {"text/html": "<b onclick=x>bold</b>", "text/plain": "bold"}}, journal=".log")
    job.emit({"display": {"text/plain": "only text"}}, journal=".log")
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert [figure.html for figure in feed.panel.displays] == ['<div class="lk-html"><b>bold</b></div>']
    assert [line_text(line) for line in feed.panel.log] == ["only text"]


def test_the_newest_picture_replaces(plane: Dispatch, job: Job) -> None:
    from PIL import Image

    job.claim()
    job.emit(Image.new("L", (10, 20)), Image.new("L", (30, 40)))
    feed = JobFeed(plane, job.id)
    feed.poll()
    assert feed.panel.figure is not None and "30 × 40" in feed.panel.figure.text
    assert len(texts(feed)) == 2 and "10 × 20" in texts(feed)[0]


def test_the_name_is_what_was_submitted(plane: Dispatch) -> None:
    envelope = wire.Envelope("X1", {"kind": "ref", "module": "m", "qualname": "f"}, b"\x90", b"\x80")
    plane.submit("gpu", envelope.to_bytes(), id="X1")
    feed = JobFeed(plane, "X1")
    feed.poll()
    assert feed.panel.name == "f"
    envelope = wire.Envelope("X2", {"kind": "ref"}, b"\x90", b"\x80", cfg={"name": "digits"})
    plane.submit("gpu", envelope.to_bytes(), id="X2")
    feed = JobFeed(plane, "X2")
    feed.poll()
    assert feed.panel.name == "digits"


def test_a_topic_has_a_panel_too(plane: Dispatch) -> None:
    topic = SyncQueue("gpu", dispatch=plane).topic("room 1")
    feed = JobFeed(plane, topic.name)
    feed.poll()
    with pytest.raises(UnknownInvocation, match="%lakeshore ls"):
        feed.require()
    topic.post("hello")
    feed.poll()
    feed.require()
    assert texts(feed) == ["hello"] and feed.state == "topic"
    topic.post(None, final=True)
    feed.poll()
    assert feed.ended


def test_a_pruned_row_ends_the_following(plane: Dispatch, job: Job) -> None:
    feed = JobFeed(plane, job.id)
    feed.poll()
    plane.cancel(job.id)
    plane.prune(older_than=0.0)
    feed.poll()
    assert feed.ended and "pruned" in feed.text()


def test_a_group_counts_its_jobs(plane: Dispatch) -> None:
    q = SyncQueue("gpu", dispatch=plane)
    ids = q.submit_many([1, 2, 3])
    feed = GroupFeed(plane, ids, name="grid")
    feed.poll()
    feed.require()
    assert feed.state == "queued" and "3 queued" in feed.text() and "%lakeshore worker start" in feed.text()
    claimed = plane.claim("gpu", "w")
    assert claimed is not None
    feed.poll()
    assert feed.state == "running" and not feed.panel.notes
    plane.ack(claimed.id, "w")
    feed.cancel()
    feed.poll()
    assert feed.ended and feed.state == "cancelled" and "1 succeeded" in feed.line()
    with pytest.raises(UnknownInvocation, match="NOPE"):
        missing = GroupFeed(plane, [ids[0], "NOPE"])
        missing.poll()
        missing.require()


def test_a_group_shows_how_far_each_job_is_and_opens_its_last_values(plane: Dispatch) -> None:
    jobs = [Job(plane) for _ in range(3)]
    for job in jobs[:2]:
        job.claim()
    jobs[0].progress(3, 10, "epoch 3")
    jobs[0].emit({"loss": 0.5}, {"loss": 0.25})
    feed = GroupFeed(plane, [job.id for job in jobs])
    assert feed.poll()
    assert "3 of 10, 30%" in feed.html() and "epoch 3" in feed.text()
    assert "loss=0.25" in feed.html() and "<details>" not in feed.html()
    jobs[1].emit("<b>")
    assert feed.poll() and "&lt;b&gt;" in feed.html()
    for job in jobs[:2]:
        job.succeed()
    jobs[2].claim()
    jobs[2].emit(7, 8)
    jobs[2].succeed()
    feed.poll()
    record = feed.record()
    assert feed.ended and record.count("<details>") == 2
    assert "<summary>loss=0.25</summary><pre>loss=0.5\nloss=0.25</pre>" in record
    assert "<summary>8</summary><pre>7\n8</pre>" in record and "30%" not in record


def test_a_queue_as_it_stands(plane: Dispatch, job: Job) -> None:
    state = queue_state(plane, "gpu", time.time())
    assert state.counts["queued"] == 1 and state.rows[0]["id"] == job.id
    assert "%lakeshore worker start gpu" in state.notes[0]
    plane.claim("gpu", "host-1")
    state = queue_state(plane, "gpu", time.time())
    assert state.counts["running"] == 1 and not state.notes and state.workers[0]["worker_id"] == "host-1"
