"""User code that must type-check under ``mypy --strict``; never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import lakeshore as dls
from lakeshore import Dispatch, InvocationFailed, Queue, SyncQueue, Topic, run, run_worker, scope, udf, wire


def train(epochs: int, lr: float = 0.1) -> Iterator[dict[str, float]]:
    """A generator body."""
    for epoch in range(epochs):
        run.progress(epoch, epochs)
        yield {"epoch": epoch, "loss": lr}


@udf
def double(x: int) -> int:
    """A plain body."""
    return 2 * x


@udf(queue="gpu", transport="ref", retries=2, timeout=60.0)
async def stream(n: int) -> AsyncIterator[int]:
    """An async generator body with options."""
    for i in range(n):
        yield i


def files() -> list[str]:
    """A body that keeps its keys."""
    with scope("scenes/0007"):
        path: Path = run.write("depth.bin")
        path.write_bytes(b"1")
        source: Path = run.read("depth.bin")
    return [source.name]


def use_http() -> None:
    """A control plane is a plane."""
    plane: dls.Plane = dls.HttpDispatch(
        "https://cp.example.com", token="t", namespace="lab", timeout=5.0, insecure=False
    )
    print(SyncQueue("gpu", dispatch=plane).count(), plane.trusted)


def use_sync() -> None:
    """Submit, stream, fetch."""
    plane: dls.Plane = Dispatch(":memory:", ns="tests")
    queue = SyncQueue("gpu", dispatch=plane, kind="boltzmann", temperature=0.5)
    job: str = queue.submit(dls.thunk(train, 3, lr=0.2), key="k", priority=1.0, delay=0.5)
    many: list[str] = queue.submit_many([dls.thunk(train, n) for n in range(3)])
    frames: dls.Stream = queue.stream(job, since=-1, timeout=10.0)
    for value in frames:
        print(value, frames.cursor, frames.attempt, frames.gap)
    try:
        print(queue.result(job, timeout=None))
    except InvocationFailed as error:
        print(error.type, error.message, error.traceback)
    executed: int = run_worker(queue, once=True, root=Path(), retries=2, allow_pickled=True)
    count: int = queue.count(dls.State.QUEUED)
    cancelled: bool = queue.cancel(many[0])
    row = queue.status(job)
    print(executed, count, cancelled, row["state"] if row else None)
    with queue.worker() as worker:
        print(worker.running, worker.executed, worker.current)
    topic: Topic = queue.topic("metrics")
    topic.post({"loss": 1.0})
    topic.post(None, final=True)
    for value in topic.listen(since=-1, timeout=1.0):
        print(value)
    for item in dls.track(range(3), description="items"):
        print(item + 1)
    print(double(2), double.submit(3), double.map([1, 2]))


async def use_async() -> None:
    """The same, awaited."""
    queue = Queue("gpu")
    job = await queue.submit(dls.thunk(train, 3))
    async for value in queue.stream(job):
        print(value)
    print(await queue.result(job), await queue.count())


def use_wire() -> bytes:
    """Values as bytes."""
    data: bytes = wire.pack({"a": (1, 2)})
    envelope = wire.Envelope(id="x", fn={"kind": "ref"}, args=wire.pack([]), kwargs=wire.pack({}))
    return data + envelope.to_bytes() + wire.Frame(wire.FrameKind.VALUE, 0, wire.unpack(data)).to_bytes()
