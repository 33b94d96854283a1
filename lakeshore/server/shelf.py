"""Where a control plane keeps files: a local folder, or what fsspec reaches (``s3://bucket/path``).

An object is whole or not there. What a name means is none of this room's business.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from lakeshore.errors import PlaneUnavailable

_READ: Final = 1024 * 1024
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
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
    """What fsspec reaches."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise PlaneUnavailable(
                f"storage {url!r}: wants the package fsspec (and, for s3://, s3fs). "
                "Install it: pip install 'jupyter-lakeshore[storage]' s3fs"
            ) from None
        problem = ""
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as exc:
            problem = f"{type(exc).__name__}: {exc}"
        if problem:
            raise PlaneUnavailable(f"storage {url.partition('?')[0]!r} cannot be used ({problem})")
        self._base = str(path).rstrip("/")
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._direct = bool(protocols & _OBJECT_STORES)

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
        if self._direct:
            self._fs.put_file(str(file), target)
            return
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        begun = f"{target}.{os.urandom(6).hex()}.begun"
        self._fs.put_file(str(file), begun)
        self._fs.mv(begun, target)

    def size(self, name: str) -> int | None:
        """Return an object's bytes."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.size(f"{self._base}/{name}"))
        except FileNotFoundError:
            return None

    def parts(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield an object's bytes."""
        with self._fs.open(f"{self._base}/{name}", "rb") as file:
            file.seek(first)
            yield from _parts(file, size)

    def names(self, folder: str) -> dict[str, int]:
        """Return the objects of a folder."""
        self._fs.invalidate_cache()
        try:
            rows = self._fs.ls(f"{self._base}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        return {
            str(row["name"]).rpartition("/")[2]: int(row["size"] or 0)
            for row in rows
            if not str(row["name"]).endswith(".begun")
        }

    def drop(self, folder: str) -> None:
        """Remove a folder."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._base}/{folder}", recursive=True)

    def tidy(self, folder: str, seconds: float) -> None:
        """Leave that to the bucket's lifecycle rules: its times are not ours."""

    def keep(self, name: str) -> bool:
        """Whether it is there: nothing here is swept by age."""
        return self.size(name) is not None

    def old(self, folder: str, seconds: float) -> dict[str, int]:
        """Nothing: its times are not ours."""
        return {}

    def remove(self, name: str, seconds: float) -> bool:
        """Leave it."""
        return False


def _parts(file: Any, size: int | None) -> Iterator[bytes]:
    left = size
    while left is None or left > 0:
        part = file.read(_READ if left is None else min(_READ, left))
        if not part:
            return
        if left is not None:
            left -= len(part)
        yield part
