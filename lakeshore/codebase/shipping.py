"""A work tree -> an archive and the stamp that travels with a job and names it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from lakeshore.codebase.archive import Entry, pack
from lakeshore.codebase.git import Blob, Contents, Repository, too_large
from lakeshore.codebase.names import Names
from lakeshore.codebase.unpack import BOUNDS

STORAGE: Final = "code"
"""The storage that holds archives of code."""
_LFS: Final = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a work tree ships.

    Attributes
    ----------
    stamp : dict
        ``remote commit branch dirty tree submodules`` as git has them, ``digest`` (of the archive),
        ``archiveKey storageName sizeBytes backend`` (where it is stored).
    paths : frozenset of str
        The files in it.
    notes : list of str
        What was left out, and why.
    archive : file
        The archive, at its start; open until the ``with`` ends.
    """

    stamp: dict[str, Any]
    paths: frozenset[str]
    notes: list[str]
    archive: IO[bytes]


@contextlib.contextmanager
def shipped(repository: Repository) -> Iterator[Shipment]:
    """Pack the work tree as it is now.

    Raises
    ------
    CodeUnavailable
        When git cannot be used.
    TransportError
        When the tree is too large for a worker to unpack; names the largest files.
    """
    with repository.looked_at() as look, tempfile.TemporaryFile(prefix="lakeshore-code-") as file:
        snapshot = look.snapshot
        notes = list(snapshot.notes)
        blobs = _sound(snapshot.blobs, notes)
        pointers: list[str] = []
        with look.contents() as contents:
            entries = (
                Entry(blob.path, blob.size, _parts(contents, blob, pointers), blob.executable)
                for blob in blobs
            )
            packed = pack(entries, file)
        file.seek(0)
        if pointers:
            notes.append(f"{len(pointers):,} Git LFS pointers ({pointers[0]!r}), whose content stays")
        if packed.unpacked_bytes > max(BOUNDS.ratio_from, BOUNDS.ratio * packed.size_bytes):
            raise too_large(
                f"the tree unpacks to more than {BOUNDS.ratio} times its archive, which no worker takes",
                [(blob.path, blob.size) for blob in blobs],
            )
        commit = snapshot.commit if snapshot.commit is not None and not snapshot.dirty else snapshot.tree
        stamp = {
            "backend": "git",
            "remote": snapshot.remote,
            "commit": commit,
            "base": snapshot.commit,
            "branch": snapshot.branch,
            "dirty": snapshot.dirty or snapshot.commit is None,
            "tree": snapshot.tree,
            "submodules": snapshot.submodules,
            "digest": packed.digest,
            "archiveKey": f"{packed.digest.removeprefix('sha256:')}.tar.gz",
            "storageName": STORAGE,
            "sizeBytes": packed.size_bytes,
        }
        yield Shipment(stamp, frozenset(blob.path for blob in blobs), notes, file)


def _sound(blobs: list[Blob], notes: list[str]) -> list[Blob]:
    """Return the files that unpack alike on every system, in the order of their names."""
    names, sound = Names(), []
    odd: list[str] = []
    for blob in sorted(blobs, key=lambda each: each.path):
        why = names.add(blob.path)
        if why is None:
            sound.append(blob)
        else:
            odd.append(f"{blob.path!r} {why}")
    if odd:
        more = f" and {len(odd) - 3:,} more" if len(odd) > 3 else ""
        notes.append(f"{'; '.join(odd[:3])}{more}")
    return sound


def _parts(contents: Contents, blob: Blob, pointers: list[str]) -> Iterator[bytes]:
    for n, part in enumerate(contents.parts(blob)):
        if n == 0 and blob.size <= _POINTER_BYTES and part.startswith(_LFS):
            pointers.append(blob.path)
        yield part


def roots(top: Path, file: Path, module: str, search: list[str], *, package: bool) -> list[str] | None:
    """Return the folders of a work tree that a worker is to import from, relative to `top`.

    Parameters
    ----------
    file, module, package
        The module's file, its dotted name, and whether the file is a package's ``__init__``.
    search : list of str
        ``sys.path`` of the submitter: its folders within the tree come along.

    Returns
    -------
    list of str or None
        The module's own first; None when its file does not lie where its name says.
    """
    real = top.resolve()
    parts = module.split(".")
    folder = file.resolve().parent
    expected = parts if package else parts[:-1]
    for part in reversed(expected):
        if folder.name != part:
            return None
        folder = folder.parent
    if not package and file.stem.partition(".")[0] != parts[-1]:
        return None
    found: list[str] = []
    for each in (folder, *(Path(entry or ".").resolve() for entry in search)):
        if each == real or real in each.parents:
            relative = each.relative_to(real).as_posix()
            if relative not in found and (each is folder or not _is_installed_place(each)):
                found.append(relative)
    return found if found and (folder == real or real in folder.parents) else None


def _is_installed_place(folder: Path) -> bool:
    """Whether a folder holds packages that were installed (a ``.venv`` in the tree)."""
    return folder.name in ("site-packages", "dist-packages") or folder.suffix == ".zip"
