"""The plane on PostgreSQL beside procrastinate and pgqueuer, in one run on one server: figures and targets.

    python benchmarks/postgres.py                              with a server that it starts
    python benchmarks/postgres.py postgresql://…               on one where it may make databases
    python benchmarks/postgres.py --peers none --rows 100000 --only drain,claim

The peers come with the extra ``bench``; ``--peers-python`` may name another interpreter that has them. All
commit to the same server with its own `synchronous_commit`. pgqueuer writes endings by the batch, some time
after the bodies ran; with batches of 1 it promises what the others do, and that is what the target is. Only
ratios mean something: what shares a target takes turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from peers.board import Figure
from peers.pgserver import server
from peers.side import Side, SideError
from psycopg import conninfo

JOBS = {"postgres": 4000, "pgqueuer": 1500, "procrastinate": 1200}
ROUNDS = 4


@dataclass
class Run:
    """One run: its server, who takes part, what came out."""

    folder: Path
    address: str
    peers: list[str]
    python: str
    rows: int
    figures: list[Figure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    databases: list[str] = field(default_factory=list)

    def add(self, title: str, unit: str, value: float | None, **more: Any) -> None:
        """Take a figure in and print it."""
        self.figures.append(Figure(title, unit, value, **more))
        print("\n".join(self.figures[-1].lines()), flush=True)

    def sql(self, text: str) -> None:
        """Run one statement on the server."""
        with psycopg.connect(self.address, autocommit=True) as raw:
            raw.execute(text.encode())

    def database(self) -> str:
        """Make a database; returns its address."""
        name = f"lakeshore_bench_{uuid.uuid4().hex}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        self.databases.append(name)
        return conninfo.make_conninfo(self.address, dbname=name)

    def side(self, name: str, address: str, folder: str) -> Side:
        """Start a system on a database."""
        os.environ["BENCH_POSTGRES"] = address
        python = sys.executable if name == "postgres" else self.python
        return Side(name, self.folder / folder, python)

    def close(self) -> None:
        """Drop what was made."""
        for name in self.databases:
            self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def url(address: str) -> str:
    """Return an address in the form that all take."""
    parts = conninfo.conninfo_to_dict(address)
    user, host, name = parts.get("user", ""), str(parts.get("host", "")), parts.get("dbname", "")
    rest = "&".join(f"{key}={parts[key]}" for key in ("host", "port", "password") if key in parts)
    return f"postgresql://{user}@/{name}?{rest}" if host else address


# -- drains


def draining(run: Run) -> None:
    """Drain no-op jobs with one worker and with four, in turns."""
    address = url(run.database())
    sides: dict[str, list[Side]] = {}
    try:
        for name in ("postgres", *run.peers):
            try:
                sides[name] = [run.side(name, address, f"{name}-drain") for _ in range(4)]
            except SideError as exc:
                run.skipped[name] = str(exc)
        for workers in (1, 4):
            rates: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name, four in sides.items():
                    for label, options in ways(name):
                        rate = together(four[:workers], JOBS[name], options)
                        rates.setdefault(label, []).append(rate)
            told_drain(run, workers, {label: statistics.median(each) for label, each in rates.items()})
        mine = sides["postgres"][0]
        rate = max(20_000 / float(mine.ask("submit_many", n=20_000)) for _ in range(3))
        run.add("submit_many: rows", "/s", rate, wants=20_000)
    finally:
        for four in sides.values():
            for side in four:
                side.close()


def ways(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return how a system is to drain: its label and options."""
    if name != "pgqueuer":
        return [(name, {})]
    return [("pgqueuer", {"batch": 1}), ("pgqueuer, endings in batches of 10", {"batch": 10})]


def together(sides: list[Side], n: int, options: dict[str, Any]) -> float:
    """Fill in `n` jobs and let all drain; returns jobs/s from the first ending to the last."""
    sides[0].ask("fill", n=n)
    for side in sides:
        side.send("drain", n=10**9, **options)
    told = [side.answer(60) for side in sides]
    busy = [(first, last) for jobs, first, last in told if jobs]
    done = sum(int(jobs) for jobs, _, _ in told)
    if done < n:
        raise SideError(f"drained {done} of {n} jobs")
    return (done - 1) / (max(last for _, last in busy) - min(first for first, _ in busy))


def told_drain(run: Run, workers: int, rates: dict[str, float]) -> None:
    """Make figures of the rates."""
    mine, title = rates.pop("postgres"), f"drain, {workers} worker{'s' * (workers > 1)}"
    run.add(title, "/s", mine, peers=rates)
    for peer, wants in (("procrastinate", 3.0), ("pgqueuer", 1.0)):
        if peer in rates:
            run.add(f"{title}, over {peer}", "x", mine / rates[peer], wants=wants)


# -- claims


def claiming(run: Run) -> None:
    """One claim by the rows that are there: in turns in a database with few and in one with many."""
    few, many = (run.side("postgres", url(run.database()), f"claims-{n}") for n in range(2))
    try:
        for side in (few, many):
            side.ask("neglect")
        few.ask("stock", n=1000)
        many.ask("stock", n=run.rows, within=300)
        rows = f"{run.rows:,}"
        for kind in ("fifo", "filo"):
            told_claim(run, f"{rows} queued, no statistics", kind, few, many)
        drawn = statistics.median(many.ask("claim", n=7, kind="boltzmann")) / 1e3
        run.add(f"claim, boltzmann (exact), {rows} queued", "ms", drawn, more_is_better=False)
        many.ask("finish", n=run.rows, within=300)
        for kind in ("fifo", "filo"):
            told_claim(run, f"... and {rows} finished", kind, few, many)
    finally:
        few.close()
        many.close()


def told_claim(run: Run, what: str, kind: str, few: Side, many: Side) -> None:
    """Compare one claim in both."""
    costs: list[list[float]] = [[], []]
    for _ in range(8):
        for side, cost in zip((few, many), costs, strict=True):
            side.ask("stock", n=30)
            cost += side.ask("claim", n=25, kind=kind)
    at_few, at_many = (statistics.median(cost) for cost in costs)
    run.add(
        f"claim, {kind}, {what}, over 1,000 queued",
        "x",
        at_many / at_few,
        wants=1.5,
        more_is_better=False,
        limit=f"{at_many:.0f} us over {at_few:.0f} us",
    )


# -- waits


def waiting(run: Run) -> None:
    """From submit to result, and what many who wait cost the database."""
    mine = run.side("postgres", url(run.database()), "waits")
    try:
        mine.ask("start")
        mine.ask("serve")
        for http, wants in ((False, 10), (True, 20)):
            way = "through a server" if http else "direct"
            trip = statistics.median(mine.ask("round_trip", n=150, http=http))
            run.add(f"submit to result, {way}, p50", "ms", trip, wants=wants, more_is_better=False)
        for http in (False, True):
            way = "through a server" if http else "in one process"
            count = mine.ask("wait", n=500, http=http)
            run.add(f"connections of 500 who wait {way}", "", count, wants=9, more_is_better=False)
    finally:
        mine.close()


def main() -> None:
    """Run the stages and print the table."""
    stages: dict[str, Callable[[Run], None]] = {"drain": draining, "claim": claiming, "wait": waiting}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", nargs="?", help="a server where it may make databases")
    parser.add_argument("--peers", default="procrastinate,pgqueuer", help="of these, or none")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--only", default=",".join(stages), help=f"of {','.join(stages)}")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the long queue, default 1000000")
    options = parser.parse_args()
    peers = [] if options.peers == "none" else options.peers.split(",")
    with tempfile.TemporaryDirectory(prefix="lakeshore-bench-") as name:
        folder = Path(name)
        address, started = (options.address, None) if options.address else server(folder)
        run = Run(folder, address, peers, options.peers_python, options.rows)
        with psycopg.connect(address) as raw:
            version = raw.info.server_version // 10000
        load = os.getloadavg()[0]
        python = platform.python_version()
        print(f"PostgreSQL {version}, Python {python}, {os.cpu_count()} cores, load {load:.1f}")
        try:
            for stage in options.only.split(","):
                try:
                    stages[stage](run)
                except SideError as exc:
                    run.skipped[f"stage {stage}, the rest of it"] = str(exc)
        finally:
            run.close()
            if started is not None:
                started.cleanup()
    judged = [figure for figure in run.figures if figure.met is not None]
    print(f"\n{sum(figure.met is True for figure in judged)} of {len(judged)} targets met")
    for what, reason in run.skipped.items():
        print(f"skipped: {what}: {reason}")


if __name__ == "__main__":
    main()
