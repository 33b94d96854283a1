"""Runs notebooks in a kernel and saves them with their outputs: `python3 tasks.py notebooks`.

What is saved names no machine, so that a notebook reads the same whoever ran it.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def execute(source: Path, saved: Path, folder: Path) -> None:
    """Run a notebook, with `folder` as its working directory, and save it, also when a cell fails.

    Parameters
    ----------
    source : Path
        The notebook to run.
    saved : Path
        Where the executed notebook goes; may be `source`.
    folder : Path
        The kernel's working directory.
    """
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    finally:
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        }
        saved.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nameless(notebook), saved)


def nameless(notebook: Any) -> Any:
    """Return the notebook with the ids of this machine's workers replaced."""
    worker = re.compile(rf"\b{re.escape(socket.gethostname())}-\d+-[0-9a-f]+\b")
    return nbformat.reads(worker.sub("localhost-1", nbformat.writes(notebook)), as_version=4)


def main() -> int:
    """Run the named notebooks, or all of them, in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all beside this file")
    for path in parser.parse_args().notebooks or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LAKESHORE_HOME"] = folder
            execute(path, path, Path(folder))
        print(f"[lakeshore] ran and saved {os.path.relpath(path)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
