"""Messages between a worker and its child: whole, in order, whatever pieces the system cuts them into."""

from __future__ import annotations

import socket
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshore import wire
from lakeshore.worker import pipe
from lakeshore.worker.spawn import Spawned

SIZES = st.lists(st.sampled_from([0, 1, 300, 70_000, 262_144, 1_048_575, 1_048_577, 3_000_000]), max_size=6)


def talk(sizes, cut):
    """Send messages of these sizes in pieces of `cut` bytes; return the sizes that arrive."""
    here, there = socket.socketpair()
    sent = [["m", index, b"x" * size] for index, size in enumerate(sizes)]

    def write():
        with there:
            if cut is None:
                for message in sent:
                    pipe.send(there, message)
                return
            data = b""
            for message in sent:
                body = wire.pack(message)
                data += len(body).to_bytes(8, "big") + body
            for start in range(0, len(data), cut):
                there.sendall(data[start : start + cut])

    writer = threading.Thread(target=write)
    writer.start()
    inbox, got = pipe.Inbox(here), []
    with here:
        while inbox.receive():
            got += inbox.take()
        writer.join()
    assert [message[:2] for message in got] == [["m", index] for index in range(len(sizes))]
    assert all(type(message[2]) is bytes for message in got)
    return [len(message[2]) for message in got]


@settings(max_examples=40, deadline=None)
@given(SIZES, st.sampled_from([None, 4096, 65_537, 1_048_576]))
def test_every_message_arrives_whole(sizes, cut):
    assert talk(sizes, cut) == sizes


def test_single_bytes_make_messages_too():
    assert talk([3, 0, 40], 1) == [3, 0, 40]


def test_what_is_there_is_read_when_the_other_end_is_gone():
    here, there = socket.socketpair()
    copy = there.dup()  # as a process that the child forked holds it
    with here, copy:
        with there:
            pipe.send(there, ["last", b"x" * 100_000])
        inbox = pipe.Inbox(here)
        inbox.rest()
        assert [message[0] for message in inbox.take()] == ["last"]


def test_a_child_that_is_not_wanted_is_ended():
    spawned = Spawned()
    spawned.close()
    assert spawned.process.returncode is not None
