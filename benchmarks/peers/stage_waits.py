"""What somebody waits for: round trips, frames, idle processes, imports, a worker's start."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from import_time import seconds

from peers.side import Side, SideError
from peers.turns import IN_MEMORY, PEERS, Run, Turn, percentile

IMPORTS = {
    "dreamlake": "import dreamlake.lakeshore as d; d.SyncQueue; d.Dispatch",
    "huey": "import huey",
    "litequeue": "import litequeue",
    "persist_queue": "import persistqueue",
    "procrastinate": "import procrastinate",
    "dask": "import distributed",
    "ipyparallel": "import ipyparallel",
}
ROUNDS = 4


def serving(run: Run) -> None:
    """Round trips, arrays and frames, with an idle worker in another process."""
    trips: dict[str, float] = {}
    tails: dict[str, float] = {}
    arrays: dict[str, float] = {}
    firsts: dict[str, float] = {}
    floods: dict[str, float] = {}
    lags: dict[str, float] = {}

    def look(name: str, side: Side, trips_wanted: int, n: int) -> None:
        def asked(verb: str, **options: Any) -> Any:
            try:
                return side.ask(verb, **options) if verb in side.verbs else None
            except SideError as exc:
                run.miss(name, verb, exc)
                return None

        if taken := asked("round_trip", n=trips_wanted):
            trips[name], tails[name] = statistics.median(taken), percentile(taken, 0.99)
        if taken := asked("array", n=20):
            arrays[name] = statistics.median(taken)
        if taken := asked("first_frame", n=30):
            firsts[name] = statistics.median(taken)
        for _ in range(3):
            took = asked("frames", n=n)
            if not took or len(took[1]) < 2:
                break
            rate = (len(took[1]) - 1) / took[0]
            if rate > floods.get(name, 0.0):
                floods[name], lags[name] = rate, statistics.median(took[1])

    raw = 0.0
    paced: dict[str, float] = {}
    modes: dict[str, dict[str, Any]] = {
        "daemon": {"daemon": True},
        "inline": {"isolation": "inline"},
        "NORMAL": {"isolation": "inline", "durable": False},
    }
    with run.sides("raw", "lakeshore", where="serving") as sides:
        for mode, options in modes.items():
            sides["lakeshore"].ask("start", **options)
            raw = max(
                [
                    raw,
                    *(Turn("raw", sides["raw"], "submit", 4000, {"durable": False}).rate() for _ in range(3)),
                ]
            )
            look(mode, sides["lakeshore"], 300, 20_000)
            paced[mode] = statistics.median(sides["lakeshore"].ask("frames", n=300, pause=0.002)[1])
    for group in run.groups():
        for name in group:
            with run.sides(name, where="serving") as sides:
                if name not in sides or "round_trip" not in sides[name].verbs:
                    continue
                try:
                    sides[name].ask("start")
                except SideError as exc:
                    run.miss(name, "start", exc)
                    continue
                look(name, sides[name], 20 if name in ("huey", "dreamlake") else 100, 3000)

    def told(
        title: str, unit: str, values: dict[str, float], mode: str, wants: float | None, **more: Any
    ) -> None:
        others = {name: value for name, value in values.items() if name in PEERS}
        run.add(title, unit, values.get(mode), wants=wants, peers=others, **{"more_is_better": False, **more})

    told("submit -> result, the daemon as it comes, durable, p50", "ms", trips, "daemon", 4)
    told("... p99", "ms", tails, "daemon", 25)
    told("submit -> result, inline worker, durable, p50", "ms", trips, "inline", 4)
    told("submit -> result, inline worker, durable=False, p50", "ms", trips, "NORMAL", 2)
    told("... p99", "ms", tails, "NORMAL", 25)
    for mode, what in (("daemon", "the daemon as it comes"), ("inline", "inline worker")):
        told(
            f"frames to a reader in another process, {what}",
            "/s",
            floods,
            mode,
            0.5 * raw,
            more_is_better=True,
            limit=f"0.5 of raw NORMAL commits {raw:,.0f}/s",
        )
        told("... lag p50 while they come that fast", "ms", lags, mode, 2)
        run.add("... lag p50 of yields 2 ms apart", "ms", paced.get(mode), more_is_better=False)
        told("... submit -> first frame, p50", "ms", firsts, mode, 5)
    told("1 MiB array there and back, the daemon, p50", "ms", arrays, "daemon", 15)


def idling(run: Run, watched: float) -> None:
    """What an idle worker and a blocked reader cost."""
    with run.sides("lakeshore", *run.peers, where="idle") as sides:
        trees: dict[tuple[str, str], list[int]] = {}
        for name, side in sides.items():
            for verb in ("start", "reader"):
                if verb in side.verbs:
                    try:
                        options = {"daemon": True} if (name, verb) == ("lakeshore", "start") else {}
                        trees[name, verb] = side.ask(verb, **options)
                    except SideError as exc:
                        run.miss(name, verb, exc)
        time.sleep(3)  # they come to rest
        before = {key: cpu_seconds(pids) for key, pids in trees.items()}
        time.sleep(watched)
        used = {key: 60 * (cpu_seconds(pids) - before[key]) / watched for key, pids in trees.items()}
    for verb, title in (
        ("start", "idle worker (the daemon)"),
        ("reader", "a reader blocked on a silent stream"),
    ):
        others = {name: value for (name, part), value in used.items() if part == verb}
        mine = others.pop("lakeshore", None)
        run.add(title, "CPU s/min", mine, wants=0.1, more_is_better=False, peers=others)


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of processes and their descendants so far, to the nanosecond (Linux)."""
    total, left = 0, list(pids)
    while left:
        for task in Path(f"/proc/{left.pop()}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
            left += map(int, (task / "children").read_text().split())
    return total / 1e9


def starting(run: Run) -> None:
    """Import time, and a worker's start to its first job."""
    imports = {"bare": "pass", "lakeshore": "import lakeshore"}
    imports["used"] = "import lakeshore; lakeshore.SyncQueue; lakeshore.Dispatch"
    imports |= {name: IMPORTS[name] for name in run.peers}
    for name in list(imports):
        try:
            seconds(imports[name])
        except subprocess.CalledProcessError as exc:
            run.miss(name, "import", SideError(str(exc)))
            del imports[name]
    times: dict[str, list[float]] = {name: [] for name in imports}
    for _ in range(ROUNDS):
        for name, code in imports.items():
            times[name].append(seconds(code))
    over = {name: 1e3 * (min(taken) - min(times["bare"])) for name, taken in times.items()}
    others = {name: value for name, value in over.items() if name in PEERS}
    run.add(
        "import lakeshore, over a bare interpreter",
        "ms",
        over["lakeshore"],
        wants=60,
        more_is_better=False,
        peers=others,
    )
    run.add("... with SyncQueue and Dispatch", "ms", over["used"], more_is_better=False, peers=others)
    first: dict[str, list[float]] = {}
    durable = [name for name in run.peers if name not in IN_MEMORY]
    with run.sides("lakeshore", *durable, where="cold") as sides:
        for _ in range(5):
            for name, side in sides.items():
                for verb in {"cold", "cold_result"} & set(side.verbs):
                    try:
                        first.setdefault(f"{name} {verb}", []).append(side.ask(verb))
                    except SideError as exc:
                        run.miss(name, verb, exc)
    fastest = {key: min(taken) for key, taken in first.items()}
    others = {name: fastest[f"{name} cold_result"] for name in durable if f"{name} cold_result" in fastest}
    run.add(
        "daemon start -> first claim", "ms", fastest.get("lakeshore cold"), wants=250, more_is_better=False
    )
    run.add(
        "worker start -> first job's body",
        "ms",
        fastest.get("lakeshore cold_result"),
        more_is_better=False,
        peers=others,
    )
