"""`Job`: a claimed invocation in the hands of a program that is its own worker."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from lakeshore import wire
from lakeshore.errors import ClaimLost, LakeshoreError, UnpackError
from lakeshore.planes.contract import Claimed, Plane


class Job:
    """One claimed job, to be ended by `ack` or `nack`.

    Attributes
    ----------
    id, queue : str
    attempt, fence : int
        As in `Claimed`.
    payload : Any
        The decoded payload; the `Envelope` itself when a call was submitted.
    result : Any
        What `SyncQueue.working` acks at the end of its block; None unless set.
    """

    def __init__(self, plane: Plane, claimed: Claimed, worker_id: str, lease: float) -> None:
        self._plane, self._claimed, self._worker_id, self._lease = plane, claimed, worker_id, lease
        self.id, self.queue = claimed.id, claimed.queue
        self.attempt, self.fence = claimed.attempt, claimed.fence
        self.payload = _payload(claimed.envelope)
        self.result: Any = None
        self.ended = False

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, queue={self.queue!r}, attempt={self.attempt})"

    def heartbeat(self) -> None:
        """Extend the lease.

        Raises
        ------
        ClaimLost
            When the job is not this claim's any more.
        """
        self._plane.heartbeat(self.id, self._worker_id, lease=self._lease, fence=self.fence)

    def ack(self, result: Any = None) -> None:
        """End the job as succeeded with `result`.

        Raises
        ------
        ClaimLost
            When the job is not this claim's any more.
        PackError
            When the result has no form on the wire; the job is still yours.
        """
        self._plane.ack(self.id, self._worker_id, result=wire.pack(result), fence=self.fence)
        self.ended = True

    def nack(self, error: str | BaseException, *, retry: bool = True, delay: float = 0.0) -> None:
        """Give the job back for another attempt, or end it as failed (``retry=False``).

        Raises
        ------
        ClaimLost
            When the job is not this claim's any more.
        """
        told: str | dict[str, Any]
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(error))
            told = {"type": type(error).__name__, "message": str(error), "traceback": text}
        else:
            told = error
        self._plane.nack(self.id, self._worker_id, error=told, retry=retry, delay=delay, fence=self.fence)
        self.ended = True

    def release(self) -> None:
        """Hand the job back unharmed; the attempt does not count."""
        self._plane.release(self.id, self._worker_id, fence=self.fence)
        self.ended = True

    @contextlib.contextmanager
    def kept(self) -> Iterator[Job]:
        """Keep the lease while the block runs, then end the job: ack with `result`, or nack on an error."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._lease / 3):
                try:
                    self.heartbeat()
                except ClaimLost:
                    return
                except LakeshoreError:  # the plane is away: the next beat may find it again
                    continue

        keeper = threading.Thread(target=beat, name=f"lakeshore-lease-{self.id}", daemon=True)
        keeper.start()
        try:
            try:
                yield self
            finally:
                done.set()
        except BaseException as error:
            if not self.ended:
                self.nack(error)
            raise
        if not self.ended:
            self.ack(self.result)


def new_worker_id() -> str:
    """Make a worker id that tells where it runs: ``host-pid-random``."""
    return f"{id_prefix(os.getpid())}{os.urandom(3).hex()}"


def id_prefix(pid: int) -> str:
    """Return how the worker ids of a process of this machine begin."""
    host = "".join(c for c in socket.gethostname() if c.isprintable())[:100] or "host"
    return f"{host}-{pid}-"


def _payload(envelope: bytes) -> Any:
    try:
        return wire.Envelope.from_bytes(envelope)
    except UnpackError:
        return wire.unpack(envelope)
