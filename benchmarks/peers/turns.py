"""A run: who takes part, who takes turns with whom, and the best that each one reached."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.board import Figure
from peers.side import Side, SideError

PEERS = {
    "dreamlake": "dreamlake-lakeshore",
    "huey": "huey",
    "litequeue": "litequeue",
    "persist_queue": "persist-queue",
    "procrastinate": "procrastinate",
    "dask": "distributed",
    "ipyparallel": "ipyparallel",
}
IN_MEMORY = ("dask", "ipyparallel")  # their clusters burn CPU while idle, so they run after the others


@dataclass
class Run:
    """One run: where it works, who takes part, what came out."""

    folder: Path
    peers: list[str]
    python: str
    figures: list[Figure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, title: str, unit: str, value: float | None, **more: Any) -> None:
        """Take a figure in and print it."""
        figure = Figure(title, unit, value, **more)
        self.figures.append(figure)
        print("\n".join(figure.lines()), flush=True)

    def miss(self, name: str, verb: str, error: SideError) -> None:
        """Note what a system could not do."""
        self.skipped[f"{name}, {verb}"] = str(error)

    def start(self, name: str, where: str | None = None) -> Side | None:
        """Start a system, or note why it cannot be."""
        own = name in ("raw", "lakeshore")
        try:
            return Side(name, self.folder / (where or name), sys.executable if own else self.python)
        except SideError as exc:
            if own:
                raise
            self.skipped[name] = str(exc)
            self.peers.remove(name)
            return None

    @contextlib.contextmanager
    def sides(self, *names: str, where: str = "") -> Iterator[dict[str, Side]]:
        """Start these systems, and end them after the block."""
        started: dict[str, Side] = {}
        try:
            for name in names:
                side = self.start(name, f"{name}-{where}" if where else None)
                if side is not None:
                    started[name] = side
            yield started
        finally:
            for side in started.values():
                side.close()

    def groups(self) -> list[list[str]]:
        """Return who runs together: the durable ones, then each cluster by itself."""
        return [
            [name for name in self.peers if name not in IN_MEMORY],
            *([name] for name in self.peers if name in IN_MEMORY),
        ]


@dataclass(frozen=True)
class Turn:
    """One system's part in a comparison: `n` operations of a verb a slice."""

    label: str
    side: Side
    verb: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    slices: int = 7

    def rate(self) -> float:
        """Run one slice; returns operations per second."""
        if self.verb == "drain":
            modes = {key: value for key, value in self.options.items() if key == "durable"}
            self.side.ask("fill", n=self.n, **modes)
            jobs, first, last = self.side.ask("drain", n=self.n, **self.options)
            if jobs < 2:
                raise SideError(f"drained {jobs:g} of {self.n} jobs")
            return float(jobs - 1) / float(last - first)
        return self.n / float(self.side.ask(self.verb, n=self.n, **self.options))


def in_turns(run: Run, turns: list[Turn]) -> dict[str, list[float]]:
    """Let all take turns; return each one's rate in every slice. Who fails is noted and left out."""
    rates: dict[str, list[float]] = {}
    failed: set[str] = set()
    for slice_number in range(max((turn.slices for turn in turns), default=0)):
        for turn in turns:
            if turn.label in failed or slice_number >= turn.slices:
                continue
            try:
                rates.setdefault(turn.label, []).append(turn.rate())
            except SideError as exc:
                failed.add(turn.label)
                rates.pop(turn.label, None)
                run.miss(turn.label, turn.verb, exc)
    return rates


def offered(sides: dict[str, Side], verb: str, n: int) -> list[Turn]:
    """Return a turn for each peer that has the verb."""
    return [
        Turn(name, side, verb, n, slices=2)
        for name, side in sides.items()
        if name not in ("raw", "lakeshore") and verb in side.verbs
    ]


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of some values."""
    ordered = sorted(values)
    return ordered[min(len(values) - 1, int(len(values) * share))]
