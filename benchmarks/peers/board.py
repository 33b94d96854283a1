"""The figures as they are gathered, and the table that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figure:
    """One line of the table.

    Attributes
    ----------
    title : str
        What was measured.
    unit : str
        After every value; ``""`` for a plain ratio.
    value : float or None
        lakeshore's; None where it could not be measured, and `note` says why.
    wants : float or None
        The target; None for a figure that is only shown.
    share : float or None
        Where the target is a share of the machine's limit: what was reached of it, the median of slices
        that ran side by side, and not the ratio of two bests that the disk may have let pass at other times.
    more_is_better : bool
        Which side of the target is the good one.
    limit : str
        What the target is made of, such as raw apsw's rate in this run.
    peers : dict
        Each peer's value of the same thing.
    note : str
        What the number alone does not say.
    """

    title: str
    unit: str
    value: float | None
    wants: float | None = None
    share: float | None = None
    more_is_better: bool = True
    limit: str = ""
    peers: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.wants is None:
            return None
        reached = self.value if self.share is None else self.share
        if reached is None:
            return False
        return reached >= self.wants if self.more_is_better else reached <= self.wants

    def ratio(self, peer: str) -> float | None:
        """How many times better lakeshore is than a peer; below 1 the peer is better."""
        other = self.peers[peer]
        if not self.value or not other:
            return None
        return self.value / other if self.more_is_better else other / self.value

    def lines(self) -> list[str]:
        """Return the lines that show it."""
        met = {True: "met", False: "NOT MET", None: ""}[self.met]
        sign = ">=" if self.more_is_better else "<="
        unit = self.unit if self.share is None else "of it"
        wants = "" if self.wants is None else f"{sign} {said(self.wants, unit)}"
        value = "not measured" if self.value is None else said(self.value, self.unit)
        line = f"{self.title:<58}{value:>16}  {wants:>18}  {met:<8}{self.limit}"
        told = [line.rstrip()]
        if self.note:
            told.append(f"    ({self.note})")
        row = ""
        for peer, other in self.peers.items():
            ratio = self.ratio(peer)
            entry = f"    {peer} {said(other, self.unit)}" + (
                f" [{ratio:,.{1 if ratio < 10 else 0}f}x]" if ratio else ""
            )
            if len(row) + len(entry) > 116:
                told.append(row)
                row = ""
            row += entry
        return [*told, row] if row else told

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        ratios = {peer: self.ratio(peer) for peer in self.peers}
        return {**self.__dict__, "met": self.met, "ratios": ratios}


def said(value: float, unit: str) -> str:
    """Return a value with its unit, to three digits or so."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:,.{digits}f}{'' if unit.startswith('/') else ' ' if unit else ''}{unit}"
