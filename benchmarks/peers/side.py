"""One system in a process of its own (`python -m peers.side NAME FOLDER`), and the hand that asks it.

A request is a line of JSON, ``[verb, options]``; the answer is ``{"value": ...}`` or ``{"error": ...}``. The
verbs are the public methods of the class `Adapter` in ``peers/NAME.py``, which has none for what a system
cannot do:

- ``submit(n)``, ``submit_payload(n)``, ``submit_value(n)``, ``submit_many(n)`` -> seconds taken
- ``fill(n)``: queue `n` no-op jobs
- ``drain(n)``: work until `n` jobs are done or none is left -> ``[jobs, first, last]``, with the times of the
  first and the last ending on the machine's monotonic clock
- ``stock(n)``: make it `n` queued rows more, by any means; ``claim(n)`` -> microseconds of each claim
- ``start()``: an idle worker in another process -> its pids
- ``round_trip(n)``, ``array(n)``, ``first_frame(n)`` -> milliseconds of each
- ``frames(n)`` -> ``[seconds from first to last, lags in milliseconds]``
- ``reader()``: a process blocked on a stream -> its pid
- ``cold_result()`` -> milliseconds from a worker's start to its first job's body
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


class SideError(RuntimeError):
    """A system could not do what it was asked."""


class Side:
    """What asks one system, which runs in its own process (and process group).

    Raises
    ------
    SideError
        When the system cannot be started here; the message says why.
    """

    def __init__(
        self, name: str, folder: Path, python: str = sys.executable, start_within: float = 60
    ) -> None:
        self.name = name
        folder.mkdir(mode=0o700, exist_ok=True)
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        self.log = folder / f"{name}.{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-m", "peers.side", name, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=dict(os.environ, PYTHONPATH=path, LAKESHORE_HOME=str(folder)),
                start_new_session=True,
            )
        try:
            self.verbs: list[str] = self._answer(start_within)
        except SideError:
            self.close()
            raise

    def ask(self, verb: str, within: float = 90, **options: Any) -> Any:
        """Ask for a verb and wait for its answer."""
        self.send(verb, **options)
        return self._answer(within)

    def send(self, verb: str, **options: Any) -> None:
        """Ask without waiting; `answer` waits."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([verb, options]).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SideError(f"{self.name} has ended: {self._last_words()}") from None

    def answer(self, within: float = 90) -> Any:
        """Wait for the answer to `send`."""
        return self._answer(within)

    def _answer(self, within: float) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], within)[0]:
            self.close()
            raise SideError(f"no answer within {within:g} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SideError(f"ended with code {self.process.returncode}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideError(answer["error"])
        return answer["value"]

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:160] if lines else "nothing on stderr"

    def close(self) -> None:
        """Let it end, then end what is left of its process group."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


# -- what adapters share


def timed(call: Callable[[], object], n: int) -> float:
    """Return the seconds that `n` calls take."""
    began = time.perf_counter()
    for _ in range(n):
        call()
    return time.perf_counter() - began


def each(call: Callable[[], object], n: int, scale: float = 1e3, within: float = 5.0) -> list[float]:
    """Return what each of `n` calls took, in milliseconds; after `within` seconds no further call begins."""
    taken: list[float] = []
    end = time.monotonic() + within
    while len(taken) < n and (len(taken) < 3 or time.monotonic() < end):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * scale)
    return taken


def rested(call: Callable[[], object], n: int, pause: float = 0.01, within: float = 8.0) -> list[float]:
    """As `each`, against a worker that has come to rest; three calls before do not count."""
    each(call, 3)
    taken: list[float] = []
    end = time.monotonic() + within
    while len(taken) < n and (len(taken) < 3 or time.monotonic() < end):
        time.sleep(pause)
        taken += each(call, 1)
    return taken


def drained(one: Callable[[], bool], n: int) -> list[float]:
    """Call `one` until `n` jobs are done or it finds none; returns ``[jobs, first, last]``."""
    first = last = 0.0
    jobs = 0
    while jobs < n and one():
        last = time.monotonic()
        first = first or last
        jobs += 1
    return [jobs, first, last]


def program(*command: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
    """Start a program beside an adapter, in its process group."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [*command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(os.environ, **env)
        )


def end(process: subprocess.Popen[bytes] | None) -> None:
    """End such a program."""
    if process is not None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def megabyte() -> Any:
    """Return an array of 1 MiB."""
    import numpy as np

    return np.arange(131072, dtype="float64")


def main() -> None:
    """Serve one adapter until standard input ends."""
    name, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what systems print is no answer

    def attempt(call: Callable[[], Any]) -> bool:
        try:
            value = call()
        except Exception as exc:  # noqa: BLE001 - whatever a system raises is its answer
            said = f"{type(exc).__name__}: {exc}".splitlines()[0]
            answers.write(json.dumps({"error": said[:200]}) + "\n")
            return False
        answers.write(json.dumps({"value": value}) + "\n")
        return True

    adapter: Any = None

    def begin() -> list[str]:
        nonlocal adapter
        adapter = importlib.import_module(f"peers.{name}").Adapter(Path(folder))
        return [
            verb for verb in dir(adapter) if not verb.startswith("_") and callable(getattr(adapter, verb))
        ]

    try:
        if attempt(begin):
            for line in sys.stdin:
                verb, options = json.loads(line)
                gc.collect()
                attempt(lambda verb=verb, options=options: getattr(adapter, verb)(**options))  # type: ignore[misc]
    finally:
        if adapter is not None:
            adapter.close()


if __name__ == "__main__":
    main()
