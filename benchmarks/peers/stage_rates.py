"""Submit one at a time and in bulk; drain with one worker, and with four."""

from __future__ import annotations

import contextlib

from peers.side import Side, SideError
from peers.turns import IN_MEMORY, PEERS, Run, Turn, best, offered


def submitting(run: Run) -> None:
    """Submit one at a time and in bulk, drain with one worker."""
    peers: dict[str, dict[str, float]] = {}
    mine: dict[str, float] = {}
    for group in run.groups():
        first = not mine
        with run.sides(*(["raw", "lakeshore"] if first else []), *group) as sides:
            for verb, slow, fast in (
                ("submit", 200, 800),
                ("submit_payload", 200, 800),
                ("submit_value", 150, 300),
                ("submit_many", 5000, 5000),
                ("drain", 300, 1200),
            ):
                turns = offered(sides, verb, 1000 if verb == "submit_many" else slow)
                if first:
                    turns += own_turns(sides["raw"], sides["lakeshore"], verb, slow, fast)
                rates = best(run, turns)
                peers.setdefault(verb, {}).update({k: v for k, v in rates.items() if k in PEERS})
                mine.update({k: v for k, v in rates.items() if k not in PEERS})
    told_submits(run, mine, peers)


def own_turns(raw: Side, lakeshore: Side, verb: str, slow: int, fast: int) -> list[Turn]:
    """Return lakeshore's turns of a verb, and raw apsw's beside them."""
    full, normal = {"durable": True}, {"durable": False}
    turns = [
        Turn(f"{verb} FULL", lakeshore, verb, slow, full),
        Turn(f"{verb} NORMAL", lakeshore, verb, fast, normal),
    ]
    limit = {"submit": "submit", "submit_payload": "submit", "drain": "claim_and_ack"}.get(verb)
    if limit:
        turns += [
            Turn(f"raw {verb} FULL", raw, limit, slow, full),
            Turn(f"raw {verb} NORMAL", raw, limit, fast, normal),
        ]
    if verb == "submit_many":
        turns.append(Turn("submit_many_calls FULL", lakeshore, "submit_many_calls", slow, full))
        turns.append(Turn("raw submit_many FULL", raw, verb, slow, full))
    if verb == "drain":
        turns.append(Turn("raw fused FULL", raw, "fused", slow, full))
        turns.append(Turn("drain process", lakeshore, verb, fast, {"isolation": "process"}))
    return turns


def told_submits(run: Run, mine: dict[str, float], peers: dict[str, dict[str, float]]) -> None:
    """Make figures of the rates."""

    def against(title: str, key: str, limit: str, share: float, verb: str) -> None:
        top = mine.get(limit)
        run.add(
            title,
            "/s",
            mine.get(key),
            wants=top and share * top,
            limit=f"{share} of {limit} {top:,.0f}/s" if top else "",
            peers=peers[verb],
        )

    against("submit, udf by reference, durable", "submit FULL", "raw submit FULL", 0.9, "submit")
    against("submit, udf by reference, durable=False", "submit NORMAL", "raw submit NORMAL", 0.4, "submit")
    against(
        "submit, plain payload, durable=False",
        "submit_payload NORMAL",
        "raw submit_payload NORMAL",
        0.6,
        "submit_payload",
    )
    run.add(
        "submit, plain payload, durable", "/s", mine.get("submit_payload FULL"), peers=peers["submit_payload"]
    )
    run.add(
        "submit, by value (a notebook's function), durable",
        "/s",
        mine.get("submit_value FULL"),
        wants=1500,
        peers=peers["submit_value"],
    )
    run.add(
        "submit_many, durable: rows",
        "/s",
        mine.get("submit_many FULL"),
        wants=50_000,
        limit=f"(raw, one commit: {mine.get('raw submit_many FULL', 0):,.0f}/s)",
        peers=peers["submit_many"],
    )
    run.add(
        "submit_many, durable: calls of a udf, encoding included",
        "/s",
        mine.get("submit_many_calls FULL"),
        peers=peers["submit_many"],
    )
    against("drain no-op udfs, one inline worker, durable", "drain FULL", "raw drain FULL", 1.1, "drain")
    run.figures[-1].note = f"raw, both in one commit: {mine.get('raw fused FULL', 0):,.0f}/s"
    print(f"    ({run.figures[-1].note})")
    against("drain, one inline worker, durable=False", "drain NORMAL", "raw drain NORMAL", 0.4, "drain")
    run.add(
        "drain, process isolation, durable", "/s", mine.get("drain process"), wants=1500, peers=peers["drain"]
    )


def four_workers(run: Run) -> None:
    """Drain with four worker processes against one."""
    rates: dict[str, float] = {}
    told: dict[str, str] = {}
    single = 0.0
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
            n = 1200 if name == "lakeshore" else 400
            try:
                if name == "lakeshore":
                    single = max(drain_together(four[:1], n)[0] for _ in range(3))
                slices = [drain_together(four, n) for _ in range(3 if name == "lakeshore" else 1)]
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
    run.add(
        "drain, four inline workers, durable",
        "/s",
        mine,
        wants=0.8 * single,
        limit=f"0.8 of one worker {single:,.0f}/s; fair is 0.5-2",
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
