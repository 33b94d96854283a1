"""One server of JupyterLab and Notebook 7 and one browser a session; a page of each front end stays open."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]
SERVER_ARGS = [
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--IdentityProvider.token=",
    "--ServerApp.password=",
    "--ServerApp.disable_check_xsrf=True",
    "--LanguageServerManager.autodetect=False",
    "--LabApp.extension_manager=readonly",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
KERNEL_READY = """() => {
    const panel = window.jupyterapp?.shell.currentWidget, kernel = panel?.sessionContext?.session?.kernel;
    return kernel && kernel.status === 'idle' && panel.context.isReady }"""
KERNEL_IDLE = "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
ADD = """source => {
    const notebook = window.jupyterapp.shell.currentWidget.content, cells = notebook.model.sharedModel;
    cells.insertCell(cells.cells.length, {cell_type: 'code', source, metadata: {trusted: true}});
    return cells.cells.length - 1 }"""
RUN = """([index, wait]) => {
    const app = window.jupyterapp;
    app.shell.currentWidget.content.activeCellIndex = index;
    const ran = app.commands.execute('notebook:run-cell').then(() => 0);
    return wait ? ran : 0 }"""
CLEAR = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel;
    cells.deleteCellRange(0, cells.cells.length) }"""
EXECUTE = """async code => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const printed = [], future = kernel.requestExecute({code, store_history: false});
    future.onIOPub = message => printed.push(message.content.text ?? message.content.evalue ?? '');
    const reply = await future.done;
    return [reply.content.status, printed.join('')] }"""


class Front:
    """One page of a front end (``"lab"`` or ``"notebook"``) and the notebook that is open in it."""

    def __init__(self, page: Any, url: str, root: Path, app: str = "lab") -> None:
        self.page, self.url, self.root, self.app = page, url, root, app
        self.name = ""

    def write(self, name: str, *cells: str) -> None:
        """Make a notebook of code cells."""
        import nbformat

        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(nb, self.root / name)

    def copy(self, notebook: Path) -> str:
        """Put a copy of a notebook, without its outputs, where it is served; returns its name there."""
        import nbformat

        nb = nbformat.read(notebook, as_version=4)
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(nb, self.root / notebook.name)
        return notebook.name

    def open(self, name: str, *, kernel: bool = True) -> None:
        """Load the page afresh with a notebook and wait for its kernel."""
        self.name = name
        place = f"doc/workspaces/t{time.time_ns()}/tree/{name}?reset"
        self.page.goto(f"{self.url}/{place if self.app == 'lab' else f'notebooks/{name}'}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        if kernel:
            self.page.wait_for_function(KERNEL_READY, timeout=60_000)

    def command(self, name: str) -> None:
        """Execute a command of the front end and wait for what it returns."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name).then(() => 0)", name)

    def execute(self, code: str) -> str:
        """Run code in the kernel without a cell; returns what it printed."""
        status, printed = self.page.evaluate(EXECUTE, textwrap.dedent(code))
        assert status == "ok", printed
        return str(printed)

    def cell(self, source: str, *, wait: bool = True) -> Any:
        """Add a cell and run it; returns its output area."""
        index = self.page.evaluate(ADD, textwrap.dedent(source).strip())
        self.page.evaluate(RUN, [index, wait])
        return self.output(index)

    def run(self, *indexes: int) -> None:
        """Run cells one after the other, each to its end."""
        for index in indexes:
            self.page.evaluate(RUN, [index, True])

    def run_all(self) -> None:
        """Start a Run All without waiting for it."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")

    def clear(self) -> None:
        """Remove every cell."""
        self.page.evaluate(CLEAR)

    def output(self, index: int) -> Any:
        """Locate the output area of one cell, so that a text is never found in the source."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-OutputArea")

    def save(self) -> dict[str, Any]:
        """Save the notebook and return the file's content."""
        self.command("docmanager:save")
        path = self.root / self.name
        return json.loads(path.read_text())

    def wait_idle(self, timeout: float = 60.0) -> None:
        """Wait until the kernel runs nothing."""
        self.page.wait_for_function(KERNEL_IDLE, timeout=timeout * 1000)


@contextlib.contextmanager
def _server(root: Path, home: Path, timeout: float = 60.0) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for plugin, value in SETTINGS.items():
        package, name = plugin.split(":")
        path = home / "settings" / package / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    env = {**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings")}
    for variable in ("JUPYTERLAB_WORKSPACES_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "LAKESHORE_HOME"):
        folder = home / variable.lower()
        folder.mkdir(mode=0o700)
        env[variable] = str(folder)
    url, log = f"http://127.0.0.1:{port}", home / "lab.log"
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *SERVER_ARGS,
        f"--port={port}",
        f"--ServerApp.root_dir={root}",
    ]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=env, cwd=root, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        try:
            _await_server(server, f"{url}/api/status", log, time.monotonic() + timeout)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await_server(server: subprocess.Popen[bytes], url: str, log: Path, deadline: float) -> None:
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)  # another process: there is no event to wait for


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """JupyterLab on an empty folder; yields its address and that folder."""
    root, home = tmp_path_factory.mktemp("lab-root"), tmp_path_factory.mktemp("lab-home")
    with _server(root, home) as url:
        yield url, root


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


def _page(browser: Any) -> Any:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    context.route(
        lambda address: "127.0.0.1" not in address and not address.startswith(("data:", "blob:")),
        lambda route: route.abort(),
    )
    return context.new_page()


@pytest.fixture
def lab(lab_server: tuple[str, Path], browser: Any) -> Iterator[Front]:
    """A fresh page of JupyterLab that reaches nothing but this machine."""
    url, root = lab_server
    page = _page(browser)
    yield Front(page, url, root)
    page.context.close()


_SETUP = (Path(__file__).parent / "setup_cell.py").read_text()


@pytest.fixture(scope="session", params=["lab", "notebook"])
def shared_front(
    request: pytest.FixtureRequest, lab_server: tuple[str, Path], browser: Any
) -> Iterator[Front]:
    """A page that stays open, with one notebook and one kernel."""
    url, root = lab_server
    front = Front(_page(browser), url, root, request.param)
    front.write(f"{request.param}.ipynb", "")
    front.open(f"{request.param}.ipynb")
    yield front
    front.page.context.close()


@pytest.fixture
def front(shared_front: Front) -> Iterator[Front]:
    """The open page of JupyterLab, then of Notebook 7: no cells, a plane without jobs, no panel alive."""
    shared_front.clear()
    shared_front.execute(_SETUP)
    yield shared_front
    shared_front.page.set_viewport_size({"width": 1100, "height": 900})
