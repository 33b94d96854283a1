"""How a verb asks: its route, what an answer must hold, and whether the control plane has the route."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from lakeshore.errors import DispatchError
from lakeshore.planes import protocol
from lakeshore.planes.contract import Claimed
from lakeshore.planes.http_counts import Counts
from lakeshore.planes.http_steps import Ask, Rest, Steps, rest
from lakeshore.planes.http_tries import HOLD_MARGIN, Answer, Broken, Refused, Reply, Setback, Tries
from lakeshore.planes.protocol import MSGPACK, Route, field
from lakeshore.states import State

T = TypeVar("T")


class Asking:
    """What the verbs are made of."""

    def __init__(self, tries: Tries, ns: str) -> None:
        protocol.AWAIT.path(ns=ns)  # a namespace that no URL can hold is refused before anything is sent
        self._tries, self._ns = tries, ns
        self._counts, self._counts_pid = Counts(), os.getpid()
        self._unanswered: dict[tuple[str, str, int], bytes] = {}
        self._surplus: dict[tuple[str, str], list[Claimed]] = {}

    @property
    def timeout(self) -> float:
        """Seconds for which a verb tries to reach the control plane."""
        return self._tries.timeout

    @property
    def _journals(self) -> Counts:
        if self._counts_pid != os.getpid():  # a lock may have been held as the process forked
            self._counts, self._counts_pid = Counts(), os.getpid()
        return self._counts

    def _path(self, route: Route, **names: str) -> str:
        return route.path(ns=self._ns, **names) if "{ns}" in route.template else route.path(**names)

    def _ask(
        self,
        verb: str,
        route: Route,
        body: Mapping[str, Any] | None = None,
        *,
        again: Mapping[str, Any] | None = None,
        miss: bool = False,
        **names: str,
    ) -> Reply:
        """Ask until there is an answer; a 404 is an empty one where `miss` says so.

        For a GET `body` is the query.
        """
        path = self._path(route, **names)
        if route.method == "GET":
            query = {name: value for name, value in (body or {}).items() if value is not None}
            path, body = (f"{path}?{urlencode(query)}" if query else path), None
        refused: Refused
        try:
            return self._tries.call(verb, route, path, body, again=again)
        except Refused as exc:
            refused = exc
        if miss and refused.status == 404:
            return Reply({}, refused.doubt)
        raise refused.error

    def _once(
        self, verb: str, route: Route, body: Mapping[str, Any], *, hold: float, miss: bool = False
    ) -> Reply | Setback:
        """Ask once, and let the control plane hold its answer for `hold` seconds."""
        outcome = self._tries.line.send(
            route.method,
            self._path(route),
            content=protocol.pack(body),
            accept=MSGPACK,
            read_timeout=hold + HOLD_MARGIN,
            payloads=body.get("capacity", 1),
        )
        return self._answered(verb, route, body, outcome, miss=miss)

    def _answered(
        self, verb: str, route: Route, body: Mapping[str, Any], outcome: Answer | Broken, *, miss: bool
    ) -> Reply | Setback:
        """Return what came of asking once."""
        refused: Refused
        try:
            return self._tries.read(verb, route, outcome, size=len(body.get("args_blob", b"")))
        except Refused as exc:
            refused = exc
        if miss and refused.status == 404:
            return Reply({})
        raise refused.error

    def _read(self, verb: str, body: Mapping[str, Any], name: str, kind: type[T], default: Any = ...) -> T:
        try:
            return field(body, name, kind, default)
        except ValueError as exc:
            problem = str(exc)
        raise self._tries.malformed(verb, problem)

    # -- what the control plane has -------------------------------------------

    def _is_ours(self, verb: str) -> bool:
        """Whether the control plane has our routes; asked with a harmless await while nothing is known."""
        if self._tries.ours is None:
            try:
                self._await(verb, "0")
            except DispatchError:
                if self._tries.ours is None:
                    raise
        return bool(self._tries.ours)

    def _need_ours(self, verb: str, instead: str = "Upgrade it to use this.") -> None:
        if not self._is_ours(verb):
            raise self._tries.not_supported(verb, instead)

    def _await(self, verb: str, inv_id: str) -> Mapping[str, Any]:
        """Return how an invocation stands now, in the one route that every control plane has."""
        return self._ask(verb, protocol.AWAIT, self._await_body(inv_id, 0.0), miss=True).body

    def _await_body(self, inv_id: str, hold: float) -> dict[str, Any]:
        return {"invocation_id": inv_id, "timeout_s": hold, "accept_result_ref": False}

    def _state(self, verb: str, answer: Mapping[str, Any]) -> State | None:
        try:
            return protocol.read_state(answer)
        except ValueError as exc:
            problem = str(exc)
        raise self._tries.malformed(verb, problem)

    # -- steps ----------------------------------------------------------------

    def _drive(self, steps: Steps[T]) -> T:
        """Carry out a waiting verb, blocking."""
        outcome: Any = None
        try:
            while True:
                step = steps.send(outcome)
                outcome = None
                if isinstance(step, Ask):
                    outcome = self._once(step.verb, step.route, step.body, hold=step.hold, miss=step.miss)
                elif isinstance(step, Rest):
                    rest(step)
        except StopIteration as done:
            value: T = done.value
            return value


def pause(empty: int, left: float, poll: float | None = None) -> Rest:
    """Return the pause after an answer that came without being held, longer each time, `poll` at most."""
    return Rest(min(poll or 1.0, 0.02 * 2.0 ** min(empty, 6), left))
