"""Runs 01_training_stream.ipynb in a real kernel and prints what its job streams, as it is journalled.

`python3 tasks.py demo` starts it. The kernel submits, the worker process that the notebook starts
(`python -m lakeshore.daemon`) runs the job, and this third process follows it from outside: they share
nothing but one SQLite file.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from execute import execute

HERE = Path(__file__).resolve().parent
NOTEBOOK = HERE / "01_training_stream.ipynb"
QUEUE = "gpu"


def say(text: str) -> None:
    """Print one progress line at once."""
    print(f"[lakeshore] {text}", flush=True)


def shown(value: Any) -> str:
    """Return one streamed value as a line."""
    if not isinstance(value, dict):
        return str(value)
    return "  ".join(
        f"{key} {value[key]:.4f}" if isinstance(value[key], float) else f"{key} {value[key]}" for key in value
    )


class Follower(threading.Thread):
    """Waits for the job to be submitted, prints what it streams, then its result.

    Attributes
    ----------
    id : str or None
        The job, once it was seen.
    error : Exception or None
        Why the following ended early.
    """

    def __init__(self, database: Path, started: float) -> None:
        super().__init__(name="follower", daemon=True)
        self._database, self._began = database, started
        self._ended = threading.Event()
        self.id: str | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Follow the first job of the queue to its end."""
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - handed to the main thread, which reports it
            self.error = error

    def stop(self) -> None:
        """Give up waiting for a job that was never submitted."""
        self._ended.set()

    def _since(self) -> str:
        return f"{time.time() - self._began:6.2f} s"

    def _follow(self) -> None:
        from lakeshore import Dispatch, SyncQueue

        queue = SyncQueue(QUEUE, dispatch=Dispatch(str(self._database)))
        while not (jobs := queue.invocations(limit=1)):
            if self._ended.wait(0.02):
                return
        self.id = jobs[0]["id"]
        say(f"{self._since()}  submitted by the notebook: {self.id}")
        first = True
        for value in queue.stream(self.id, timeout=120):
            if first:
                say(f"{self._since()}  first streamed frame")
                first = False
            print(f"  {self._since()}  {shown(value)}", flush=True)
        result = queue.result(self.id)
        row = queue.status(self.id)
        say(f"{self._since()}  {row['state']}, attempt {row['attempt']}, by worker {row['worker_id']}")
        say(f"result: {shown(result)}")


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="LAKESHORE_HOME to use (default: a new temporary folder)")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "demo", help="where to save")
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="lakeshore-demo-"))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["LAKESHORE_HOME"] = str(home)
    database = home / "dispatch.sqlite"
    saved = options.out / NOTEBOOK.name

    say(f"kernel, worker and this reader share one SQLite file: {database}")
    follower = Follower(database, options.started)
    follower.start()
    say(f"running {NOTEBOOK.relative_to(HERE.parent)} in a kernel")
    execute(NOTEBOOK, saved, home)
    follower.stop()
    follower.join(60)
    if follower.error is not None:
        raise follower.error
    if follower.id is None:
        say(f"the notebook ran, but submitted no job to queue {QUEUE!r}")
        return 1
    root = " --allow-root" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
    where = os.path.relpath(saved)
    say(f"the executed notebook is {where}; open it in JupyterLab with")
    print(f"\n    LAKESHORE_HOME={shlex.quote(str(home))} .venv/bin/jupyter lab{root} {shlex.quote(where)}\n")
    say("or the tutorial itself, with your own ~/.lakeshore: python3 tasks.py lab")
    return 0


if __name__ == "__main__":
    sys.exit(main())
