"""Pruning on PostgreSQL: many rows by one statement, and frames by days, whose partitions are dropped whole.

Frames of a pruned job stay until no journal of their day is left: to drop a table costs the same however
large it is, and leaves nothing to vacuum. Where days are not emptied one after the other they go by rows:
topics, what is older than the partitions, and a day of which others (another namespace, a state that is kept)
stay.
"""

from __future__ import annotations

from typing import Any

from lakeshore.planes.engine import Transaction
from lakeshore.planes.store_prune import Pruning


class PruningByDays(Pruning):
    """Delete what ended long ago, frames by whole days."""

    _prune_batch = 500

    def _prune_rows(self, tx: Transaction, rows: list[tuple[Any, ...]], cut: float) -> int:
        seqs = "{" + ",".join(str(seq) for seq, _ in rows) + "}"
        removed, by_rows = tx.rows("prune_rows", {"seqs": seqs, "cut": cut})[0]
        if by_rows:
            tx.rows("prune_frames_of", {"jids": by_rows})
        return int(removed)

    def _prune_rest(self, older_than: float) -> None:
        while self._write(lambda tx: tx.rows("drop_day", {})[0][0]) is not None:
            pass
        asked = {"older_than": str(older_than)}
        for first, end in self._read(lambda tx: tx.rows("days_that_stay", asked)):
            self._write(lambda tx, day=first: tx.rows("go_by_rows", {"jid": day}))  # type: ignore[misc]
            self._prune_orphans(first, end)

    def _prune_orphans(self, first: int, end: int) -> None:
        """Delete, some at a time, the frames from `first` to before `end` whose journals are gone."""
        since: int | None = first
        while since is not None:
            some = {"since": since, "before": end}
            since = self._write(lambda tx, some=some: tx.rows("prune_orphans", some)[0][0])  # type: ignore[misc]
