"""Runs the kernel tests with the versions of ipykernel and ipywidgets that users have; a script, no test.

    python tests/notebook/matrix.py                  every row
    python tests/notebook/matrix.py ipykernel-6.31   one of them
    python tests/notebook/matrix.py --fresh          make the environments anew

Each row has an environment of its own under ``build/matrix``, made on first use. The row `colab` has a stub
of the module `google.colab`, by which code knows where it runs; the exit code is 1 when a row fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "matrix"
ROWS = {
    "ipykernel-6.31": ("ipykernel==6.31.*", "ipywidgets==8.1.*"),
    "ipykernel-7.3": ("ipykernel==7.3.*", "ipywidgets==8.1.*"),
    "newest": ("ipykernel", "ipywidgets==8.1.*"),
    "colab": ("ipykernel==6.31.*", "ipywidgets==7.8.*"),
}
NEEDS = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "nbclient",
    "nbconvert",
    "pandas",
    "polars",
    "matplotlib",
    "rich",
    "tqdm",
)
TESTS = ("tests/notebook", "tests/integration/test_worker_kernel.py", "tests/unit/notebook")


def make(name: str) -> Path:
    """Return a row's interpreter, made and filled where it is missing."""
    place = PLACE / name
    python = place / "bin" / "python"
    if python.exists():
        return python
    wanted = ["-e", str(ROOT), *NEEDS, *ROWS[name]]
    if uv := shutil.which("uv"):
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(place)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *wanted], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    if name == "colab":
        stub = next(place.glob("lib/python*/site-packages")) / "google" / "colab"
        stub.mkdir(parents=True, exist_ok=True)
        (stub / "__init__.py").write_text("")
        # Colab's kernel has the module loaded before any cell runs.
        (stub.parent.parent / "zz_colab.pth").write_text("import google.colab\n")
    return python


def main() -> int:
    """Run the rows that were asked for; return how the process is to exit."""
    ask = argparse.ArgumentParser(description="Run the kernel tests with other versions.")
    ask.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)} (default: all)")
    ask.add_argument("--fresh", action="store_true", help="make the environments anew")
    ask.add_argument("-k", metavar="EXPRESSION", help="only these tests, as for pytest")
    told = ask.parse_args()
    if unknown := set(told.rows) - set(ROWS):
        ask.error(f"no row {min(unknown)!r}; there are {', '.join(ROWS)}")
    failed = []
    for name in told.rows or ROWS:
        if told.fresh:
            shutil.rmtree(PLACE / name, ignore_errors=True)
        python = make(name)
        print(f"== {name}: {', '.join(ROWS[name])}", flush=True)
        only = ["-k", told.k] if told.k else []
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *only]
        if subprocess.run(command, cwd=ROOT, env=os.environ, check=False).returncode != 0:
            failed.append(name)
    print("all rows pass" if not failed else f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
