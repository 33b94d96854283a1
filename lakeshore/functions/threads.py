"""Carries the run context into threads and pools that a body starts, while a body runs and no longer."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any

from lakeshore.context import entered


class carrying:
    """A context manager that carries for one body; any number of bodies at once share the patches.

    A body is stopped by an exception from outside, which may surface in any of these lines. So nothing is
    counted up and down: a body runs while its `carrying` is alive, and that dies with the body's frame.
    """

    __slots__ = ("__weakref__",)

    def __enter__(self) -> None:
        _patches.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _patches.leave(self)


class _Patches:
    """Wraps `Thread.start` and `ThreadPoolExecutor.submit` while at least one body runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        self._bodies: set[weakref.ref[carrying]] = set()  # quicker than a WeakSet
        self._start: Callable[..., None] = threading.Thread.start
        self._submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit
        self._our_start: Callable[..., None] | None = None
        self._our_submit: Callable[..., Any] | None = None
        os.register_at_fork(after_in_child=self._in_child)

    def enter(self, body: carrying) -> None:
        if self._within():
            return
        with self._lock:
            self._holder = threading.get_ident()
            if not self._bodies:
                self._remove()
                self._install()
            self._bodies.add(weakref.ref(body, self._bodies.discard))

    def leave(self, body: carrying) -> None:
        if self._within():
            return
        with self._lock:
            self._holder = threading.get_ident()
            self._bodies.discard(weakref.ref(body))
            if not self._bodies:
                self._remove()

    def _within(self) -> bool:
        """Whether the garbage collector runs this, a body's end, within a line below that holds the lock."""
        return self._lock.locked() and self._holder == threading.get_ident()

    def _in_child(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it

    def _remove(self) -> None:
        # whoever wrapped ours since keeps it in their chain, where it only passes on
        if threading.Thread.start is self._our_start:
            threading.Thread.start = self._start  # type: ignore[method-assign]
        if ThreadPoolExecutor.submit is self._our_submit:
            ThreadPoolExecutor.submit = self._submit  # type: ignore[method-assign]

    def _install(self) -> None:
        start: Callable[[threading.Thread], None] = threading.Thread.start
        submit: Callable[..., Any] = ThreadPoolExecutor.submit

        def carrying_start(thread: threading.Thread) -> None:
            if self._bodies and self._our_start is carrying_start and thread.ident is None and entered():
                context, run = copy_context(), thread.run

                def run_in_context() -> None:
                    del thread.run
                    context.run(run)

                thread.run = run_in_context  # type: ignore[method-assign]
            start(thread)

        def carrying_submit(
            pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
        ) -> Any:
            if not (self._bodies and self._our_submit is carrying_submit and entered()):
                return submit(pool, fn, *args, **kwargs)
            # a thread that this submit starts outlives the body: it must not keep the body's context
            return Context().run(submit, pool, copy_context().run, fn, *args, **kwargs)

        self._start, self._submit = start, submit
        self._our_start, self._our_submit = carrying_start, carrying_submit
        threading.Thread.start = carrying_start  # type: ignore[method-assign, assignment]
        ThreadPoolExecutor.submit = carrying_submit  # type: ignore[method-assign, assignment]


_patches = _Patches()
