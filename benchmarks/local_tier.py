"""lakeshore and its peers side by side, in one run on one machine: figures and targets.

    python benchmarks/local_tier.py                       about five minutes, with all peers there are
    python benchmarks/local_tier.py --peers none          lakeshore against raw apsw only
    python benchmarks/local_tier.py --only submit,claim   some of the stages
    python benchmarks/local_tier.py --json figures.json   the same, for a program

The peers come with the extra ``bench``; one that cannot be imported or started is named with the reason, and
``--peers-python`` may name another interpreter that has them. In brackets stands how many times better
lakeshore is than the peer. Only ratios mean something: the disk and the load decide the rest. Whatever shares
a target takes turns in short slices, of which the best counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from peers import stage_claims, stage_rates, stage_waits
from peers.side import SideError
from peers.turns import PEERS, Run


def conditions(run: Run) -> dict[str, Any]:
    """Return what the figures were taken on."""
    versions = {}
    for package in ("jupyter-lakeshore", "apsw", "msgpack", *(PEERS[name] for name in run.peers)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def main() -> None:
    """Run the stages and print the table."""
    stages: dict[str, Callable[[Run], None]] = {
        "submit": stage_rates.submitting,
        "four": stage_rates.four_workers,
        "claim": stage_claims.claiming,
        "serve": stage_waits.serving,
        "idle": lambda run: stage_waits.idling(run, options.idle),
        "start": stage_waits.starting,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default="all", help=f"all, none, or of {','.join(PEERS)}")
    parser.add_argument("--only", default=",".join(stages), help=f"of {','.join(stages)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--idle", type=float, default=15, help="seconds to watch what idles, default 15")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter that has the peers")
    options = parser.parse_args()
    peers = {"all": list(PEERS), "none": []}.get(options.peers, options.peers.split(","))
    for given, known in ((peers, PEERS), (options.only.split(","), stages)):
        if unknown := set(given) - set(known):
            parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="lakeshore-bench-") as name:
        run = Run(Path(name), peers, options.peers_python)
        said = conditions(run)
        print(f"Python {said['python']}, {said['machine']}, load {said['load']}")
        print(", ".join(f"{package} {version}" for package, version in said["versions"].items()))
        print("[2x]: lakeshore is twice as good as that peer. litequeue commits without a sync; dask and")
        print("ipyparallel keep nothing on disk; huey takes a task off before it runs it.\n")
        began = time.monotonic()
        for stage in options.only.split(","):
            try:
                stages[stage](run)
            except SideError as exc:
                run.skipped[f"stage {stage}, the rest of it"] = str(exc)
    said |= {"load_after": round(os.getloadavg()[0], 2), "seconds": round(time.monotonic() - began)}
    judged = [figure for figure in run.figures if figure.met is not None]
    print(f"\n{sum(figure.met is True for figure in judged)} of {len(judged)} targets met", end="; ")
    print(f"load {said['load']} at the start, {said['load_after']} at the end, {said['seconds']} s")
    for what, reason in run.skipped.items():
        print(f"skipped: {what}: {reason}")
    if options.json:
        told = {"conditions": said, "figures": [f.as_dict() for f in run.figures], "skipped": run.skipped}
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
