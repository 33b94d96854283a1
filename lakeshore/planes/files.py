"""Files by key between machines: what a job wrote goes to the control plane, and comes from there.

Each file is stored twice by name and once by content: under its key, where the next job's `run.read` looks,
and under its job's id, where `q.fetch` finds what that very job wrote. A folder travels as an archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote

from lakeshore import copies
from lakeshore.codebase.archive import Entry, pack
from lakeshore.codebase.names import Names
from lakeshore.codebase.unpack import Bounds, unpack
from lakeshore.errors import DispatchError, KeyContractError
from lakeshore.keys import inside
from lakeshore.planes.protocol_files import FILE, FOLDER

FILES: Final = "files"
"""The storage of keys, whoever wrote them; the last that was written is what is read."""
JOBS: Final = "jobs"
"""The storage of what each job wrote, by its id."""
_log = logging.getLogger("lakeshore.files")
_READ: Final = 1024 * 1024
_FOLDER_BOUNDS: Final = Bounds(bytes=1 << 40, ratio=2000, ratio_from=1 << 30)


class Channel(Protocol):
    """What carries files: a control plane's client."""

    @property
    def keeps_files(self) -> bool:
        """Whether the control plane has a place for files."""
        ...

    def put_file(
        self,
        storage: str,
        key: str,
        file: IO[bytes],
        size: int,
        digest: str,
        media: str = ...,
        *,
        claim: tuple[str, int] | None = ...,
    ) -> None:
        """Store a file, under a claim where one is given."""
        ...

    def get_file(self, storage: str, key: str, into: IO[bytes], *, most: int = ...) -> str | None:
        """Write a stored file of at most `most` bytes to `into`; None where there is none."""
        ...


def channel_of(plane: object) -> Channel | None:
    """Return what carries the files of a plane's jobs; None for a plane on this machine."""
    return cast(Channel, plane) if hasattr(plane, "put_file") else None


def job_key(inv_id: str, full: str) -> str:
    """Return the key in `JOBS` of what a job wrote under `full`, a path from the root."""
    name = quote(inv_id, safe="")
    if name.startswith(".") or len(name) > 200:
        name = f"id-{hashlib.sha256(inv_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"{name}/{full}"


def job_of(key: str) -> str | None:
    """Return the id of the job whose key in `JOBS` this is; None where the key does not tell."""
    name = key.partition("/")[0]
    id = unquote(name)
    is_told = bool(id) and not id.startswith("id-") and job_key(id, "") == f"{name}/"
    return id if is_told else None


def publish(channel: Channel, inv_id: str, fence: int, root: Path, keys: Iterable[str]) -> None:
    """Store what a job wrote under these keys (paths from the root), each whole.

    Raises
    ------
    ClaimLost
        When the claim of this fence is no longer current: what the next attempt wrote stays as it is.
    KeyContractError
        When one is missing, a pipe, a socket or a device, or a link leads it out of the root.
    DispatchError
        When one is too large, changes while it is sent, or is a folder that holds more than plain files.
    PlaneUnavailable
        When the control plane does not answer.
    """
    for full in keys:
        with _opened(inside(root, full, "key", full), full) as (file, media):
            size, digest = _measured(file)
            claim = (inv_id, fence)
            channel.put_file(JOBS, job_key(inv_id, full), file, size, digest, media, claim=claim)
            channel.put_file(FILES, full, file, size, digest, media, claim=claim)


def bring(channel: Channel, full: str, path: Path) -> bool:
    """Bring a key to its place under a root, for jobs to read; as `fetch`, and remembered as a copy.

    A copy that was written to since it came is put aside as ``.changed-<name>``.
    """
    if not copies.is_changed(path):
        return fetch(channel, FILES, full, path, copy=True)
    aside = path.with_name(f".changed-{path.name[:50]}")
    _log.warning(
        "key %r was brought to %r and written to there since; it is brought again, and what was there is "
        "kept as %r. Write only to the path that run.write gives.",
        full,
        str(path),
        aside.name,
    )
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another job does the same
        path.rename(aside)
    if not fetch(channel, FILES, full, path, copy=True):
        with contextlib.suppress(FileNotFoundError):
            aside.rename(path)
    return True


def fetch(channel: Channel, storage: str, key: str, target: Path, *, copy: bool = False) -> bool:
    """Bring a stored file (or folder) to `target` in one step; False where there is none of this key.

    What is there is replaced.

    Parameters
    ----------
    copy : bool
        Remember it as a copy, for `lakeshore.copies` to tell whether it was written to. Default False.

    Raises
    ------
    DispatchError
        When it is not what was stored, or the folder of `target` takes no file.
    PlaneUnavailable
        When the control plane does not answer.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(prefix=".fetching-", dir=target.parent))
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise DispatchError(
            f"key {key!r}: nothing can be written in {str(target.parent)!r}: {why}. Name another place."
        ) from None
    try:
        with (begun / "file").open("w+b") as file:
            media = channel.get_file(storage, key, file)
            if media is None:
                return False
            file.flush()
            if media == FOLDER:
                file.seek(0)
                (begun / "folder").mkdir()
                unpack(file, begun / "folder", _FOLDER_BOUNDS)
        stamp = copies.stamped(begun / ("folder" if media == FOLDER else "file")) if copy else None
        if media != FOLDER:
            (begun / "file").replace(target)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                target.rename(begun / "before")
            try:
                (begun / "folder").rename(target)
            except OSError:
                if not target.is_dir():  # else another process brought it meanwhile
                    raise
                return True
        if stamp is None:
            copies.own(target)
        else:
            copies.mark(target, stamp)
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return True


@contextlib.contextmanager
def _opened(path: Path, full: str) -> Iterator[tuple[BinaryIO, str]]:
    """Give what is stored for a path: the file itself, or a folder's archive."""
    if not path.is_dir():
        with _plain(path, full) as file:
            yield file, FILE
        return
    with tempfile.TemporaryFile(prefix="lakeshore-folder-") as archive:
        problem = ""
        try:
            pack(_entries(path, full), archive, level=1)
        except ValueError as exc:
            problem = str(exc)
        if problem:
            raise DispatchError(f"key {full!r}: the folder cannot travel: {problem}")
        yield cast(BinaryIO, archive), FOLDER


def _entries(top: Path, full: str) -> Iterator[Entry]:
    names = Names()
    for here, folders, files in os.walk(top):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = Path(here, name)
            relative = path.relative_to(top).as_posix()
            is_folder = path.is_dir() and not path.is_symlink()
            why = names.add(relative, folder=is_folder)
            if why is None and not is_folder and (path.is_symlink() or not path.is_file()):
                why = "is a link or no plain file"
            if why is not None:
                raise DispatchError(
                    f"key {full!r}: the folder cannot travel: {relative!r} {why}. Leave it out, or rename it."
                )
            if is_folder:
                yield Entry(relative, folder=True)
            else:
                found = path.stat()
                yield Entry(relative, found.st_size, _parts(path, full), bool(found.st_mode & 0o100))


def _plain(path: Path, full: str) -> BinaryIO:
    """Open a regular file, and nothing that would have whoever opens it wait for another."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    except OSError as exc:
        why = exc.strerror
    else:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        why = "is a pipe, a socket or a device"
    raise KeyContractError(
        f"key {full!r}: {str(path)!r} cannot be stored: {why}. Write a regular file, or a folder."
    )


def _parts(path: Path, full: str) -> Iterator[bytes]:
    with _plain(path, full) as file:
        while part := file.read(_READ):
            yield part


def _measured(file: IO[bytes]) -> tuple[int, str]:
    hashed, size = hashlib.sha256(), 0
    file.seek(0)
    while part := file.read(_READ):
        hashed.update(part)
        size += len(part)
    return size, hashed.hexdigest()


def home_of(home: Path, inv_id: str, full: str) -> Path:
    """Return where `q.fetch` puts a file that it is given no place for."""
    return home / "files" / job_key(inv_id, full)


def connection_of(plane: Any) -> dict[str, Any] | None:
    """Return what another process of this user needs to reach the same control plane; holds the token.

    For a worker's own child alone, over their own line.
    """
    tell = getattr(plane, "_connection", None)
    return None if tell is None else tell()
