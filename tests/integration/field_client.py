"""A client in the field at work, unchanged: run by a Python that has its package; prints what came of it."""

from __future__ import annotations

import json
import sys
import threading
import time

from dreamlake.lakeshore import HttpDispatch, SyncQueue, run_worker, thunk  # type: ignore[import-not-found]
from dreamlake.lakeshore import wire as field_wire


def main(url: str, token: str | None) -> dict[str, object]:
    dispatch = HttpDispatch(url, token=token, timeout=15)
    q = SyncQueue("field", dispatch=dispatch)
    told: dict[str, object] = {}
    stop = threading.Event()

    def work() -> None:
        theirs = SyncQueue("field", dispatch=HttpDispatch(url, token=token, timeout=15))
        run_worker(theirs, stop=stop.is_set, allow_pickled=True, retries=1, root=sys.argv[3])

    def add(a: int, b: int) -> int:
        return a + b

    def squares(n: int):  # type: ignore[no-untyped-def]
        for i in range(n):
            yield {f"k{i}": i * i}
            time.sleep(0.05)

    def flaky():  # type: ignore[no-untyped-def]
        yield {"before": 1}
        with open(sys.argv[3] + "/tries", "a") as file:
            file.write("x")
        if open(sys.argv[3] + "/tries").read() == "x":
            raise ValueError("once")
        yield {"after": 2}

    def hopeless() -> None:
        raise KeyError("never")

    told["key"] = [q.submit({"x": 1}, key="k"), q.submit({"x": 1}, key="k")]
    told["queued"] = dispatch.get(told["key"][0])["state"]  # type: ignore[index]
    job = q.claim()
    told["payload"] = job.payload
    q.post(job.id, {"half": 1})
    q.ack(job, {"done": True})
    told["payload result"] = q.result(job.id, timeout=10)
    told["payload stream"] = list(q.stream(job.id, timeout=5))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        told["sum"] = q.result(q.submit(thunk(add, 2, 3)), timeout=20)
        inv = q.submit(thunk(squares, 4))
        told["stream"] = list(q.stream(inv, timeout=10))
        told["stream result"] = q.result(inv, timeout=10)
        told["stream again"] = list(q.stream(inv, since=1, timeout=10))
        inv = q.submit(thunk(flaky))
        told["retried live"] = list(q.stream(inv, timeout=10))
        told["retried"] = q.result(inv, timeout=20)
        told["retried stream"] = list(q.stream(inv, timeout=10))
        inv = q.submit(thunk(hopeless))
        try:
            q.result(inv, timeout=20)
        except RuntimeError as exc:
            told["failed"] = str(exc)
        try:
            list(q.stream(inv, timeout=10))
        except RuntimeError as exc:
            told["failed stream"] = str(exc)
    finally:
        stop.set()
        worker.join()
    topic = q.topic("news")
    for n in range(3):
        topic.post(n)
    topic.post(None, final=True)
    told["topic"] = list(topic.stream(timeout=5))
    told["listen"] = topic.listen(since=1, timeout=5)
    told["silence"] = q.topic("nothing").listen(timeout=0.5)
    told["unknown"] = dispatch.get("no-such-id")
    try:
        dispatch.ack("no-such-id", "w", result=field_wire.pack(1))
    except RuntimeError as exc:
        told["lost"] = str(exc)
    dispatch.close()
    return told


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2] or None), default=repr))
