"""What the kernel of a browser test knows: an empty plane, a queue and bodies played by threads."""

import contextlib
import threading
import time

from lakeshore import Dispatch, SyncQueue, errors, wire
from lakeshore.notebook import stream
from lakeshore.notebook.stream import show_job

stream.shutdown()
plane = Dispatch(":memory:")
q = SyncQueue("gpu", dispatch=plane)
go = threading.Event()
"""Lets a job that holds go on."""


def submit(n=1):
    """Queue a job; returns its id."""
    return q.submit({"n": n})


def training(n, total):
    """The n-th value of a training job."""
    return {"step": n + 1, "total": total, "loss": 1 / (n + 1)}


def work(values, pause=0.05, line="line {n}\n", hold=None):
    """Claim the next job, append its values and a line of log each, end it; at value `hold` wait for `go`."""
    job = plane.claim("gpu", "w")
    for n, value in enumerate(values):
        if n == hold:
            go.wait(60)
        plane.journal_extend(job.id, wire.value_frames(value))
        if line:
            text = {"stream": "stdout", "text": line.format(n=n)}
            plane.journal_extend(f"{job.id}.log", wire.value_frames(text))
        time.sleep(pause)
    with contextlib.suppress(errors.DispatchError):  # it was cancelled
        plane.ack(job.id, "w", frame=wire.end_frame(0))


def begin(values, pause=0.05, line="line {n}\n", hold=None):
    """Let a thread do the work."""
    threading.Thread(target=work, args=(values, pause, line, hold), daemon=True).start()


def train(total, pause=0.05, hold=None):
    """Submit a training job, show it, and let a thread do it; returns its id."""
    id = submit()
    show_job(plane, id, name="train")
    begin([training(n, total) for n in range(total)], pause, hold=hold)
    return id


def flood(total, rate):
    """Submit a job, show it, and append frames at a rate; returns its id."""
    id = submit()
    show_job(plane, id, name="flood")

    def body():
        plane.claim("gpu", "w")
        began = time.monotonic()
        for n in range(0, total, 250):
            frames = [wire.value_frames({"n": k, "loss": 1 / (k + 1)})[0] for k in range(n, n + 250)]
            plane.journal_extend(id, frames)
            time.sleep(max(0.0, began + (n + 250) / rate - time.monotonic()))
        plane.ack(id, "w", frame=wire.end_frame(0))

    threading.Thread(target=body, daemon=True).start()
    return id
