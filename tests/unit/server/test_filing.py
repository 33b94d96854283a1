"""Uploads in parts, however they overlap, take no more of the disk than what they announced."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lakeshore.server import filing
from lakeshore.server.answers import Refusal
from lakeshore.server.filing import Filing, Place
from lakeshore.server.shelf import shelf_at

PLACE = Place("default", "files", "k")
DATA = bytes(range(100))
DIGEST = hashlib.sha256(DATA).hexdigest()


def _add(room: Filing, first: int, size: int, digest: str = DIGEST) -> None:
    with room.shelf.scratch() as file:
        file.write_bytes(DATA[first : first + size])
        room.add(PLACE, file, first, size, len(DATA), digest)


def _kept(base: Path) -> int:
    return sum(each.stat().st_size for each in base.rglob("*") if each.is_file())


def test_parts_that_overlap_take_no_more_than_their_upload(tmp_path: Path) -> None:
    room = Filing(shelf_at(tmp_path))
    for size in range(1, 40):
        _add(room, 0, size)
    assert _kept(tmp_path) == 39
    with pytest.raises(ValueError, match="overlap"):
        for first in range(1, 100):
            _add(room, first, 100 - first)
    assert _kept(tmp_path) <= len(DATA)


def test_an_upload_that_goes_on_in_other_steps_ends(tmp_path: Path) -> None:
    room = Filing(shelf_at(tmp_path))
    for first, size in ((0, 30), (0, 20), (20, 10), (30, 30), (60, 40)):
        _add(room, first, size)
    assert room.finish(PLACE, len(DATA), DIGEST, "x").size == len(DATA)


def test_a_namespace_has_so_many_unfinished_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filing, "UPLOADS", 3)
    room = Filing(shelf_at(tmp_path))
    for n in range(3):
        _add(room, 0, 10, digest=f"{n:064}")
    with pytest.raises(Refusal, match="unfinished"):
        _add(room, 0, 10)
    _add(room, 10, 10, digest=f"{0:064}")
