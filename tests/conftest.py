"""What every test gets: a home of its own for lakeshore and Jupyter, and browser tests skipped by name.

No test may read or write the user's own ~/.lakeshore or Jupyter configuration; this holds from import
on, so also for what a test module does at its top.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_HOME = Path(tempfile.mkdtemp(prefix="lakeshore-tests-"))
_FOLDERS = {
    "LAKESHORE_HOME": "lakeshore",
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "IPYTHONDIR": "ipython",
    "MPLCONFIGDIR": "matplotlib",
}
_ENVIRONMENT = {
    "JUPYTER_PLATFORM_DIRS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}

for _name in [name for name in os.environ if name.startswith("LAKESHORE_")]:
    del os.environ[_name]
for _name, _folder in _FOLDERS.items():
    (_HOME / _folder).mkdir(mode=0o700)
    os.environ[_name] = str(_HOME / _folder)
os.environ.update(_ENVIRONMENT)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Remove the session's home."""
    shutil.rmtree(_HOME, ignore_errors=True)


def chromium() -> str | None:
    """Return the browser that the browser tests drive: $CHROMIUM, else the first one on the PATH."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, names) if path), None)


def _place(item: pytest.Item) -> int:
    here = Path(__file__).parent
    rooms = item.path.relative_to(here).parts if item.path.is_relative_to(here) else ()
    return 2 if "browser" in rooms else 1 if "notebook" in rooms else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what changes the process last; skip the browser tests, by name, where there is no browser.

    A shell that was made in this process makes it look like a kernel to whatever comes after, and
    Playwright keeps an event loop running in the main thread until the session ends. Long forms end by
    themselves, after up to an hour.
    """
    items.sort(key=_place)
    if os.environ.get("LONG_TESTS"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3600))
    if chromium() is not None:
        return
    skip = pytest.mark.skip(reason="no Chromium: install it, or set CHROMIUM to its path")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(skip)


def _open_planes() -> set[Any]:
    forks = sys.modules.get("lakeshore.planes.sqlite_fork")
    return set(forks._planes) if forks is not None else set()


@pytest.fixture(autouse=True)
def _planes_closed() -> Iterator[None]:
    """Close the SQLite planes that a test left open, or thousands would wait for the last collection."""
    before = _open_planes()
    yield
    for plane in _open_planes() - before:
        plane.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give this test alone an empty LAKESHORE_HOME."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("LAKESHORE_HOME", str(folder))
    yield folder
