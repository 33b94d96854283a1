"""What a worker is told (its options, checked before anything is claimed) and what it tells (events)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lakeshore.planes.contract import check_number, check_span

if TYPE_CHECKING:
    from lakeshore.worker.remote import Remote


@dataclass(frozen=True, slots=True)
class Rules:
    """What a worker allows, and where its bodies run.

    Attributes
    ----------
    root : Path
        The absolute root of `run.write` and `run.read`.
    registry : mapping
        Functions by name, asked before any import or unpickle.
    allow_pickled, runtime_policy, trusted, allow_modules
        The gates, as `run_worker` takes them (`allow_pickled` settled).
    max_payload : int
        Bytes that a result or a yielded value may have.
    known : dict
        References that were resolved, as `_resolved` keeps them.
    remote : Remote or None
        Brings the jobs' code and carries their files; None on a plane of this machine.
    """

    root: Path
    registry: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    allow_pickled: bool = False
    runtime_policy: str = "minor"
    trusted: bool = False
    allow_modules: tuple[str, ...] = ()
    max_payload: int = 256 * 1024 * 1024
    known: dict[tuple[str, str, str], tuple[ModuleType, Callable[..., Any]]] = field(default_factory=dict)
    remote: Remote | None = None


class Event(NamedTuple):
    """What `on_event` is told.

    Attributes
    ----------
    kind : {"started", "ended", "plane_away", "plane_back"}
        What happened.
    id, queue, attempt
        The job; empty for the plane's events.
    name : str
        The job's display name, or "".
    ending : str
        For "ended": succeeded, retry, failed, released, cancelled or lost.
    detail : str
        The error's first line, or why the plane is away.
    seconds : float
        How long the body ran.
    """

    kind: Literal["started", "ended", "plane_away", "plane_back"]
    id: str = ""
    queue: str = ""
    attempt: int = 0
    name: str = ""
    ending: str = ""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works: what `run_worker` takes, checked."""

    root: Path
    registry: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    once: bool = False
    poll: float = 0.05
    retries: int = 1
    stop: Callable[[], bool] | None = None
    allow_pickled: bool | None = None
    runtime_policy: str = "minor"
    lease: float = 30.0
    backoff: float = 0.0
    concurrency: int = 1
    isolation: str = "inline"
    allow_modules: tuple[str, ...] = ()
    code_mounts: bool = True
    log: bool = True
    grace: float = 30.0
    on_event: Callable[[Event], object] | None = None

    @classmethod
    def checked(cls, *, root: Path | str | None = None, **options: Any) -> WorkerOptions:
        """Check the options as `run_worker` takes them.

        Raises
        ------
        ValueError
            For an option out of its range; the message says what is wanted.
        TypeError
            For a `stop`, an `on_event` or a `registry` of another kind.
        """
        try:
            base = Path.cwd() if root is None else Path(root).expanduser().absolute()
        except FileNotFoundError:
            raise ValueError("the working directory is gone; start the worker in one that exists") from None
        if base.exists() and not base.is_dir():
            raise ValueError(f"root {str(base)!r}: is a file; give a directory")
        registry = options.get("registry")
        if registry is not None and not isinstance(registry, Mapping):
            raise TypeError(
                f"registry: wants a dict of functions by name, such as {{'train': train}}, got a "
                f"{type(registry).__name__}"
            )
        for name, what in (("stop", "that returns True to stop"), ("on_event", "that takes an Event")):
            given = options.get(name)
            if given is not None and not callable(given):
                raise TypeError(f"{name}: wants a function {what}, got {type(given).__name__}")
        modules = options.get("allow_modules", ())
        if isinstance(modules, str):
            raise ValueError(f"allow_modules {modules!r}: wants a list of module names: [{modules!r}]")
        made = cls(
            root=base,
            **{**options, "registry": dict(registry or {}), "allow_modules": tuple(modules)},
        )
        check_number(made.poll, "poll", minimum=0)
        check_number(made.backoff, "backoff", minimum=0)
        check_number(made.grace, "grace", minimum=0)
        if check_span(made.lease, "lease") < 0.1:
            raise ValueError(f"lease {made.lease!r}: wants 0.1 s or more")
        for name, value, least in (("retries", made.retries, 0), ("concurrency", made.concurrency, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} {value!r}: wants a whole number of {least} or more")
        if made.runtime_policy not in ("strict", "minor", "off"):
            raise ValueError(f"runtime_policy {made.runtime_policy!r}: wants strict, minor or off")
        if made.isolation not in ("inline", "process"):
            raise ValueError(f"isolation {made.isolation!r}: wants inline or process")
        return made
