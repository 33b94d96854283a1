"""The unpacked code of a machine: ``LAKESHORE_HOME/code/<digest>``, each whole or not there.

A folder is named by its archive's digest and by nothing else. It is unpacked under another name and renamed,
so what a killed process leaves behind is never taken for code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from lakeshore.codebase.unpack import BOUNDS, Bounds, check_digest, unpack, verify

_BEGUN: Final = "unpacking-"
_BEGUN_SECONDS: Final = 86400.0
_UNUSED_SECONDS: Final = 30 * 86400.0


def folder_of(home: Path, digest: str, fetch: Callable[[BinaryIO], object], bounds: Bounds = BOUNDS) -> Path:
    """Return the folder that holds the code of this digest, unpacked now where it is not there yet.

    Parameters
    ----------
    home : Path
        LAKESHORE_HOME.
    digest : str
        ``"sha256:<hex>"`` of the archive.
    fetch : callable
        Writes the archive to the file it is given; called only where it is needed.

    Raises
    ------
    ArchiveRefused
        When what was fetched is not the archive of this digest, or may not be unpacked.
    """
    code = home / "code"
    target = code / check_digest(digest)
    if target.is_dir():
        with contextlib.suppress(OSError):  # when it was used last
            os.utime(target)
        return target
    code.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(code)
    begun = Path(tempfile.mkdtemp(prefix=_BEGUN, dir=code))
    try:
        tree = begun / "tree"
        with (begun / "archive").open("w+b") as archive:
            fetch(archive)
            archive.flush()
            archive.seek(0)
            verify(archive, digest)
            tree.mkdir(mode=0o755)
            unpack(archive, tree, bounds)
        os.sync()  # the name must not outlive the content in a power cut
        try:
            tree.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same code
                raise
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return target


def _sweep(code: Path) -> None:
    """Remove what was begun and left a day ago, and code that no job has used for a month."""
    now = time.time()
    for each in code.iterdir():
        begun = each.name.startswith(_BEGUN)
        try:
            age = now - each.stat().st_mtime
        except OSError:
            continue
        if age > (_BEGUN_SECONDS if begun else _UNUSED_SECONDS):
            doomed = each if begun else each.with_name(f"{_BEGUN}{each.name}")
            with contextlib.suppress(OSError):
                if not begun:
                    each.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
