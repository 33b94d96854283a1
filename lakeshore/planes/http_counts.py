"""The seqs of journals that this process writes to over HTTP.

A control plane assigns the next seq, so an append whose answer is lost cannot simply be repeated. Under a
fence this process is the journal's only writer: what it repeats, it repeats with the seqs the first try
was given if it landed. Servers in the field assign nothing: there the count itself is kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakeshore.planes.contract import SIBLINGS


@dataclass(slots=True)
class Count:
    """One journal's count; `lock` is held while an append is under way, so that seqs land in order.

    Attributes
    ----------
    fence : int or None
        The claim it belongs to.
    next : int or None
        The seq that the next frame gets; None while no answer has told.
    lost : tuple of bytes
        The frames of an append that was given up without an answer.
    """

    fence: int | None = None
    next: int | None = None
    lost: tuple[bytes, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def under(self, fence: int) -> None:
        """Begin anew where the claim is another one."""
        if self.fence != fence:
            self.fence, self.next, self.lost = fence, None, ()

    def numbered(self, n: int) -> range | None:
        """Return the seqs that the next `n` frames have if they landed; None where that cannot be known."""
        return None if self.next is None else range(self.next, self.next + n)

    def landed(self, last: int) -> None:
        """Take note of the last seq that an answer told."""
        self.next, self.lost = last + 1, ()


class Counts:
    """The counts by journal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Count] = {}

    def of(self, journal: str) -> Count:
        """Return the journal's count."""
        with self._lock:
            return self._counts.setdefault(journal, Count())

    def claimed(self, inv_id: str, fence: int, seqs: Sequence[int] | None = None) -> None:
        """Begin anew with a claim made here, at the seqs of its journals; the first finds them empty."""
        self.forget(inv_id)
        if fence == 1:
            seqs = [0] * (1 + len(SIBLINGS))
        if seqs is not None:
            with self._lock:
                for suffix, seq in zip(("", *SIBLINGS), seqs, strict=False):
                    self._counts[inv_id + suffix] = Count(fence=fence, next=seq)

    def forget(self, inv_id: str) -> None:
        """Drop the counts of an invocation and its siblings: it has ended, or was claimed anew."""
        with self._lock:
            for suffix in ("", *SIBLINGS):
                self._counts.pop(inv_id + suffix, None)
