"""Topic: many writers and readers of one named journal, no job needed."""

from __future__ import annotations

import threading

import pytest

from lakeshore import Dispatch, DispatchError, SyncQueue, WaitTimeout, wire


@pytest.fixture
def topic():
    with Dispatch(":memory:") as plane:
        yield SyncQueue("gpu", dispatch=plane).topic("metrics")


def test_falsy_posts_are_values(topic):
    values = [None, 0, "", [], False, {}]
    for value in values:
        topic.post(value)
    topic.post(None, final=True)
    assert list(topic.stream(timeout=2)) == values


def test_a_final_post_carries_its_value_first(topic):
    topic.post("last", final=True)
    assert list(topic.stream()) == ["last"]


@pytest.mark.parametrize("value", [1, b"x" * 3_000_000], ids=["small", "in chunks"])
def test_a_post_after_the_end_is_refused_and_ending_again_is_not(topic, value):
    topic.post("last", final=True)
    for final in (False, True):
        with pytest.raises(DispatchError, match="has ended"):
            topic.post(value, final=final)
    topic.post(None, final=True)
    assert list(topic.listen()) == ["last"]


def test_a_post_to_a_topic_that_is_trimmed_meanwhile_is_none_after_its_end(topic, monkeypatch):
    append = topic.plane.journal_append

    def append_and_trim(*args, **options):
        seq = append(*args, **options)
        topic.plane.journal_trim(topic.name)
        return seq

    monkeypatch.setattr(topic.plane, "journal_append", append_and_trim)
    assert [topic.post(n) for n in range(3)] == [0, 1, 2]


def test_listen_ends_in_silence_where_stream_raises(topic):
    topic.post(1)
    assert list(topic.listen(timeout=0.01)) == [1]
    stream = topic.stream(timeout=0.01)
    assert next(stream) == 1
    with pytest.raises(WaitTimeout):
        next(stream)


def test_listen_with_seq_resumes(topic):
    for value in "abc":
        topic.post(value)
    seqs = list(topic.listen(timeout=0.01, with_seq=True))
    assert seqs == [(0, "a"), (1, "b"), (2, "c")]
    assert list(topic.listen(since=0, timeout=0.01)) == ["b", "c"]


def test_large_posts_of_many_threads_stay_whole(topic):
    size = wire.CHUNK_SIZE + 10
    threads = [threading.Thread(target=topic.post, args=(bytes([n]) * size,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topic.post(None, final=True)
    assert sorted(topic.stream()) == [bytes([n]) * size for n in range(4)]


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 300, None])
def test_a_malformed_name_is_refused(name):
    with pytest.raises(ValueError, match="topic"):
        SyncQueue("gpu", dispatch=Dispatch(":memory:")).topic(name)


def test_silence_says_what_is_true_of_a_topic(topic):
    topic.post(1)
    stream = topic.stream(timeout=0.01)
    assert next(stream) == 1
    with pytest.raises(
        WaitTimeout, match=r"no frame of 'metrics' within 0\.01 s\. Nothing is lost.* since=0"
    ) as caught:
        next(stream)
    assert "job" not in str(caught.value)
