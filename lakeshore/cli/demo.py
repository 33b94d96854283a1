"""``lakeshore demo``: a small job from end to end in a home of its own, with a worker in another process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import typer

from lakeshore.cli.jobs import Json
from lakeshore.errors import LakeshoreError

QUEUE: Final = "demo"
STEPS: Final = 5
_PATIENCE: Final = 30.0


def demo(json: Json = False) -> None:
    """Run a small job end to end: submit, a worker, frames as they come, the result.

    All in a temporary home: your own plane is not touched, and nothing is left behind.
    """
    from lakeshore.cli import tables

    began = time.monotonic()
    say: Callable[[str], object] = (lambda text: None) if json else _say
    with tempfile.TemporaryDirectory(prefix="lakeshore-demo-") as folder:
        ran = _run(Path(folder), say)
    ran["seconds"] = round(time.monotonic() - began, 3)
    if json:
        tables.value(ran, json=True)
    else:
        say(f"\nThat took {ran['seconds']:.1f} s; nothing is left behind. Your own plane: lakeshore doctor")


def _run(home: Path, say: Callable[[str], object]) -> dict[str, Any]:
    from lakeshore.functions.thunk import thunk
    from lakeshore.planes.sqlite import Dispatch
    from lakeshore.queues.sync import SyncQueue

    home.chmod(0o700)
    with closing(Dispatch(home / "dispatch.sqlite")) as plane:
        q = SyncQueue(QUEUE, dispatch=plane)
        id = q.submit(thunk(_body(), STEPS))
        say(f"submitted  {id}, a function that no worker has: it travels by value")
        with (home / "worker.log").open("w+", encoding="utf-8") as log:
            worker = _start(home, log)
            say(f"worker     process {worker.pid}: python -m lakeshore.daemon --queue {QUEUE} --once")
            try:
                frames = []
                for frame in q.stream(id, timeout=_PATIENCE):
                    frames.append(frame)
                    say(f"frame      {frame}")
                result = q.result(id, timeout=_PATIENCE)
                worker.wait(_PATIENCE)
            except (LakeshoreError, subprocess.TimeoutExpired) as exc:
                log.seek(0)
                raise LakeshoreError(f"demo: {exc}\nThe worker said: {log.read().strip()}") from exc
            finally:
                worker.kill()
                worker.wait()
    say(f"result     {result}")
    return {"id": id, "frames": frames, "result": result}


def _body() -> Callable[[int], Iterator[dict[str, float]]]:
    def train(steps: int) -> Any:
        import time

        loss = 1.0
        for step in range(1, steps + 1):
            time.sleep(0.05)
            loss /= 2
            yield {"step": step, "loss": loss}
        return {"loss": loss}

    return train


def _start(home: Path, log: Any) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKESHORE_")}
    flags = ["--queue", QUEUE, "--once", "--isolation", "inline", "--root", str(home)]
    command = [sys.executable, "-m", "lakeshore.daemon", *flags]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, env={**environment, "LAKESHORE_HOME": str(home)}, stdin=subprocess.DEVNULL, stderr=log
    )


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()
