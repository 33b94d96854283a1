"""tasks.py: old interpreters can read it, mistakes are told, nothing is installed twice."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tasks.py"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lakeshore_tasks", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp.json")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return module


def test_an_old_interpreter_can_read_it_and_say_so() -> None:
    tree = ast.parse(FILE.read_text("utf-8"), feature_version=(3, 7))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_no_task_shows_the_tasks() -> None:
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True)
    assert done.returncode == 2
    assert "python3 tasks.py demo" in done.stdout


def test_an_unknown_task_is_named() -> None:
    done = subprocess.run([sys.executable, FILE, "tset"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no task 'tset'; there are demo, test" in done.stderr


def test_installs_once_until_pyproject_changes(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(tasks, "run", lambda command, **_: ran.append(command) or 0)
    monkeypatch.setattr(tasks, "venv_works", lambda: True)
    monkeypatch.setattr(tasks, "installers", lambda target: iter([["install", target]]))
    tasks.install("notebooks")
    tasks.install("notebooks")
    assert ran == [["install", ".[notebooks]"]]
    tasks.install("dev")
    assert ran[1:] == [["install", ".[dev,notebooks]"]]
    tasks.install("notebooks")
    assert len(ran) == 2
    (tasks.ROOT / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    tasks.install("dev")
    assert len(ran) == 3


def test_a_failed_installation_is_told_and_leaves_no_stamp(
    tasks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "run", lambda command, **_: 1)
    monkeypatch.setattr(tasks, "venv_works", lambda: True)
    monkeypatch.setattr(tasks, "installers", lambda target: iter([["uv"], ["pip"]]))
    with pytest.raises(tasks.TaskError, match="the installation failed"):
        tasks.install("dev")
    assert not tasks.STAMP.exists()


def test_an_old_python_is_told_what_to_install(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(tasks, "newer_python", lambda: None)
    with pytest.raises(tasks.TaskError, match=r"needs 3\.11 or newer"):
        tasks.check_python()


def test_the_environment_of_a_task_is_its_own(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHORE_URL", "https://cp.example.com")
    with tasks.isolated() as env:
        homes = [env[name] for name in ("LAKESHORE_HOME", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")]
        assert all(Path(folder).is_dir() for folder in homes)
        assert "LAKESHORE_URL" not in env
    assert not any(Path(folder).exists() for folder in homes)
