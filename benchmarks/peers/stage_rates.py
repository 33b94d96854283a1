"""Submit one at a time and in bulk; drain with one worker, and with four."""

from __future__ import annotations

import contextlib
import statistics

from peers.side import Side, SideError
from peers.turns import IN_MEMORY, PEERS, Run, Turn, in_turns, offered


def submitting(run: Run) -> None:
    """Submit one at a time and in bulk, drain with one worker."""
    peers: dict[str, dict[str, float]] = {}
    mine: dict[str, list[float]] = {}
    for group in run.groups():
        first = not mine
        with run.sides(*(["raw", "lakeshore"] if first else []), *group) as sides:
            for verb in ("submit", "submit_payload", "submit_value", "submit_many", "drain"):
                turns = own_turns(sides["raw"], sides["lakeshore"], verb) if first else []
                turns += offered(sides, verb, {"submit_many": 1000, "drain": 300}.get(verb, 200))
                for label, rates in in_turns(run, turns).items():
                    if label in PEERS:
                        peers.setdefault(verb, {})[label] = max(rates)
                    else:
                        mine[label] = rates
    told_rates(run, mine, peers)


def own_turns(raw: Side, lakeshore: Side, verb: str) -> list[Turn]:
    """Return lakeshore's turns of a verb, each beside raw apsw's of the like."""
    full, normal = {"durable": True}, {"durable": False}
    if verb == "submit_many":
        return [
            Turn("submit_many", lakeshore, verb, 5000),
            Turn("raw submit_many", raw, verb, 5000),
            Turn("submit_many_calls", lakeshore, "submit_many_calls", 2000),
        ]
    limit = "claim_and_ack" if verb == "drain" else "row"
    turns = [
        Turn(f"{verb} FULL", lakeshore, verb, 100, full, 15),
        Turn(f"raw {verb} FULL", raw, limit, 100, full, 15),
    ]
    if verb != "submit_value":
        turns.append(Turn(f"{verb} NORMAL", lakeshore, verb, 400, normal, 15))
        turns.append(Turn(f"raw {verb} NORMAL", raw, limit, 400, normal, 15))
    if verb == "submit":
        turns += [
            Turn("raw bare FULL", raw, "submit", 100, full, 15),
            Turn("raw bare NORMAL", raw, "submit", 400, normal, 15),
        ]
    if verb == "drain":
        turns.append(Turn("drain process", lakeshore, verb, 400, {"isolation": "process"}, 5))
        turns.append(Turn("raw drain process", raw, limit, 100, full, 5))
        turns.append(Turn("raw fused", raw, "fused", 100, full, 5))
    return turns


def told_rates(run: Run, mine: dict[str, list[float]], peers: dict[str, dict[str, float]]) -> None:
    """Make figures of the rates."""

    def told(
        title: str, verb: str, mode: str, *, share: float | None = None, wants: float | None = None
    ) -> None:
        rates, limits = mine.get(f"{verb}{mode}", []), mine.get(f"raw {verb}{mode}", [])
        pairs = [rate / limit for rate, limit in zip(rates, limits, strict=False)]
        reached = statistics.median(pairs) if pairs else 0.0
        beside = (
            f"{reached:.2f} of raw beside it ({min(limits):,.0f} to {max(limits):,.0f}/s)" if limits else ""
        )
        bare = [rate / limit for rate, limit in zip(rates, mine.get(f"raw bare{mode}", []), strict=False)]
        if verb == "submit" and bare:
            beside += f"; {statistics.median(bare):.2f} of a bare row"
        run.add(
            title,
            "/s",
            max(rates, default=None),
            wants=wants if share is None else share,
            share=None if share is None else reached,
            limit=beside,
            peers=peers.get(verb.removesuffix("_calls"), {}),
        )

    told("submit, udf by reference, durable", "submit", " FULL", share=0.9)
    told("submit, udf by reference, durable=False", "submit", " NORMAL", share=0.4)
    told("submit, plain payload, durable=False", "submit_payload", " NORMAL", share=0.6)
    told("submit, plain payload, durable", "submit_payload", " FULL")
    told("submit, by value (a notebook's function), durable", "submit_value", " FULL", wants=1500)
    told("submit_many, durable: rows", "submit_many", "", wants=50_000)
    told("submit_many, durable: calls of a udf", "submit_many_calls", "")
    told("drain no-op udfs, one inline worker, durable", "drain", " FULL", share=1.1)
    told("drain, one inline worker, durable=False", "drain", " NORMAL", share=0.4)
    told("drain, process isolation, durable", "drain", " process", wants=1500)
    for what, key in (
        ("raw, a bare row of a number and bytes, FULL", "raw bare FULL"),
        ("... NORMAL", "raw bare NORMAL"),
        ("raw, an ack and the next claim in one commit, FULL", "raw fused"),
    ):
        run.add(what, "/s", max(mine.get(key, []), default=None))


def four_workers(run: Run) -> None:
    """Drain with four worker processes against one."""
    rates: dict[str, float] = {}
    told: dict[str, str] = {}
    singles: list[float] = []
    pairs: list[float] = []
    for name in ("lakeshore", *run.peers):
        if name in IN_MEMORY:
            continue
        with contextlib.ExitStack() as stack:
            four: list[Side] = []
            for _ in range(4):
                side = run.start(name, f"{name}-four")
                if side is None:
                    break
                stack.callback(side.close)
                four.append(side)
            if len(four) < 4 or "drain" not in four[0].verbs:
                continue
            n = 600 if name == "lakeshore" else 400
            try:
                slices = []
                for _ in range(5 if name == "lakeshore" else 1):
                    if name == "lakeshore":
                        singles.append(drain_together(four[:1], n)[0])
                    slices.append(drain_together(four, n))
                    if name == "lakeshore":
                        pairs.append(slices[-1][0] / singles[-1])
            except SideError as exc:
                run.miss(name, "four workers", exc)
                continue
            rates[name] = max(rate for rate, _, _ in slices)
            jobs = [sum(each) for each in zip(*(counts for _, counts, _ in slices), strict=True)]
            mean = sum(jobs) / 4
            died = [error for _, _, errors in slices for error in errors]
            twice = sum(jobs) - n * len(slices)
            told[name] = f"{name}: shares {min(jobs) / mean:.2f}-{max(jobs) / mean:.2f}, {len(died)} died"
            told[name] += f" ({died[0]})" if died else ""
            told[name] += f", {twice} jobs ran twice" if twice > 0 else ""
    mine = rates.pop("lakeshore", None)
    beside = ""
    if pairs:
        span = f"{min(singles):,.0f} to {max(singles):,.0f}/s"
        beside = f"{statistics.median(pairs):.2f} of one worker beside it ({span}); fair is 0.5-2"
    run.add(
        "drain, four inline workers, durable",
        "/s",
        mine,
        wants=0.8,
        share=statistics.median(pairs) if pairs else None,
        limit=beside,
        peers=rates,
        note="; ".join(told.values()),
    )


def drain_together(sides: list[Side], n: int) -> tuple[float, list[int], list[str]]:
    """Fill in `n` jobs and let all drain; returns jobs/s, the jobs of each, and how some died."""
    sides[0].ask("fill", n=n)
    for side in sides:
        side.send("drain", n=10**9)
    counts, firsts, lasts, died = [], [], [], []
    for side in sides:
        try:
            jobs, first, last = side.answer(60)
        except SideError as exc:
            counts.append(0)
            died.append(str(exc))
            continue
        counts.append(int(jobs))
        if jobs:
            firsts.append(first)
            lasts.append(last)
    if not firsts or max(lasts) == min(firsts):
        raise SideError(f"nothing was drained: {'; '.join(died)}")
    return (sum(counts) - 1) / (max(lasts) - min(firsts)), counts, died
