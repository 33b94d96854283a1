"""Which files under a root are copies of what the control plane holds, and whether they still are.

A mark says how a copy was when it came; it lies in LAKESHORE_HOME, so that a root holds nothing but keys.
Who writes a key makes it his own. Without a mark a file is taken for what it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from lakeshore import settings


def stamped(path: Path) -> str:
    """Return what tells a file or folder that just came from the same one written to.

    Its files are given a time that is past and whole, which nobody who writes to them leaves.
    """
    when = (int(time.time()) - 1) * 1_000_000_000
    for each in _files(path):
        os.utime(each, ns=(when, when))
    return _stamp(path)


def mark(path: Path, stamp: str) -> None:
    """Remember a copy, as it came."""
    place = _place(path)
    with contextlib.suppress(OSError):  # a home that takes no mark: the copy is taken for what it is
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(stamp)


def own(path: Path, root: Path | None = None) -> None:
    """Forget that something was a copy, and each folder below `root` it lies in: it is written here now."""
    for each in (path, *path.parents):
        if each == root:
            break
        with contextlib.suppress(OSError):
            _place(each).unlink()
        if root is None:
            break


def is_changed(path: Path) -> bool:
    """Whether a copy was written to since it came."""
    try:
        return _place(path).read_text() != _stamp(path)
    except OSError:
        return False


def _place(path: Path) -> Path:
    real = os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118
    return settings.read().home / "copies" / hashlib.sha256(os.fsencode(real)).hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for here, folders, files in os.walk(path):
        folders.sort()
        yield from (Path(here, name) for name in sorted(files))


def _stamp(path: Path) -> str:
    hashed = hashlib.sha256()
    for each in _files(path):
        found = each.lstat()
        relative = os.fsencode(each.relative_to(path))
        hashed.update(b"%s\0%d %d %d\0" % (relative, found.st_ino, found.st_size, found.st_mtime_ns))
    return hashed.hexdigest()
