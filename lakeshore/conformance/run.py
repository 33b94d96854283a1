"""Runs the rules: finds them, gives each a plane and names of its own, and says which held."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import NamedTuple

from lakeshore.conformance import endings, jobs, journal, looks, orders, waits
from lakeshore.conformance.case import Case
from lakeshore.planes.contract import Plane

_ROOMS = (jobs, endings, orders, looks, waits, journal)


class Outcome(NamedTuple):
    """What one rule came to: its name, whether it held, and if not, why."""

    rule: str
    ok: bool
    detail: str


def rules() -> dict[str, Callable[[Case], None]]:
    """Return every rule by its name; its docstring says it in a sentence."""
    found: dict[str, Callable[[Case], None]] = {}
    for room in _ROOMS:
        found.update(_rules_of(room))
    return found


def _rules_of(room: ModuleType) -> dict[str, Callable[[Case], None]]:
    return {
        name: value
        for name, value in vars(room).items()
        if callable(value) and getattr(value, "__module__", None) == room.__name__ and name[0] != "_"
    }


def check(make_plane: Callable[[], Plane], *, only: Iterable[str] | None = None) -> list[Outcome]:
    """Run the rules against planes that `make_plane` makes, and close each after its rule.

    Parameters
    ----------
    make_plane : callable
        Returns a plane, new or not: each rule keeps to queues and ids of its own.
    only : iterable of str, optional
        The names of the rules to run; default all of them.

    Returns
    -------
    list of Outcome
        ``(rule, ok, detail)`` in the order of the rules.

    Raises
    ------
    ValueError
        When `only` names a rule that does not exist.

    Examples
    --------
    >>> from lakeshore import Dispatch
    >>> from lakeshore.conformance import check
    >>> check(Dispatch, only=["a_submitted_job_is_queued"])
    [Outcome(rule='a_submitted_job_is_queued', ok=True, detail='')]
    """
    every = rules()
    names = list(every) if only is None else list(only)
    unknown = sorted(set(names) - every.keys())
    if unknown:
        raise ValueError(f"check: no rule {', '.join(unknown)}; see lakeshore.conformance.rules()")
    return [_run(name, every[name], make_plane) for name in names]


def _run(name: str, rule: Callable[[Case], None], make_plane: Callable[[], Plane]) -> Outcome:
    try:
        with contextlib.closing(make_plane()) as plane:
            rule(Case(plane))
    except AssertionError as error:
        return Outcome(name, False, str(error))
    except Exception:  # noqa: BLE001 - whatever a plane under test raises is this rule's outcome
        return Outcome(name, False, traceback.format_exc(limit=-3))
    return Outcome(name, True, "")
