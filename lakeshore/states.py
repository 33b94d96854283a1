"""The states of an invocation and the only transitions between them; nobody else spells one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where an invocation stands. A lapsed lease is not a state: `claim` sees it."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
"""States that only `requeue` leaves."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the contract's table.

    Attributes
    ----------
    verb : str
        The plane verb that makes it; `nack` has two, by `retry`.
    sources : frozenset of State
        States it may start from; empty for `submit`.
    target : State
        The state it makes.
    guarded : bool
        Whether the caller must hold the claim (worker id and, when given, fence).
    """

    verb: str
    sources: frozenset[State]
    target: State
    guarded: bool = False


_RUNNING: Final = frozenset({State.RUNNING})
_OPEN: Final = frozenset({State.QUEUED, State.RUNNING})

TRANSITIONS: Final = (
    Transition("submit", frozenset(), State.QUEUED),
    Transition("claim", _OPEN, State.RUNNING),
    Transition("heartbeat", _RUNNING, State.RUNNING, guarded=True),
    Transition("ack", _RUNNING, State.SUCCEEDED, guarded=True),
    Transition("nack_retry", _RUNNING, State.QUEUED, guarded=True),
    Transition("nack_fail", _RUNNING, State.FAILED, guarded=True),
    Transition("release", _RUNNING, State.QUEUED, guarded=True),
    Transition("cancel", _OPEN, State.CANCELLED),
    Transition("requeue", frozenset({State.FAILED, State.CANCELLED}), State.QUEUED),
)
"""Every transition there is. `tests/house/test_states_sql.py` holds the .sql files against it."""
