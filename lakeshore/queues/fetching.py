"""`q.fetch`: a file that a job wrote, wherever it wrote it, as a path here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lakeshore import settings, wire
from lakeshore.context import current
from lakeshore.errors import UnknownInvocation, UnpackError
from lakeshore.keys import KeyNotFound, inside, join
from lakeshore.planes import files
from lakeshore.planes.contract import Plane, check_id


def fetch(plane: Plane, inv_id: str, key: str, dest: str | os.PathLike[str] | None) -> Path:
    """Return the path of what a job wrote under `key`; see `SyncQueue.fetch`."""
    data = plane.envelope(check_id(inv_id))
    if data is None:
        raise UnknownInvocation(f"fetch: no invocation {inv_id!r} here. Check the id and the plane.")
    try:
        prefix = wire.Envelope.from_bytes(data).prefix
    except UnpackError:  # a plain payload, of a program that claims by hand
        prefix = ""
    full = join(prefix, key, "key")
    channel = files.channel_of(plane)
    if channel is None:
        return _from_here(inv_id, key, full, dest)
    target = files.home_of(settings.read().home, inv_id, full) if dest is None else _place(dest, full)
    if not files.fetch(channel, files.JOBS, files.job_key(inv_id, full), target):
        row = plane.get(inv_id)
        state = "gone" if row is None else row["state"]
        raise KeyNotFound(
            f"fetch: {inv_id!r} ({state}) has stored no file {key!r}. A job's files are stored when it has "
            "succeeded, or as it yields their keys; check the key, and that its worker runs with this server."
        )
    return target


def _from_here(inv_id: str, key: str, full: str, dest: str | os.PathLike[str] | None) -> Path:
    root = current().root
    path = inside(root, full, "key", key)
    if not path.exists():
        raise KeyNotFound(
            f"fetch: key {key!r} of {inv_id!r} has no file at {str(path)!r}. On a local plane files stay in "
            "the worker's root: fetch within scope('', root=...) of that root."
        )
    if dest is None:
        return path
    target = _place(dest, full)
    if target.exists() and target.samefile(path):
        return target
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return target


def _place(dest: str | os.PathLike[str], full: str) -> Path:
    """Return the path that a destination means: a folder, or what ends in a slash, is one to put it in.

    Raises
    ------
    ValueError
        When it lies within what is a file.
    """
    text = os.fspath(dest)
    place = Path(text).expanduser().absolute()
    target = place / Path(full).name if text.endswith(("/", os.sep)) or place.is_dir() else place
    lowest = next(folder for folder in target.parents if folder.exists())
    if not lowest.is_dir():
        raise ValueError(f"fetch: dest {text!r}: {str(lowest)!r} is a file. Name a folder, or another path.")
    return target
