"""Many journals and rows of a namespace, each kind looked at by one statement, for who watches hundreds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from lakeshore.planes.contract import check_id
from lakeshore.planes.engine import Engine
from lakeshore.planes.store_journals import _stem
from lakeshore.states import TERMINAL


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a journal is, seen from a cursor.

    Attributes
    ----------
    more : bool
        Whether there may be frames after the cursor.
    finished : bool
        Whether no more will come.
    """

    more: bool
    finished: bool


def reached(plane: Engine, cursors: Sequence[tuple[str, int]]) -> list[Reached]:
    """Return how far each journal is from its cursor (-1 for the start), in their order."""
    if not cursors:
        return []
    names = json.dumps([[journal, _stem(journal)] for journal, _ in cursors])
    params = {"ns": plane._ns, "names": names}
    seen = plane._read(lambda tx: tx.rows("journal_states", params))
    found = [Reached(False, False)] * len(cursors)
    for place, state, jid, next_seq, attempt_seq, closed in seen:
        finished = state in TERMINAL or closed is not None
        more = False
        if jid is not None:
            cursor = cursors[place][1]
            last = next_seq - 1 if closed is None else min(closed, next_seq - 1)
            more = (attempt_seq - 1 if cursor == -1 else cursor) < last
        found[place] = Reached(more, finished)
    return found


def marks(plane: Engine, ids: Sequence[str]) -> dict[str, int]:
    """Return a mark of each row that there is; it changes with state, claim, error and priority."""
    if not ids:
        return {}
    params = {"ns": plane._ns, "names": json.dumps([check_id(id) for id in ids])}
    rows = plane._read(lambda tx: tx.rows("row_states", params))
    return {id: zlib.crc32(repr(shown).encode()) for id, *shown in rows}
