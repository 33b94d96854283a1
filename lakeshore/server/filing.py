"""Files by namespace, storage and key, on a shelf: uploads in parts, published whole under their digest.

A key is a small record that names a content by its SHA-256. So a reader that goes on after a cut goes on with
the same content, whatever was written to the key since; and nothing a client says is ever a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lakeshore.server.answers import Refusal
from lakeshore.server.shelf import Shelf

_LEFT_SECONDS: Final = 86400.0
UPLOADS: Final = 1000
"""The most unfinished uploads of a namespace."""
_TIDY_SECONDS: Final = 3600.0
_SWEEP_SECONDS: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Place:
    """Which file: its namespace, the storage's name, and its key there."""

    ns: str
    storage: str
    key: str

    @property
    def room(self) -> str:
        """The folder of all that its namespace has."""
        return _hash("ns", self.ns)

    @property
    def record(self) -> str:
        """Where its record stands."""
        return f"{self.room}/keys/{_hash('key', self.storage, self.key)}"

    def content(self, digest: str) -> str:
        """Where a content of its namespace lies."""
        return f"{self.room}/contents/{digest[:2]}/{digest}"

    def upload(self, total: int, digest: str) -> str:
        """Where the parts of one upload are gathered."""
        return f"{self.room}/uploads/{_hash('up', self.storage, self.key, str(total), digest)}"


@dataclass(frozen=True, slots=True)
class Record:
    """What a key holds: the content's SHA-256 (hex), its bytes, its media type, and since when (Unix)."""

    digest: str
    size: int
    media: str
    at: float


def _may() -> None:
    """Allow it."""


class Filing:
    """The files of one control plane. Every verb blocks."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._tidied = 0.0

    def find(self, place: Place) -> Record | None:
        """Return what a key holds, None where it holds nothing."""
        if self.shelf.size(place.record) is None:
            return None
        told = json.loads(b"".join(self.shelf.parts(place.record)))
        return Record(told["digest"], told["size"], told["media"], told["at"])

    def parts(self, place: Place, record: Record, first: int, size: int) -> Iterator[bytes]:
        """Yield a content's bytes from `first` on."""
        return self.shelf.parts(place.content(record.digest), first, size)

    def publish(
        self, place: Place, file: Path, size: int, digest: str, media: str, may: Callable[[], object] = _may
    ) -> Record:
        """Make a scratch file the content of a key; `may` is called last, and raises where it may not be."""
        content = place.content(digest)
        if not (self.shelf.size(content) == size and self.shelf.keep(content)):
            self.shelf.put(content, file)
        return self._record(place, Record(digest, size, media, time.time()), may)

    def known(
        self, place: Place, total: int, digest: str, media: str, may: Callable[[], object] = _may
    ) -> Record | None:
        """Give a key a content that its namespace has already; None where it has not."""
        content = place.content(digest)
        if self.shelf.size(content) != total or not self.shelf.keep(content):
            return None
        return self._record(place, Record(digest, total, media, time.time()), may)

    def _record(self, place: Place, record: Record, may: Callable[[], object]) -> Record:
        told = {"ns": place.ns, "storage": place.storage, "key": place.key, **asdict(record)}
        with self.shelf.scratch() as file:
            file.write_text(json.dumps(told), "utf-8")
            may()
            self.shelf.put(place.record, file)
        return record

    # -- what is not wanted any more ----------------------------------------------

    def sweep(self, ns: str, is_gone: Callable[[str, str], bool], *, seconds: float = _SWEEP_SECONDS) -> int:
        """Remove the keys that `is_gone` (storage, key) says are wanted no more, and contents without a key.

        Parameters
        ----------
        seconds : float
            What was stored so lately stays, whatever is said of it: its job, or its key, may be on the way.

        Returns
        -------
        int
            The bytes that were freed.
        """
        room = _hash("ns", ns)
        self.shelf.tidy(f"{room}/uploads", _LEFT_SECONDS)
        for name in self.shelf.old(f"{room}/keys", seconds):
            told = self._told(f"{room}/keys/{name}")
            if told is not None and is_gone(told["storage"], told["key"]):
                self.shelf.remove(f"{room}/keys/{name}", seconds)
        lone = {
            digest: size
            for beginning in self.shelf.names(f"{room}/contents")
            for digest, size in self.shelf.old(f"{room}/contents/{beginning}", seconds).items()
        }
        if lone:  # looked for before the keys are read: a key that is written meanwhile keeps its content
            for name in self.shelf.names(f"{room}/keys"):
                told = self._told(f"{room}/keys/{name}")
                lone.pop("" if told is None else told["digest"], None)
        freed = 0
        for digest, size in lone.items():
            freed += size if self.shelf.remove(f"{room}/contents/{digest[:2]}/{digest}", seconds) else 0
        return freed

    def _told(self, record: str) -> dict[str, Any] | None:
        try:
            told: dict[str, Any] = json.loads(b"".join(self.shelf.parts(record)))
        except FileNotFoundError:
            return None  # removed since
        return told

    # -- uploads in parts -------------------------------------------------------

    def add(self, place: Place, file: Path, first: int, size: int, total: int, digest: str) -> None:
        """Take a scratch file as a part of an upload; what is there already is not kept twice.

        Raises
        ------
        Refusal
            When its namespace has too many unfinished uploads.
        ValueError
            When the parts would hold more than the upload; they are gone then.
        """
        self._tidy(place)
        upload = place.upload(total, digest)
        parts = self.shelf.names(upload)
        if not parts and len(self.shelf.names(f"{place.room}/uploads")) >= UPLOADS:
            raise Refusal(
                "too_many",
                f"{UPLOADS:,} uploads of this namespace are unfinished, the most there may be. Finish some; "
                f"what is left unfinished is removed after {_LEFT_SECONDS / 86400:g} days.",
                retry_after=60,
            )
        if parts and first + size <= self.so_far(place, total, digest):
            return
        for name in [each for each in parts if each.startswith(f"{first:020d}-")]:
            if parts[name] >= size:
                return
            if self.shelf.remove(f"{upload}/{name}", 0.0):
                del parts[name]
        if sum(parts.values()) + size > total:
            self.shelf.drop(upload)
            raise ValueError(
                f"Content-Range: the parts hold more than the {total:,} bytes of the upload, so they "
                "overlap; they were dropped. Send it again from the start."
            )
        self.shelf.put(f"{upload}/{first:020d}-{size}", file)

    def so_far(self, place: Place, total: int, digest: str) -> int:
        """Return how many bytes of an upload there are from its start on, without a gap."""
        return sum(size for _, size in self._chain(place, total, digest))

    def _chain(self, place: Place, total: int, digest: str) -> list[tuple[str, int]]:
        at: dict[int, tuple[str, int]] = {}
        for name, size in self.shelf.names(place.upload(total, digest)).items():
            first, _, said = name.partition("-")
            if said == str(size) and size > at.get(int(first), ("", 0))[1]:
                at[int(first)] = (name, size)
        chain: list[tuple[str, int]] = []
        end = 0
        while end < total and end in at:
            chain.append(at[end])
            end += at[end][1]
        return chain

    def finish(
        self, place: Place, total: int, digest: str, media: str, may: Callable[[], object] = _may
    ) -> Record:
        """Put the parts of an upload together and publish them.

        Raises
        ------
        Refusal
            When they are not the content that was announced; the parts are gone then.
        """
        upload = place.upload(total, digest)
        with self.shelf.scratch() as whole:
            hashed, size = hashlib.sha256(), 0
            # a part may go meanwhile: another request has the whole upload too, and was first
            with whole.open("wb") as out, contextlib.suppress(FileNotFoundError):
                for name, length in self._chain(place, total, digest):
                    for part in self.shelf.parts(f"{upload}/{name}", 0, length):
                        hashed.update(part)
                        size += out.write(part)
            if size != total or hashed.hexdigest() != digest:
                again = self.known(
                    place, total, digest, media, may
                )  # another request was first, and tidied up
                if again is not None:
                    return again
                self.shelf.drop(upload)
                raise Refusal("bad_digest", wrong_digest(hashed.hexdigest(), digest))
            record = self.publish(place, whole, size, digest, media, may)
        self.shelf.drop(upload)
        return record

    def _tidy(self, place: Place) -> None:
        if time.monotonic() - self._tidied > _TIDY_SECONDS or not self._tidied:
            self._tidied = time.monotonic()
            self.shelf.tidy(f"{place.room}/uploads", _LEFT_SECONDS)


def wrong_digest(found: str, wanted: str) -> str:
    """Say that a content is not the one announced."""
    return (
        f"the content's SHA-256 is {found}, and {wanted} was announced: it was changed on the way, or "
        "while it was sent. Send it again from the start."
    )


def _hash(*names: str) -> str:
    told = "\0".join(f"{len(name)}:{name}" for name in names)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
