"""Where a body's files go and how it reports: `run`, `scope`, and the key contract.

A key is a relative POSIX path below the current scope; a scope is a prefix below a root. Nothing
here touches the disk before the key is known to be good, and nothing reaches outside the root.
"""

from __future__ import annotations

import builtins
import posixpath
import time
import unicodedata
from collections.abc import Callable
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from lakeshore import copies, ports, settings
from lakeshore.errors import KeyContractError
from lakeshore.keys import KeyNotFound, absolute, check_prefix, inside, join, mirror, normal, paths, strings

__all__ = ["RunContext", "current", "job_context", "run", "scope"]

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress reports that leave a body; the last one always does."""

_CURRENT: ContextVar[RunContext | None] = ContextVar("lakeshore_run", default=None)


class _Meter:
    """Thins a body's progress reports; one for all the scopes of a job."""

    __slots__ = ("_at", "_held", "_send")

    def __init__(self, send: Callable[[float, float | None, str | None], None]) -> None:
        self._send = send
        self._at = -PROGRESS_INTERVAL
        self._held: tuple[float, float | None, str | None] | None = None

    def report(self, done: float, total: float | None, note: str | None) -> None:
        now = time.monotonic()
        if now - self._at < PROGRESS_INTERVAL and done != total:
            self._held = (done, total, note)
            return
        self._at, self._held = now, None
        self._send(done, total, note)

    def flush(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(*held)


class RunContext:
    """What a body may ask of its run: files by key, progress, displays, and who it is.

    Attributes
    ----------
    prefix : str
        The scope below `root`; ``""`` is the root itself.
    root : Path
        Absolute; a chdir in the body does not move it.
    invocation_id : str or None
        None outside a job.
    attempt : int
        Claims so far, from 1; 0 outside a job.
    fence : int
        The fencing token of this claim, to fence writes elsewhere; 0 outside a job.
    """

    __slots__ = (
        "_base",
        "_cancelled",
        "_meter",
        "_on_display",
        "_on_missing",
        "_outer",
        "_written",
        "attempt",
        "fence",
        "invocation_id",
        "prefix",
        "root",
    )

    def __init__(
        self,
        *,
        prefix: str = "",
        root: Path,
        invocation_id: str | None = None,
        attempt: int = 0,
        fence: int = 0,
        on_progress: Callable[[float, float | None, str | None], None] | None = None,
        on_display: Callable[[object], None] | None = None,
        on_missing: Callable[[str, Path], bool] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.prefix, self.root = prefix, root
        self.invocation_id, self.attempt, self.fence = invocation_id, attempt, fence
        self._meter = None if on_progress is None else _Meter(on_progress)
        self._on_display, self._on_missing, self._cancelled = on_display, on_missing, cancelled
        self._base = prefix
        self._written: dict[str, tuple[str, Path]] = {}
        self._outer: RunContext | None = None

    def __repr__(self) -> str:
        who = f", invocation_id={self.invocation_id!r}, attempt={self.attempt}" if self.invocation_id else ""
        return f"RunContext(prefix={self.prefix!r}, root={str(self.root)!r}{who})"

    @property
    def cancelled(self) -> bool:
        """Whether this job is to stop; a long loop may look and return early."""
        return self._cancelled is not None and self._cancelled()

    def _below(self, prefix: str, root: Path, *, fresh: bool) -> RunContext:
        """Return the context of a nested scope; `fresh` starts a body of its own, with its own keys."""
        new = object.__new__(RunContext)
        new.prefix, new.root = prefix, root
        new.invocation_id, new.attempt, new.fence = self.invocation_id, self.attempt, self.fence
        new._meter, new._on_display, new._cancelled = self._meter, self._on_display, self._cancelled
        new._on_missing = self._on_missing if root == self.root else None
        new._base, new._written = (prefix, {}) if fresh else (self._base, self._written)
        new._outer = self
        return new

    def write(self, key: str, dir: bool = False) -> Path:
        """Return the path to write `key` to, its parent directories made.

        On a local root the path is the final place. The body must return or yield the key.

        Parameters
        ----------
        key : str
            A relative POSIX path below the scope.
        dir : bool
            Make `key` itself a directory. Default False: a file.

        Raises
        ------
        KeyContractError
            When the key is malformed, leaves the root, or one of its parents is a file.
        """
        full = join(self.prefix, key, "key")
        if full in ("", self.prefix):
            raise KeyContractError(f"key {key!r}: names a scope, not something in it")
        path = inside(self.root, full, "key", key)
        try:
            (path if dir else path.parent).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise KeyContractError(
                f"key {key!r}: {error.filename!r} is a file where a directory is needed. Use another key."
            ) from None
        copies.own(path, self.root)
        self._written[full] = (str(key), path)
        return path

    def read(self, key: str) -> Path:
        """Return the path of `key`, which must exist here.

        What a job on another machine wrote is brought from the control plane first, and brought again where
        somebody wrote into what came. Write through `write` alone.

        Raises
        ------
        KeyContractError
            When the key is malformed or leaves the root.
        KeyNotFound
            When nothing is there (a `KeyContractError` and a `FileNotFoundError`).
        """
        full = join(self.prefix, key, "key")
        path = inside(self.root, full, "key", key)
        here = path.exists()
        if here and self._on_missing is not None and copies.is_changed(path):
            self._on_missing(full, path)
        elif not here and not self._fetched(full, path):
            raise KeyNotFound(
                f"read: key {key!r} has no file in scope {self.prefix!r} ({path}). "
                "Write it first, or read it in the scope and root it was written in."
            )
        return path

    def _fetched(self, full: str, path: Path) -> bool:
        """Whether a key came from where another machine's job put it; outside a job, from LAKESHORE_URL."""
        if self._on_missing is not None:
            return self._on_missing(full, path)
        if self.invocation_id is not None or settings.read().url is None:
            return False
        return bool(ports.call("fetch_key", full, path))

    def written(self) -> dict[str, Path]:
        """Return the files of the keys written so far below the root, by their path from it."""
        return {full: path for full, (_, path) in self._written.items() if path == self.root / full}

    def read_all(self, manifest: Any) -> Any:
        """Return the paths of a manifest's keys in the manifest's own shape (str, list, tuple, dict)."""
        return mirror(manifest, self.read)

    def write_all(self, manifest: Any) -> Any:
        """Return paths to write in the manifest's own shape; every key is checked before one is made."""

        def check(key: str) -> None:
            inside(self.root, join(self.prefix, key, "key"), "key", key)

        mirror(manifest, check)
        return mirror(manifest, self.write)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the body is; at most 10 reports a second leave it, and the last one always.

        Parameters
        ----------
        done : float
            Units finished so far.
        total : float, optional
            Units in all; None when unknown.
        note : str, optional
            A word to show beside the bar.
        """
        if self._meter is not None:
            self._meter.report(float(done), None if total is None else float(total), note)

    def display(self, obj: object) -> None:
        """Show `obj` where the job is watched; outside a job, here."""
        if self._on_display is not None:
            self._on_display(obj)
        else:
            getattr(builtins, "display", print)(obj)

    def check_keys(self, result: object, yielded: frozenset[str] | set[str] = frozenset()) -> None:
        """Hold the body to return-your-keys: each key it wrote is returned or yielded, and is there.

        Raises
        ------
        KeyContractError
            Naming the first key that was not returned, whose file does not exist, that is no file or
            folder, or that a link leads out of the root. A link to what lies within the root is good.
        """
        if not self._written:
            return
        given = {posixpath.normpath(text) for text in strings(result)} | {
            posixpath.normpath(y) for y in yielded
        }
        for full, (key, path) in self._written.items():
            if given.isdisjoint((posixpath.normpath(key), posixpath.relpath(full, self._base or "."))):
                if str(path) in given or str(path) in paths(result):
                    raise KeyContractError(
                        f"key {key!r} was written, and you returned the path that run.write gave; "
                        f"return the key {key!r}. `run.read(key)` gives the path wherever it is needed."
                    )
                if any(
                    unicodedata.normalize("NFC", each) == unicodedata.normalize("NFC", key) for each in given
                ):
                    raise KeyContractError(
                        f"key {key!r} was written, and returned in another Unicode form: it looks alike, but "
                        f"is another name (written: {key!a}). Return the very text given to run.write."
                    )
                raise KeyContractError(
                    f"key {key!r} was written but not returned. Return every key given to run.write "
                    "(a str, or a list, tuple or dict of them), or yield it."
                )
            if not path.exists():
                raise KeyContractError(
                    f"key {key!r} was returned but there is no file at {str(path)!r}. "
                    "Write to the path that run.write gave, or do not ask for the key."
                )
            inside(path.parents[full.count("/")], full, "key", key)
            if not (path.is_file() or path.is_dir()):
                raise KeyContractError(
                    f"key {key!r} was returned, and {str(path)!r} is a pipe, a socket or a device. "
                    "Write a regular file, or a folder (dir=True)."
                )


def ambient() -> tuple[str, str | None]:
    """Return prefix and invocation id of the context in force, without asking for a directory."""
    context = _CURRENT.get()
    return ("", None) if context is None else (context.prefix, context.invocation_id)


def current() -> RunContext:
    """Return the context in force: the job's, the scope's, or else one at the working directory."""
    context = _CURRENT.get()
    return RunContext(root=Path.cwd()) if context is None else context


def entered() -> bool:
    """Whether a scope or a job is in force here."""
    return _CURRENT.get() is not None


class _Run:
    """The proxy `run`: every attribute is asked of the context in force."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(current(), name)

    def __dir__(self) -> list[str]:
        return [name for name in dir(RunContext) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<run: {current()!r}>"

    def __reduce__(self) -> str:
        return "run"


run: RunContext = cast(RunContext, _Run())
"""The run context in force, looked up at each use."""


class _Entered:
    """Puts one context in force between enter and exit."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._token: Token[RunContext | None] | None = None

    def __enter__(self) -> RunContext:
        self._token = _CURRENT.set(self._context)
        return self._context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._context, self._token)
        if self._context._outer is None and self._context._meter is not None:
            self._context._meter.flush()


def _leave(context: RunContext, token: Token[RunContext | None] | None) -> None:
    # An abandoned generator is closed late, in another context or under a scope that was entered
    # since. What is in force then is taken away only if it is this context or grew out of it.
    inner = _CURRENT.get()
    while inner is not None and inner is not context:
        inner = inner._outer
    if inner is not None and token is not None:
        _CURRENT.set(None if token.old_value is Token.MISSING else token.old_value)


def job_context(
    *,
    prefix: str,
    root: Path | str | None,
    invocation_id: str | None,
    attempt: int = 1,
    fence: int = 0,
    on_progress: Callable[[float, float | None, str | None], None] | None = None,
    on_display: Callable[[object], None] | None = None,
    on_missing: Callable[[str, Path], bool] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> _Entered:
    """Return a context manager that puts a job's context in force; the worker's call.

    Parameters
    ----------
    prefix : str
        From the envelope; checked here, before anything is made.
    root : Path, str or None
        The worker's root; None is the working directory now.
    on_progress : callable, optional
        Takes ``(done, total, note)``.
    on_display : callable, optional
        Takes the object to show.
    on_missing : callable, optional
        Takes a key's path from the root and the path where its file is missing; brings it, or says False.
    cancelled : callable, optional
        Says whether the job is to stop.

    Raises
    ------
    KeyContractError
        When the prefix is malformed, climbs out of the root, or a link leads it out.
    """
    where = absolute(root)
    inner = check_prefix(prefix)
    if inner:
        inside(where, inner, "prefix", prefix)
    return _Entered(
        RunContext(
            prefix=inner,
            root=where,
            invocation_id=invocation_id,
            attempt=attempt,
            fence=fence,
            on_progress=on_progress,
            on_display=on_display,
            on_missing=on_missing,
            cancelled=cancelled,
        )
    )


def child() -> _Entered:
    """Return a context manager for a local body: the scope in force, with keys of its own."""
    outer = current()
    return _Entered(outer._below(outer.prefix, outer.root, fresh=True))


class scope:
    """Put files under a prefix of the current scope for the length of a ``with`` block.

    Parameters
    ----------
    prefix : str
        A relative POSIX path; ``".."`` climbs to a parent scope, ``""`` is the same scope again.
    root : str or Path, optional
        Another root directory; default the current one (outside any scope, the working directory).

    Raises
    ------
    KeyContractError
        When the prefix is malformed or climbs out of the root.

    Examples
    --------
    >>> with scope("scenes/0007"):
    ...     path = run.write("depth.npy")
    """

    __slots__ = ("_entered", "_prefix", "_root")

    def __init__(self, prefix: str, root: str | Path | None = None) -> None:
        if prefix != "":
            normal(prefix, "scope")
        self._prefix = prefix
        self._root = None if root is None else absolute(root)
        self._entered: list[tuple[RunContext, Token[RunContext | None]]] = []

    def __enter__(self) -> RunContext:
        outer = current()
        root = self._root or outer.root
        prefix = join(outer.prefix, self._prefix, "scope") if self._prefix else outer.prefix
        if prefix:
            inside(root, prefix, "scope", self._prefix)
        context = outer._below(prefix, root, fresh=False)
        self._entered.append((context, _CURRENT.set(context)))
        return context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(*self._entered.pop())
