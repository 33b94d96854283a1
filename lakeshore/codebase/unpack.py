"""An archive -> a folder: regular files and folders under sound names, or nothing at all.

What comes here was made by whoever may submit. Anything else than a plain file or folder, a name that is
another file on some system, and more than the bounds refuse the archive whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from lakeshore.codebase.archive import BLOCK
from lakeshore.codebase.names import PATH_BYTES, Names
from lakeshore.errors import TransportError

_READ: Final = 256 * 1024
_EXTRA_BYTES: Final = 64 * 1024
_KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"7": "a reserved file",
    b"S": "a sparse file",
    b"K": "a long link",
    b"M": "a part of another archive",
    b"D": "a dumped folder",
}
_OCTAL: Final = re.compile(rb" *([0-7]+)[ \0]*")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class ArchiveRefused(TransportError):
    """An archive of code is damaged, not the one its digest names, or holds what no code needs."""

    code = "archive_refused"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an archive may come to when it is unpacked.

    Attributes
    ----------
    files : int
        Files and folders.
    bytes : int
        Bytes in all, the tar's own included.
    ratio, ratio_from : int
        Bytes for each byte of the archive, asked from so many bytes on.
    """

    files: int = 100_000
    bytes: int = 1 << 30
    ratio: int = 200
    ratio_from: int = 16 << 20


BOUNDS: Final = Bounds()


def check_digest(digest: object) -> str:
    """Return the hexadecimal part of ``"sha256:<hex>"``.

    Raises
    ------
    ArchiveRefused
        When it is nothing of the kind.
    """
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ArchiveRefused(f"code digest {digest!r:.100}: wants 'sha256:' and 64 hexadecimal digits")
    return digest.removeprefix("sha256:")


def verify(archive: BinaryIO, digest: str) -> None:
    """Hold a file against its digest, and go back to its start.

    Raises
    ------
    ArchiveRefused
        When it is another file.
    """
    wanted = check_digest(digest)
    hashed = hashlib.sha256()
    while part := archive.read(_READ):
        hashed.update(part)
    found = hashed.hexdigest()
    archive.seek(0)
    if found != wanted:
        raise ArchiveRefused(
            f"the code archive is not the one that was submitted: its digest is sha256:{found}, and "
            f"sha256:{wanted} was asked for. Submit the job again."
        )


def unpack(archive: BinaryIO, into: Path, bounds: Bounds = BOUNDS) -> int:
    """Unpack an archive into a folder that exists and is empty; returns the number of files.

    Raises
    ------
    ArchiveRefused
        At the first thing that may not be; what is in `into` by then is the caller's to remove.
    """
    stream, names, files = _Stream(archive, bounds), Names(), 0
    made: set[Path] = {into}
    for member in _members(stream):
        path = member.path[:-1] if member.folder and member.path.endswith("/") else member.path
        why = names.add(path, folder=member.folder)
        if why is not None:
            raise ArchiveRefused(f"the archive is refused: the name {path!r:.200} {why}")
        files += 1
        target = into / path
        _make(target if member.folder else target.parent, made)
        if files + len(made) > bounds.files:
            raise ArchiveRefused(
                f"the archive is refused: it holds more than {bounds.files:,} files and folders"
            )
        if not member.folder:
            _write(stream, target, member)
    return files


def _make(folder: Path, made: set[Path]) -> None:
    if folder not in made:
        _make(folder.parent, made)
        folder.mkdir(mode=0o755)
        made.add(folder)


def _write(stream: _Stream, target: Path, member: _Member) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(target, flags, 0o755 if member.executable else 0o644), "wb") as file:
        left = member.size
        while left:
            part = stream.read(min(left, _READ))
            file.write(part)
            left -= len(part)
    stream.skip(-member.size % BLOCK)


# ---- the tar


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    size: int
    executable: bool
    folder: bool


def _members(stream: _Stream) -> Iterator[_Member]:
    long: bytes | None = None
    while True:
        head = stream.read(BLOCK)
        if not any(head):
            if long is not None:
                raise _damaged("a long name without a file")
            stream.rest()
            return
        name, size, mode, kind = _header(head)
        if kind in (b"x", b"g", b"L"):
            extra = _extra(stream, size)
            if kind == b"g":
                _records(extra, {b"comment"})
                continue
            if long is not None:
                raise _damaged("two names for one file")
            found = extra.rstrip(b"\0") if kind == b"L" else _records(extra, {b"path", b"mtime"}).get(b"path")
            if found is not None and (not found or len(found) > PATH_BYTES + 1):
                raise ArchiveRefused("the archive is refused: a name is empty or too long")
            long = found
            continue
        if kind not in (b"0", b"\0", b"5"):
            what = _KINDS.get(kind, f"an entry of type {kind!r}")
            raise ArchiveRefused(
                f"the archive is refused: {name!r:.200} is {what}, and only files and folders are unpacked"
            )
        path, long = long or name, None
        folder = kind == b"5"
        if folder and size:
            raise _damaged(f"the folder {path!r:.200} has content")
        try:
            text = path.decode()
        except UnicodeDecodeError:
            raise ArchiveRefused(f"the archive is refused: the name {path!r:.200} is no UTF-8") from None
        yield _Member(text, size, bool(mode & 0o100), folder)


def _header(head: bytes) -> tuple[bytes, int, int, bytes]:
    """Return name, size, mode and type of a header."""
    posix = head[257:263] == b"ustar\0"
    if not posix and head[257:265] != b"ustar  \0":
        raise _damaged("no header of a tar where one should be")
    if _number(head[148:156]) != sum(head[:148]) + 32 * 8 + sum(head[156:]):
        raise _damaged("a header whose checksum is wrong")
    name = _text(head[:100])
    prefix = _text(head[345:500]) if posix else b""
    path = prefix + b"/" + name if prefix else name
    return path, _number(head[124:136]), _number(head[100:108]), head[156:157]


def _text(field: bytes) -> bytes:
    text, _, rest = field.partition(b"\0")
    if any(rest):
        raise _damaged("a name with more behind its end")
    return text


def _number(field: bytes) -> int:
    found = _OCTAL.fullmatch(field)
    if found is None:
        raise _damaged("a number that is none, or too large")
    return int(found[1], 8)


def _extra(stream: _Stream, size: int) -> bytes:
    if size > _EXTRA_BYTES:
        raise ArchiveRefused(f"the archive is refused: {size:,} bytes of extra header")
    extra = stream.read(size)
    stream.skip(-size % BLOCK)
    return extra


def _records(extra: bytes, allowed: set[bytes]) -> dict[bytes, bytes]:
    """Read pax records; any that is not allowed refuses the archive (sparse files, other names and sizes)."""
    found: dict[bytes, bytes] = {}
    while extra:
        size, space, _ = extra.partition(b" ")
        end = int(size) if space and size.isdigit() and len(size) < 7 else 0
        record = extra[len(size) + 1 : end]
        name, equals, value = record[:-1].partition(b"=")
        if end > len(extra) or not record.endswith(b"\n") or not equals or name in found:
            raise _damaged("an extra header that cannot be read")
        if name not in allowed or b"\0" in value:
            raise ArchiveRefused(f"the archive is refused: extra header {name!r:.100}")
        found[name] = value
        extra = extra[end:]
    return found


def _damaged(why: str) -> ArchiveRefused:
    return ArchiveRefused(f"the archive is refused: damaged ({why})")


class _Stream:
    """What a gzip file holds, within bounds."""

    def __init__(self, archive: BinaryIO, bounds: Bounds) -> None:
        self._archive, self._bounds = archive, bounds
        self._zip = zlib.decompressobj(31)
        self._held = bytearray()
        self._in = self._out = 0

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        while len(self._held) < size:
            if not self._more():
                raise _damaged("it ends too early")
        part = bytes(self._held[:size])
        del self._held[:size]
        return part

    def skip(self, size: int) -> None:
        """Pass over padding, which is all NUL."""
        if any(self.read(size)):
            raise _damaged("data in the padding")

    def rest(self) -> None:
        """Pass over the end, which is all NUL."""
        while True:
            if any(self._held):
                raise _damaged("data behind its end")
            self._held.clear()
            if not self._more():
                return

    def _more(self) -> bool:
        squeezed = self._zip.unconsumed_tail
        if not squeezed:
            if self._zip.eof:
                if self._zip.unused_data or self._archive.read(1):
                    raise _damaged("data behind its end")
                return False
            squeezed = self._archive.read(_READ)
            self._in += len(squeezed)
            if not squeezed:
                raise _damaged("it ends too early")
        try:
            out = self._zip.decompress(squeezed, _READ)
        except zlib.error:
            raise _damaged("no gzip, or its checksum is wrong") from None
        self._out += len(out)
        bounds = self._bounds
        if self._out > bounds.bytes:
            raise ArchiveRefused(f"the archive is refused: it unpacks to more than {bounds.bytes:,} bytes")
        if self._out > bounds.ratio_from and self._out > bounds.ratio * self._in:
            raise ArchiveRefused(
                f"the archive is refused: it unpacks to more than {bounds.ratio} times its size"
            )
        self._held += out
        return True
