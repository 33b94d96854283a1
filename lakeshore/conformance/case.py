"""What a rule works with: a plane, names of its own, and words for what must hold."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from lakeshore.planes.contract import Claimed, Plane

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
TINY_LEASE = 0.05
"""A lease that lapses while a rule waits, seconds."""


class Case:
    """One rule's plane and names; the worker is ``"w"`` where none is given.

    Attributes
    ----------
    plane : Plane
        The plane under test.
    queue : str
        A queue that no other rule uses.
    """

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self._tag = uuid.uuid4().hex[:12]
        self.queue = f"q-{self._tag}"

    def id(self, name: str = "a") -> str:
        """Return an id that no other rule uses."""
        return f"{self._tag}-{name}"

    def submit(self, name: str = "a", envelope: Any = b"e", **options: Any) -> str:
        """Submit to this case's queue."""
        return self.plane.submit(self.queue, envelope, id=self.id(name), **options)

    def claim(self, worker: str = "w", **options: Any) -> Claimed:
        """Claim from this case's queue; there must be a job."""
        claimed = self.plane.claim(self.queue, worker, **options)
        holds(claimed is not None, "claim returned None where a job is due")
        assert claimed is not None
        return claimed

    def claimed(self, name: str = "a", **options: Any) -> Claimed:
        """Submit a job and claim it."""
        self.submit(name)
        return self.claim(**options)

    def row(self, name: str = "a") -> dict[str, Any]:
        """Return a job's row, which must exist."""
        row = self.plane.get(self.id(name))
        holds(row is not None, f"get({name!r}) returned None")
        assert row is not None
        return row

    def state(self, name: str = "a") -> str:
        """Return a job's state."""
        return str(self.row(name)["state"])

    def read(self, journal: str | None = None, *, since: int = -1, timeout: float = 5.0) -> list[Any]:
        """Read a journal to its end; default the journal of the job ``"a"``."""
        return list(self.plane.journal_read(journal or self.id(), since=since, timeout=timeout))


def holds(condition: bool, otherwise: str) -> None:
    """Require `condition`."""
    if not condition:
        raise AssertionError(otherwise)


def same(got: object, want: object, what: str) -> None:
    """Require `got` to equal `want`."""
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, wants {want!r}")


def raises(error: type[E], what: str, call: Callable[..., object], /, *args: Any, **options: Any) -> E:
    """Require ``call(*args, **options)`` to raise `error`, and return what it raised."""
    try:
        answer = call(*args, **options)
    except error as raised:
        return raised
    raise AssertionError(f"{what}: returned {answer!r}, wants {error.__name__}")


def lapse(lease: float = TINY_LEASE) -> None:
    """Wait until a lease that was just given has lapsed."""
    time.sleep(lease + 0.02)


def together(n: int, call: Callable[[int], T]) -> list[T]:
    """Call with 0 to n-1 at once, in a thread each; return the answers, or raise the first failure."""
    answers: dict[int, T] = {}
    failures: list[BaseException] = []
    gate = threading.Barrier(n)

    def make(index: int) -> None:
        gate.wait()
        try:
            answers[index] = call(index)
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=make, args=(index,), daemon=True) for index in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    holds(len(answers) == n, "a call did not return within 60 s")
    return [answers[index] for index in range(n)]


def soon(wait: Callable[[], T], event: Callable[[], object], *, within: float, what: str) -> T:
    """Start `wait` in a thread, make `event` happen, and require the answer `within` seconds of it."""
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(wait())
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.15)  # let it block: the wake-up is what is tested
    holds(thread.is_alive(), f"{what}: did not wait (got {answers or failures})")
    event()
    began = time.monotonic()
    thread.join(30)
    took = time.monotonic() - began
    if failures:
        raise failures[0]
    holds(bool(answers), f"{what}: never woke")
    holds(took <= within, f"{what}: woke after {took:.2f} s, wants {within} s")
    return answers[0]
