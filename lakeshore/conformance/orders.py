"""Rules of the order of claims: fifo, filo, boltzmann, and where a job that came back stands."""

from __future__ import annotations

import math

from lakeshore.conformance.case import TINY_LEASE, Case, holds, lapse, same
from lakeshore.planes.contract import ClaimSpec, Submission

_CHI2_LIMIT = 29.6
"""Chi-square with 3 degrees of freedom exceeds this once in about 600,000 runs."""


def _fill(case: Case, **priorities: float) -> None:
    for name, priority in priorities.items():
        case.submit(name, priority=priority)


def _order(case: Case, kind: str, n: int) -> str:
    """Claim `n` jobs and return their names as one word."""
    return "".join(case.claim(kind=kind).id.removeprefix(case.id("")) for _ in range(n))


def fifo_is_highest_then_oldest(case: Case) -> None:
    """Fifo, and its alias priority: priority descending, then submission order in the plane."""
    _fill(case, a=0.0, b=1.0, c=0.0, d=1.0, e=-1e308, f=1e308)
    same(_order(case, "fifo", 3), "fbd", "fifo")
    same(_order(case, "priority", 3), "ace", "priority")


def filo_is_highest_then_newest(case: Case) -> None:
    """Filo: priority descending, then the newest."""
    _fill(case, a=0.0, b=1.0, c=0.0, d=1.0, e=-1e308, f=1e308)
    same(_order(case, "filo", 6), "fdbcae", "filo")


def a_job_that_came_back_keeps_its_place(case: Case) -> None:
    """A retried, released or lapsed job is as old as it was."""
    _fill(case, a=0.0, b=0.0, c=0.0, d=0.0)
    taken = case.plane.claim_many(case.queue, "w", 3, lease=TINY_LEASE)
    case.plane.nack(taken[1].id, "w", error="E: m")
    case.plane.release(taken[2].id, "w")
    lapse()
    same(_order(case, "fifo", 4), "abcd", "fifo")


def lapsed_leases_compete_with_ready_rows(case: Case) -> None:
    """A lapsed lease stands in the list by priority and age; of several the longest lapsed goes first."""
    _fill(case, a=0.0, b=0.0)
    first, second = case.claim(), case.claim()
    same((first.id, second.id), (case.id("a"), case.id("b")), "claims")
    case.plane.heartbeat(second.id, "w", lease=0.0)  # a lease is as long as the last heartbeat says
    case.plane.heartbeat(first.id, "w", lease=TINY_LEASE)
    lapse()
    _fill(case, c=1.0, d=0.0)
    same(_order(case, "fifo", 4), "cbad", "fifo: the lapsed before newer ready rows, b lapsed first")


def boltzmann_draws_by_weight(case: Case) -> None:
    """P(row) = exp(priority/T) / sum over all due rows: chi-square at T = 0.1, 1 and 10."""
    for temperature in (0.1, 1.0, 10.0):
        queue = f"{case.queue}-{temperature}"
        spread = {"a": 0.0, "b": temperature, "c": -temperature, "d": temperature / 2}
        weights = {name: math.exp(p / temperature) for name, p in spread.items()}
        case.plane.submit_many(
            queue,
            [Submission(envelope=b"", id=case.id(f"{n}{temperature}".replace(".", "_")), priority=p)
             for n, p in spread.items()],
        )  # fmt: skip
        draws, seen = 300, dict.fromkeys(spread, 0)
        claimed = case.plane.claim(queue, "w", kind="boltzmann", temperature=temperature)
        for _ in range(draws):
            assert claimed is not None
            seen[claimed.id.removeprefix(case.id(""))[0]] += 1
            spec = ClaimSpec(queue, "boltzmann", temperature)
            claimed = case.plane.nack(claimed.id, "w", error="E", fence=claimed.fence, next=spec)
        total = sum(weights.values())
        chi2 = sum((seen[n] - draws * w / total) ** 2 / (draws * w / total) for n, w in weights.items())
        holds(chi2 < _CHI2_LIMIT, f"T={temperature}: chi-square {chi2:.1f} of {seen}")


def boltzmann_draws_from_all_due_rows(case: Case) -> None:
    """Rows beyond any first page, due delayed rows and lapsed leases are drawn too, others never."""
    case.plane.submit_many(
        case.queue, [Submission(envelope=b"", id=case.id(f"n{i}"), priority=-50.0) for i in range(600)]
    )
    case.submit("late", delay=0.01, priority=50.0)
    case.submit("far", delay=3600, priority=1000.0)
    lapse()
    same(_order(case, "boltzmann", 1), "late", "a due delayed row")
    case.submit("lost", priority=90.0)
    case.claim(kind="boltzmann", lease=0.0)
    same(_order(case, "boltzmann", 1), "lost", "a lapsed lease")
    drawn = {case.claim(kind="boltzmann").id for _ in range(20)}
    old = {case.id(f"n{i}") for i in range(256)}
    holds(bool(drawn - old), "only the oldest rows were drawn")


def boltzmann_takes_extremes(case: Case) -> None:
    """Priorities of 1e308 either way and T near 0 neither overflow nor raise; T to 0 is arg max."""
    for temperature in (1e-12, 0.0, 1.0, 1e308):
        for name, priority in {"low": -1e308, "top": 1e308, "mid": 0.0}.items():
            case.submit(f"{name}{temperature}".replace(".", "_").replace("+", "_"), priority=priority)
        order = [
            case.claim(kind="boltzmann", temperature=temperature).id.removeprefix(case.id(""))[:3]
            for _ in range(3)
        ]
        want = ["top", "mid", "low"]
        if temperature <= 1.0:
            same(order, want, f"order at T={temperature}")
        else:
            same(sorted(order), sorted(want), f"draws at T={temperature}")
    same(case.plane.claim(case.queue, "w", kind="boltzmann"), None, "a draw from nothing")


def equal_priorities_are_drawn_evenly_at_any_temperature(case: Case) -> None:
    """Where all priorities are equal, T does not matter and every row may be drawn."""
    for n, temperature in enumerate((0.0, 1e-300, 1.0)):
        for i in range(3):
            case.submit(f"n{n}-{i}", priority=7.0)
        first = [
            case.plane.claim(case.queue, "w", kind="boltzmann", temperature=temperature) for _ in range(3)
        ]
        holds(None not in first, f"a draw missed at T={temperature}")
