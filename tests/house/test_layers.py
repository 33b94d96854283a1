"""Every import goes down a floor, hidden ones too, and each heavy package has one door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = {
    "errors": 0,
    "states": 0,
    "settings": 0,
    "ports": 0,
    "version": 0,
    "wire": 1,
    "context": 1,
    "keys": 1,
    "copies": 1,
    "codebase": 1,
    "planes": 2,
    "queues": 3,
    "server": 3,
    "conformance": 3,
    "functions": 4,
    "worker": 5,
    "notebook": 6,
    "cli": 7,
    "daemon": 7,
    "__init__": 8,
}
# The command line checks a worker's flags with the daemon's own parser, so that they cannot differ. A run
# asks the rules of keys, which know of no run.
SAME_FLOOR = {("cli", "daemon"), ("context", "keys"), ("context", "copies")}
DOORS = {
    "IPython": ("lakeshore/notebook/",),
    "ipywidgets": ("lakeshore/notebook/", "widgets/"),
    "traitlets": ("lakeshore/notebook/", "widgets/"),
    "httpx": ("lakeshore/planes/http_line.py",),
    "cloudpickle": ("lakeshore/functions/",),
    "apsw": ("lakeshore/planes/sqlite.py", "lakeshore/planes/sqlite_"),
    "psycopg": ("lakeshore/planes/postgres.py", "lakeshore/planes/postgres_"),
    "psycopg_pool": ("lakeshore/planes/postgres_",),
    "starlette": ("lakeshore/server/",),
    "uvicorn": ("lakeshore/server/", "lakeshore/cli/"),
    "typer": ("lakeshore/cli/",),
}
LIBRARY = sorted((ROOT / "lakeshore").rglob("*.py"))
WIDGETS = sorted((ROOT / "widgets").rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(parts: tuple[str, ...]) -> str:
    """Name the room of a module path without its leading ``lakeshore``."""
    return parts[0] if parts else "__init__"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line, dotted module)`` of each import in a file: at the top, inline, or by a literal name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                if node.level
                else node.module or ""
            )
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def upward(path: Path) -> Iterator[str]:
    own = path.relative_to(ROOT / "lakeshore").with_suffix("").parts
    here = room(own)
    assert here in FLOORS, f"{name(path)}: a room without a floor; give {here!r} one in {__file__}"
    for line, module in imports(path):
        package, *rest = module.split(".")
        if package == "lakeshore_widgets" and FLOORS[here] < FLOORS["notebook"]:
            yield f"{name(path)}:{line} imports the widgets from below the notebook floor"
        if package != "lakeshore":
            continue
        parts = tuple(rest)
        target = room(parts) if room(parts) in FLOORS else "__init__"
        if (target == here and len(own) > 1) or (here, target) in SAME_FLOOR:
            continue
        if FLOORS[target] >= FLOORS[here]:
            yield f"{name(path)}:{line} imports {module}: floor {FLOORS[target]} from floor {FLOORS[here]}"


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_every_import_goes_down(path: Path) -> None:
    assert not list(upward(path))


@pytest.mark.parametrize("path", LIBRARY + WIDGETS, ids=name)
def test_heavy_packages_have_one_door(path: Path) -> None:
    broken = [
        f"{name(path)}:{line} imports {module}; its door is {', '.join(DOORS[package])}"
        for line, module in imports(path)
        for package in [module.split(".")[0]]
        if package in DOORS and not name(path).startswith(DOORS[package])
    ]
    assert not broken


def test_the_widgets_know_nothing_of_lakeshore() -> None:
    assert not [
        f"{path}:{line}"
        for path in WIDGETS
        for line, module in imports(path)
        if module.split(".")[0] == "lakeshore"
    ]


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("lakeshore/queues/a.py", "from lakeshore.worker.loop import run_worker", 1),
        ("lakeshore/queues/a.py", "def f():\n    from lakeshore.notebook import stream", 1),
        ("lakeshore/queues/a.py", "from ..functions import thunk", 1),
        ("lakeshore/queues/a.py", "import_module('lakeshore.notebook.stream')", 1),
        ("lakeshore/queues/a.py", "from lakeshore import SyncQueue", 1),
        ("lakeshore/queues/a.py", "from lakeshore import errors, wire\nfrom .stream import Stream", 0),
        ("lakeshore/context.py", "from lakeshore.wire import pack", 1),
        ("lakeshore/errors.py", "from lakeshore.states import State", 1),
        ("lakeshore/functions/a.py", "from lakeshore.planes.contract import Plane", 0),
    ],
)
def test_the_rule_itself(
    file: str, text: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert len(list(upward(path))) == found
