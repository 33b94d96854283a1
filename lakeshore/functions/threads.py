"""Carries the run context into threads and pools that a body starts, while a body runs and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any

from lakeshore.context import entered


class _Carrying:
    """Wraps `Thread.start` and `ThreadPoolExecutor.submit` while at least one body runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies = 0
        self._start: Callable[..., None] = threading.Thread.start
        self._submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    def __enter__(self) -> None:
        with self._lock:
            self._bodies += 1
            if self._bodies == 1:
                self._install()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._bodies -= 1
            if self._bodies == 0:
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


carrying = _Carrying()
"""A context manager that may be entered by any number of bodies at once."""
