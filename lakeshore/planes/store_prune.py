"""The one verb that deletes: prune. A row goes together with its journals, its payloads and its key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakeshore.planes.contract import check_number
from lakeshore.planes.engine import Engine, Transaction, check_state, check_whole
from lakeshore.states import TERMINAL


class Pruning(Engine):
    """Delete what ended long ago."""

    _prune_batch = 100
    """Rows a transaction, so that no writer waits long behind a prune."""

    def prune(
        self,
        *,
        older_than: float,
        states: Iterable[str] = tuple(sorted(TERMINAL)),
        limit: int | None = None,
    ) -> int:
        """Delete rows that ended `older_than` seconds ago, with journals and keys; returns the rows.

        Topics silent for as long go too when all ended `states` are asked for and `limit` allows.
        """
        cut = self._now() - check_number(older_than, "older_than", minimum=0)
        wanted = {check_state(state) for state in ([states] if isinstance(states, str) else states)}
        if not wanted <= TERMINAL:
            raise ValueError(
                f"states {sorted(wanted)}: only ended rows are pruned: {', '.join(sorted(TERMINAL))}"
            )
        left = 2**62 if limit is None else check_whole(limit, "limit", 0)
        removed = 0
        for state in sorted(wanted):
            removed += self._prune_state(state, cut, left - removed)
        if wanted == TERMINAL and removed < left:
            while self._write(lambda tx: self._prune_topics(tx, cut)):
                pass
        self._prune_rest(older_than)
        return removed

    def _prune_rest(self, older_than: float) -> None:
        """Give back what lies about of rows that are gone; nothing does unless an engine leaves some."""

    def _prune_state(self, state: str, cut: float, left: int) -> int:
        """Prune up to `left` rows of one state; they are looked for outside the write lock."""
        removed = 0
        while removed < left:
            step = {
                "ns": self._ns,
                "state": state,
                "cut": cut,
                "limit": min(self._prune_batch, left - removed),
            }
            rows = self._read(lambda tx, step=step: tx.rows("prunable", step))  # type: ignore[misc]
            if not rows:
                break
            removed += self._write(lambda tx, rows=rows: self._prune_rows(tx, rows, cut))  # type: ignore[misc]
        return removed

    def _prune_rows(self, tx: Transaction, rows: list[tuple[Any, ...]], cut: float) -> int:
        removed = 0
        for seq, id in rows:
            if tx.changed("prune_row", {"seq": seq, "cut": cut}):
                tx.rows("prune_payload", {"seq": seq})
                tx.rows("prune_frames", self._family(id))
                tx.rows("prune_journals", self._family(id))
                removed += 1
        return removed

    def _prune_topics(self, tx: Transaction, cut: float) -> int:
        silent = tx.rows("silent_topics", {"ns": self._ns, "cut": cut})
        for (jid,) in silent:
            tx.rows("prune_topic_frames", {"jid": jid})
            tx.rows("prune_topic", {"jid": jid})
        return len(silent)
