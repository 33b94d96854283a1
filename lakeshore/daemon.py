"""``python -m lakeshore.daemon``: a worker as a process of its own; what `lakeshore worker` supervises.

Flags win, the environment fills the gaps, and every fault of either is one line and exit code 2.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from lakeshore import settings
from lakeshore.errors import DispatchError, LakeshoreError, PlaneUnavailable
from lakeshore.planes.contract import check_name
from lakeshore.worker import forks
from lakeshore.worker.options import Event, WorkerOptions

if TYPE_CHECKING:
    from lakeshore.planes.contract import Plane
    from lakeshore.worker.loop import Worker
    from lakeshore.worker.spawn import Spawned

IDLE_SLICE: Final = 0.9
"""Seconds an idle worker waits in the plane between two looks at whether it was told to stop: within 1 s."""

_log = logging.getLogger("lakeshore.daemon")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"lakeshore: {message.rstrip('.')}. See python -m lakeshore.daemon --help\n")


def _seconds(text: str) -> float:
    try:
        return settings.duration(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: wants a whole number")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Build the parser of the daemon's flags."""
    made = _Parser(
        prog="python -m lakeshore.daemon",
        description="Run the jobs of a queue. Whoever may submit to it can run code here.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("named", nargs="?", metavar="QUEUE", help="the queue; the same as --queue QUEUE")
    add("--queue", help="the queue (or LAKESHORE_QUEUE)")
    add("--root", help="root of run.write and run.read (or LAKESHORE_ROOT; default: the working directory)")
    add("--once", action="store_true", help="run at most one job, then exit")
    add("--url", help="a control plane's address (or LAKESHORE_URL)")
    add("--token", help="its token (better: LAKESHORE_CLIENT_TOKEN or --token-file)")
    add("--token-file", help="a file that holds its token")
    add("--insecure", action="store_true", help="allow plain http to another machine")
    add("--namespace", help="the namespace (or LAKESHORE_NAMESPACE; default: default)")
    add("--allow-pickled", action="store_true", help="with --url: run by-value functions too")
    add("--allow-module", action="append", default=[], metavar="M", help="run M's functions by reference")
    add("--no-code-mounts", action="store_true", help="with --url: run no code that a job brings along")
    add("--runtime-policy", choices=("strict", "minor", "off"), help="how closely interpreters must match")
    add("--concurrency", type=_count, default=1, metavar="N", help="jobs at a time (default 1)")
    add("--isolation", choices=("process", "inline"), default="process", help="where bodies run")
    add(
        "--lease",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds until a dead worker's job runs again",
    )
    add("--retries", type=_count, default=1, metavar="N", help="further attempts for a job that fails")
    add(
        "--backoff",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="base of the delay before attempt 3 and later",
    )
    add(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds for a running body once told to stop",
    )
    add(
        "--after",
        type=_count,
        metavar="PID",
        help="the worker process that this one replaces, seen to be dead: its jobs run again at once",
    )
    add(
        "--drain-on-eof",
        action="store_true",
        help="drain once standard input is closed (a supervisor is gone)",
    )
    return made


def check(made: argparse.ArgumentParser, flags: argparse.Namespace) -> settings.Settings:
    """Check flags and environment together; returns the environment, or exits with one line and code 2."""
    try:
        environment = read_environment(flags)
        if flags.queue and flags.named and flags.queue != flags.named:
            raise ValueError(f"two queues, {flags.named!r} and {flags.queue!r}; give one")
        queue = flags.queue or flags.named or environment.queue
        if queue:
            check_name(queue, "queue")
        check_name(environment.namespace, "namespace")
        options(flags, environment)
    except ValueError as exc:
        made.error(str(exc))
    if not queue:
        made.error("no queue; give --queue NAME or set LAKESHORE_QUEUE")
    return environment


def read_environment(flags: argparse.Namespace) -> settings.Settings:
    """Return the environment with the flags over it.

    Raises
    ------
    ValueError
        For a variable or a token file that cannot be used.
    """
    environment = settings.read()
    token = flags.token or environment.token
    if flags.token_file:
        try:
            token = Path(flags.token_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(f"--token-file {flags.token_file!r} cannot be read: {exc}") from None
    return replace(
        environment,
        url=flags.url or environment.url,
        token=token,
        namespace=flags.namespace or environment.namespace,
        insecure=flags.insecure or environment.insecure,
    )


def options(flags: argparse.Namespace, environment: settings.Settings) -> WorkerOptions:
    """Return the worker's options as flags and environment say.

    Raises
    ------
    ValueError
        For an option out of its range.
    """
    return WorkerOptions.checked(
        root=flags.root or environment.root,
        once=flags.once,
        retries=flags.retries,
        allow_pickled=environment.url is None or flags.allow_pickled,
        runtime_policy=flags.runtime_policy or environment.runtime_policy,
        lease=flags.lease,
        backoff=flags.backoff,
        concurrency=flags.concurrency,
        isolation=flags.isolation,
        allow_modules=flags.allow_module,
        code_mounts=not flags.no_code_mounts,
        grace=flags.grace,
        on_event=_say,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker as the flags say.

    Returns
    -------
    int
        The exit code: 0 after a clean drain, 2 for bad usage, 3 where the plane refuses this worker (once:
        or does not answer), which a restart does not mend.
    """
    made = parser()
    flags = made.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request says nothing of the jobs
    logging.raiseExceptions = False  # a closed stderr must not end a worker
    environment = check(made, flags)
    settings.forget_token()  # bodies are others' code: they, and what they start, inherit the environment
    flags.queue = flags.queue or flags.named
    signals = _Signals()
    if flags.drain_on_eof:
        threading.Thread(target=_drain_on_eof, name="lakeshore-eof", daemon=True).start()
    plane, spawned = None, _spawn(flags)
    try:
        plane = _open(environment, signals, once=flags.once)
    except (LakeshoreError, ValueError) as exc:
        made.error(str(exc))
    finally:
        if plane is None and spawned is not None:
            spawned.close()
    if plane is None:
        return 0 if signals.count else 3
    try:
        return _work(flags, environment, plane, signals, spawned)
    finally:
        plane.close()


def _spawn(flags: argparse.Namespace) -> Spawned | None:
    """Start the first child now: it comes up while this process loads the rest and opens the plane."""
    if flags.once or flags.isolation != "process":
        return None
    from lakeshore.worker.spawn import Spawned

    try:
        return Spawned()
    except OSError:
        return None  # the worker tries again, and says why it cannot


class _Signals:
    """SIGTERM, SIGINT and SIGHUP: the first drains, the second hands the running jobs back at once."""

    def __init__(self) -> None:
        self.count = 0
        self.worker: Worker | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_signal)
        forks.end_by_default()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.worker is not None:
            self.worker.drain(at_once=self.count > 1)


def _open(environment: settings.Settings, signals: _Signals, *, once: bool) -> Plane | None:
    """Open the plane, waiting for it to become usable; None when told to stop, or when it is not to be.

    Once it is not waited for, and a store that was moved does not come back.
    """
    from lakeshore.planes.default import open_plane
    from lakeshore.worker.outage import is_for_good

    pause, said = 0.5, ""
    while not signals.count:
        try:
            return open_plane(environment)
        except PlaneUnavailable as exc:
            if str(exc) != said:
                _log.error("plane away: %s", exc)
                said = str(exc)
            if once or is_for_good(exc):
                return None
        until = time.monotonic() + pause
        while time.monotonic() < until and not signals.count:
            time.sleep(0.1)
        pause = min(30.0, pause * 2)
    return None


def _drain_on_eof() -> None:
    """Drain, as SIGTERM would have it, once nobody holds the other end of standard input."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _work(
    flags: argparse.Namespace,
    environment: settings.Settings,
    plane: Plane,
    signals: _Signals,
    spawned: Spawned | None,
) -> int:
    from lakeshore.queues.sync import SyncQueue
    from lakeshore.worker.loop import Worker
    from lakeshore.worker.tee import tee_to

    q = SyncQueue(str(flags.queue or environment.queue), dispatch=plane)
    chosen = options(flags, environment)
    worker = signals.worker = Worker(
        q, chosen, tee=tee_to(sys.stderr), stuck=lambda: _give_up(plane), spawned=spawned, slice=IDLE_SLICE
    )
    if signals.count:
        worker.drain(at_once=signals.count > 1)
    if environment.url is None and not plane.trusted:
        _log.warning(
            "others may write to %r, and what they submit runs here as you; "
            "chmod go-w the file and its directory",
            plane,
        )
    if not flags.once:
        _log.info("worker %s on queue %r, %r", worker.id, q.name, plane)
    if flags.after is not None:
        _hand_on(plane, q.name, flags.after)
    try:
        executed = worker.run()
    except LakeshoreError as exc:
        _log.error("%s", exc)
        return 3 if isinstance(exc, DispatchError) else 1
    if not flags.once:
        _log.info("drained: %d job%s executed", executed, "" if executed == 1 else "s")
    return 0


def _hand_on(plane: Plane, queue: str, pid: int) -> None:
    from lakeshore.worker.orphans import hand_on

    for id in hand_on(plane, queue, pid):
        _log.info("worker process %d died with %s; it runs again", pid, id)


def _give_up(plane: Plane) -> None:
    """Leave although a body goes on: its job was handed back, and nothing else ends a thread."""
    _log.warning("a body did not stop; its job was handed back")
    plane.close()
    os._exit(0)


def _say(event: Event) -> None:
    """Log one line for each start and end."""
    label = f" {event.name}" if event.name else ""
    if event.kind == "started":
        _log.info("start %s%s attempt %d", event.id, label, event.attempt)
    elif event.kind == "ended":
        tail = f": {event.detail}" if event.detail else ""
        _log.info("%s %s%s after %.2f s%s", event.ending, event.id, label, event.seconds, tail)
    elif event.kind == "plane_away":
        _log.error("plane away: %s", event.detail)
    else:
        _log.info("the plane is back")


if __name__ == "__main__":
    sys.exit(main())
