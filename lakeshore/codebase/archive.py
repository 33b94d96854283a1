"""Files -> a gzipped tar that is the same bytes whoever packs them: no times, owners or order of a disk."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

BLOCK: Final = 512
_NAME_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One file (or folder) to pack.

    Attributes
    ----------
    path : str
        Relative, with ``/``; a name that `names.fault` finds no fault in.
    size : int
        Bytes that `parts` gives in all.
    parts : iterable of bytes
        The content.
    executable, folder : bool
        A folder has no content.
    """

    path: str
    size: int = 0
    parts: Iterable[bytes] = ()
    executable: bool = False
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written: the archive's digest (``"sha256:<hex>"``), its bytes, and those of what it holds."""

    digest: str
    size_bytes: int
    unpacked_bytes: int


def pack(entries: Iterable[Entry], into: BinaryIO, *, level: int = 6) -> Packed:
    """Write an archive of `entries`, in the order given.

    Raises
    ------
    ValueError
        When an entry's content is not as long as its size says.
    """
    squeeze = zlib.compressobj(level, zlib.DEFLATED, 31)
    digest, size, unpacked = hashlib.sha256(), 0, 0
    for block in _tar(entries):
        unpacked += len(block)
        out = squeeze.compress(block)
        if out:
            digest.update(out)
            size += into.write(out)
    out = squeeze.flush()
    digest.update(out)
    size += into.write(out)
    return Packed(f"sha256:{digest.hexdigest()}", size, unpacked)


def _tar(entries: Iterable[Entry]) -> Iterator[bytes]:
    for entry in entries:
        name = entry.path.encode()
        if len(name) > _NAME_BYTES - 1:
            record = _record(b"path", name)
            yield _header(b"long", len(record), b"x", 0o644)
            yield record + _padding(len(record))
            name = name[: _NAME_BYTES - 1]
        kind, mode = (b"5", 0o755) if entry.folder else (b"0", 0o755 if entry.executable else 0o644)
        yield _header(name, entry.size, kind, mode)
        written = 0
        for part in entry.parts:
            written += len(part)
            yield part
        if written != entry.size:
            raise ValueError(
                f"{entry.path!r} changed while it was read ({entry.size:,} -> {written:,} bytes)"
            )
        yield _padding(written)
    yield bytes(2 * BLOCK)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def _record(name: bytes, value: bytes) -> bytes:
    """Return a pax record, whose length counts itself."""
    tail = b" " + name + b"=" + value + b"\n"
    size = len(tail)
    while len(str(size)) + len(tail) != size:
        size = len(str(size)) + len(tail)
    return str(size).encode() + tail


def _header(name: bytes, size: int, kind: bytes, mode: int) -> bytes:
    if size >= 8**11:
        raise ValueError(f"{name!r}: {size:,} bytes are more than a tar can tell of")
    head = b"".join(
        (
            name.ljust(_NAME_BYTES, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,
            b"%07o\0" % 0,
            b"%011o\0" % size,
            b"%011o\0" % 0,
            b" " * 8,
            kind,
            bytes(100),
            b"ustar\x0000",
        )
    ).ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]
