"""`import lakeshore` loads nothing heavy and touches no file; each light part stays light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "IPython",
    "apsw",
    "asyncio",
    "cloudpickle",
    "httpx",
    "ipywidgets",
    "msgpack",
    "numpy",
    "pandas",
    "psycopg",
    "rich",
    "starlette",
    "typer",
}
CASES = {
    "import lakeshore": HEAVY,
    "import lakeshore; dir(lakeshore); lakeshore.errors.ClaimLost; lakeshore.State": HEAVY,
    "import lakeshore; lakeshore.wire.pack({'a': 1})": HEAVY - {"msgpack"},
    "import lakeshore; lakeshore.Dispatch; lakeshore.SyncQueue; lakeshore.run_worker": HEAVY
    & {"IPython", "httpx", "ipywidgets", "numpy", "pandas", "psycopg", "starlette", "typer"},
    "import lakeshore.daemon": {"IPython", "asyncio", "ipywidgets", "numpy", "pandas", "starlette", "typer"},
    "import lakeshore.worker.child": {"IPython", "apsw", "asyncio", "httpx", "numpy", "starlette", "typer"},
}


def loaded(code: str, home: Path) -> set[str]:
    """Run `code` in a fresh interpreter and return the top-level modules it holds after."""
    report = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    env = dict(os.environ, LAKESHORE_HOME=str(home))
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], env=env, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("code", CASES)
def test_light(code: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    heavy = loaded(code, home) & CASES[code] - loaded("pass", home)
    assert not heavy, f"{code!r} loads {sorted(heavy)}"
    assert not home.exists(), f"{code!r} made LAKESHORE_HOME"
