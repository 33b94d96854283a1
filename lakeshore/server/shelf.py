"""Where a control plane keeps files: a local folder, or what fsspec reaches (``s3://bucket/path``).

An object is whole or not there. What a name means is none of this room's business.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from lakeshore.codebase.git import clean_url
from lakeshore.errors import PlaneUnavailable

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a full disk raises."""
_READ: Final = 1024 * 1024
_BEGUN: Final = ".begun"
_FRESH_SECONDS: Final = 43200.0
"""What is younger needs no renewal: a sweep takes nothing of the last day."""
_CREDENTIAL: Final = re.compile(r"//[^/@\s]*@")
_BUCKETS: Final = frozenset({"s3", "s3a", "gs", "gcs"})
_OBJECT_STORES: Final = _BUCKETS | {"abfs", "abfss", "az", "memory"}
"""Where a write that was broken off leaves nothing."""


class Shelf(Protocol):
    """Objects by name. Every verb blocks."""

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Give a local file to write to, which `put` may take; removed at the end where it was not."""
        ...

    def put(self, name: str, file: Path) -> None:
        """Make a scratch file the object of this name, in one step."""
        ...

    def size(self, name: str) -> int | None:
        """Return an object's bytes; None where there is none."""
        ...

    def parts(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield an object's bytes from `first` on."""
        ...

    def names(self, folder: str) -> dict[str, int]:
        """Return the names in a folder, with their bytes."""
        ...

    def drop(self, folder: str) -> None:
        """Remove a folder and all in it."""
        ...

    def tidy(self, folder: str, seconds: float) -> None:
        """Remove what stands in a folder unchanged for so long."""
        ...

    def keep(self, name: str) -> bool:
        """Make an object as new, so that no sweep takes it for old; False where there is none."""
        ...

    def old(self, folder: str, seconds: float) -> dict[str, int]:
        """Return the objects of a folder that stand unchanged for so long, with their bytes."""
        ...

    def remove(self, name: str, seconds: float) -> bool:
        """Remove an object unless it changed within `seconds`; False where it stays, or is gone."""
        ...


def shelf_at(place: str | Path) -> Shelf:
    """Return the shelf at a folder or an fsspec URL.

    Raises
    ------
    PlaneUnavailable
        When the package that reaches it is not installed, or it cannot be reached.
    """
    if isinstance(place, Path) or "://" not in place:
        return Folder(Path(place))
    return Remote(place)


class Folder:
    """A local folder."""

    def __init__(self, base: Path) -> None:
        self._base = base
        base.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a file on the folder's own disk."""
        folder = self._base / "scratch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=folder)
        os.close(fd)
        file = Path(name)
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)

    def put(self, name: str, file: Path) -> None:
        """Rename the file into place, its content on disk first."""
        target = self._base / name
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        while True:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                file.replace(target)
            except FileNotFoundError:  # another upload's end removed the folder since
                if not file.exists():
                    raise
            else:
                return

    def size(self, name: str) -> int | None:
        """Return a file's bytes."""
        try:
            return (self._base / name).stat().st_size
        except FileNotFoundError:
            return None

    def parts(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes."""
        with (self._base / name).open("rb") as file:
            file.seek(first)
            yield from _parts(file, size)

    def names(self, folder: str) -> dict[str, int]:
        """Return the files of a folder."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for each in os.scandir(self._base / folder):
                with contextlib.suppress(FileNotFoundError):
                    found[each.name] = each.stat().st_size
        return found

    def drop(self, folder: str) -> None:
        """Remove a folder."""
        shutil.rmtree(self._base / folder, ignore_errors=True)

    def tidy(self, folder: str, seconds: float) -> None:
        """Remove what is old."""
        for place in (self._base / folder, self._base / "scratch"):
            for name in self._old(place, seconds):
                if (place / name).is_dir():
                    shutil.rmtree(place / name, ignore_errors=True)
                else:
                    (place / name).unlink(missing_ok=True)

    def keep(self, name: str) -> bool:
        """Set a file's time to now."""
        try:
            os.utime(self._base / name)
        except FileNotFoundError:
            return False
        return True

    def old(self, folder: str, seconds: float) -> dict[str, int]:
        """Return the files of a folder that are old."""
        found = self.names(folder)
        return {name: found[name] for name in self._old(self._base / folder, seconds) if name in found}

    def remove(self, name: str, seconds: float) -> bool:
        """Remove a file that is old."""
        path = self._base / name
        try:
            if time.time() - path.stat().st_mtime < seconds:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _old(place: Path, seconds: float) -> list[str]:
        old = []
        with contextlib.suppress(FileNotFoundError):
            for each in os.scandir(place):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - each.stat().st_mtime > seconds:
                        old.append(each.name)
        return old


class Remote:
    """What fsspec reaches. Whatever it raises comes out as `PlaneUnavailable`, without a credential."""

    def __init__(self, url: str) -> None:
        self._shown = clean_url(url)
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise PlaneUnavailable(
                f"storage {self._shown!r}: wants the package fsspec (and, for s3://, s3fs). "
                "Install it: pip install 'jupyter-lakeshore[storage]' s3fs"
            ) from None
        with self._told("opened"):
            self._fs, path = fsspec.core.url_to_fs(url)
            self._base = str(path).rstrip("/")
            protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
            self._direct = bool(protocols & _OBJECT_STORES)
            if protocols & _BUCKETS and not self._fs.exists(self._base.partition("/")[0]):
                raise FileNotFoundError("there is no such bucket")

    @contextlib.contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Raise what goes wrong within as ours, but for an object that one reads and that is not there."""
        said = ""
        try:
            yield
        except PlaneUnavailable:
            raise
        except FileNotFoundError as exc:
            if verb == "read":
                raise
            said = f"{exc or 'not found'}: make the bucket, or check its name"
        except PermissionError as exc:
            said = f"{exc}: check the credentials that the server was started with"
        except OSError as exc:
            if exc.errno in FULL:
                raise
            said = f"{type(exc).__name__}: {exc}"
        except Exception as exc:  # noqa: BLE001 - each kind of storage has errors of its own
            said = f"{type(exc).__name__}: {exc}"
        if said:
            line = " ".join(_CREDENTIAL.sub("//***@", said).split())[:300].rstrip(".")
            raise PlaneUnavailable(
                f"storage {self._shown!r} could not be {verb} ({line}). Check that it is there and that the "
                "server may read, write and list it."
            )

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a file of the system's temporary folder."""
        fd, name = tempfile.mkstemp(prefix="lakeshore-storage-")
        os.close(fd)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def put(self, name: str, file: Path) -> None:
        """Upload the file."""
        target = f"{self._base}/{name}"
        with self._told("written"):
            if self._direct:
                self._fs.put_file(str(file), target)
                return
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            begun = f"{target}.{os.urandom(6).hex()}{_BEGUN}"
            self._fs.put_file(str(file), begun)
            self._fs.mv(begun, target)

    def size(self, name: str) -> int | None:
        """Return an object's bytes."""
        row = self._row(name)
        return None if row is None else int(row["size"])

    def _row(self, name: str) -> dict[str, Any] | None:
        try:
            with self._told("read"):
                self._fs.invalidate_cache()
                row: dict[str, Any] = self._fs.info(f"{self._base}/{name}")
        except FileNotFoundError:
            return None
        return row

    def parts(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield an object's bytes."""
        with self._told("read"):
            file = self._fs.open(f"{self._base}/{name}", "rb", cache_type="readahead")
        with file:
            with self._told("read"):
                file.seek(first)
            parts = _parts(file, size)
            while True:
                with self._told("read"):
                    part = next(parts, None)
                if part is None:
                    return
                yield part

    def names(self, folder: str) -> dict[str, int]:
        """Return the objects of a folder."""
        return {name: int(row["size"] or 0) for name, row in self._rows(folder).items()}

    def _rows(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            with self._told("read"):
                self._fs.invalidate_cache()
                rows = self._fs.ls(f"{self._base}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        named = {str(row["name"]).rstrip("/").rpartition("/")[2]: row for row in rows}
        return {name: row for name, row in named.items() if name and not name.endswith(_BEGUN)}

    def drop(self, folder: str) -> None:
        """Remove a folder."""
        with contextlib.suppress(FileNotFoundError), self._told("read"):
            self._fs.rm(f"{self._base}/{folder}", recursive=True)

    def tidy(self, folder: str, seconds: float) -> None:
        """Remove what is old: of a folder in it, whose newest object is."""
        newest: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError), self._told("read"):
            self._fs.invalidate_cache()
            for path, row in self._fs.find(f"{self._base}/{folder}/", detail=True).items():
                name, at = path.partition(f"{folder}/")[2].partition("/")[0], _changed(row)
                newest[name] = max(newest.get(name, 0.0), math.inf if at is None else at)
        for name, at in newest.items():
            if name and time.time() - at > seconds:
                self.drop(f"{folder}/{name}")

    def keep(self, name: str) -> bool:
        """Make an object as new where it is getting old, by copies within the store."""
        row = self._row(name)
        if row is None:
            return False
        at = _changed(row)
        if at is None or time.time() - at < _FRESH_SECONDS:
            return True
        if not self._direct:
            return False  # it is sent again
        path = f"{self._base}/{name}"
        copy = f"{path}.{os.urandom(6).hex()}{_BEGUN}"
        try:
            with self._told("read"):
                self._fs.copy(path, copy)
                self._fs.copy(copy, path)
        except FileNotFoundError:
            return False
        finally:
            self.drop(copy.removeprefix(f"{self._base}/"))
        return True

    def old(self, folder: str, seconds: float) -> dict[str, int]:
        """Return the objects of a folder that are old, by the store's clock."""
        return {
            name: int(row["size"] or 0)
            for name, row in self._rows(folder).items()
            if (at := _changed(row)) is not None and time.time() - at > seconds
        }

    def remove(self, name: str, seconds: float) -> bool:
        """Remove an object that is old."""
        row = self._row(name)
        at = None if row is None else _changed(row)
        if at is None or time.time() - at < seconds:
            return False
        self.drop(name)
        return True


def _changed(row: dict[str, Any]) -> float | None:
    """Return when an object was written (Unix), None where its store does not say."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        at = row.get(name)
        if isinstance(at, str):
            with contextlib.suppress(ValueError):
                at = dt.datetime.fromisoformat(at)
        if isinstance(at, dt.datetime):
            return at.timestamp()
        if isinstance(at, (int, float)):
            return float(at)
    return None


def _parts(file: Any, size: int | None) -> Iterator[bytes]:
    left = size
    while left is None or left > 0:
        part = file.read(_READ if left is None else min(_READ, left))
        if not part:
            return
        if left is not None:
            left -= len(part)
        yield part
