"""What one claim costs, by the rows that are queued, delayed and finished."""

from __future__ import annotations

import statistics

from peers.side import SideError
from peers.turns import Run, percentile


def claiming(run: Run) -> None:
    """One claim, by the rows that are queued, delayed and finished."""
    costs: dict[str, dict[str, float]] = {}
    with run.sides("lakeshore", where="claims") as sides:
        mine = sides["lakeshore"]

        def note(when: str, kinds: tuple[str, ...] = ("fifo", "filo"), n: int = 300) -> None:
            for kind in kinds:
                taken = [mine.ask("claim", n=n, kind=kind) for _ in range(1 if n < 100 else 3)]
                costs.setdefault(kind, {})[when] = min(statistics.median(part) for part in taken)
                costs[kind][f"{when} p99"] = min(percentile(part, 0.99) for part in taken)

        mine.ask("stock", n=2000)
        note("1k")
        mine.ask("stock", n=100_000)
        note("100k")
        note("100k", ("boltzmann",), 15)
        mine.ask("stock", n=100_000, delayed=True)
        note("delayed")
        mine.ask("stock", n=1_000_000, state="succeeded")
        note("finished")
        mine.ask("stock", n=900_000)
        note("1M", n=1000)
    at: dict[str, dict[str, float]] = {"few": {}, "many": {}}
    exact: dict[str, float] = {}
    for group in run.groups():
        with run.sides(*group, where="claims") as sides:
            for name, side in sides.items():
                if "claim" not in side.verbs:
                    continue
                try:
                    for when, rows in (("few", 1000), ("many", 99_000)):
                        side.ask("stock", n=rows)
                        at[when][name] = statistics.median(side.ask("claim", n=60)) / 1e3
                    if name == "dreamlake":
                        exact[name] = statistics.median(side.ask("claim", n=15, kind="boltzmann")) / 1e3
                except SideError as exc:
                    run.miss(name, "claim", exc)
    growth = {name: at["many"][name] / at["few"][name] for name in at["many"]}
    fifo, filo = costs["fifo"], costs["filo"]
    run.add(
        "one claim, fifo, 1,000 queued, durable=False",
        "ms",
        fifo["1k"] / 1e3,
        more_is_better=False,
        peers=at["few"],
    )
    run.add(
        "one claim, fifo, 100,000 queued", "ms", fifo["100k"] / 1e3, more_is_better=False, peers=at["many"]
    )
    for kind, cost in (("fifo", fifo), ("filo", filo)):
        for when, what in (
            ("100k", "100,000 queued"),
            ("delayed", "... and 100,000 delayed"),
            ("finished", "... and 1,000,000 finished"),
        ):
            run.add(
                f"claim, {kind}, {what}, over 1,000 queued",
                "x",
                cost[when] / cost["1k"],
                wants=1.5,
                more_is_better=False,
                limit=f"{cost[when]:.0f} us over {cost['1k']:.0f} us",
                peers=growth if (kind, when) == ("fifo", "100k") else {},
            )
        run.add(
            f"claim, {kind}, p99 at 1,000,000 queued",
            "ms",
            cost["1M p99"] / 1e3,
            wants=1,
            more_is_better=False,
        )
    run.add(
        "claim, boltzmann (exact), 100,000 queued",
        "ms",
        costs["boltzmann"]["100k"] / 1e3,
        wants=25,
        more_is_better=False,
        peers=exact,
        note="dreamlake draws from the 256 oldest only" if exact else "",
    )
