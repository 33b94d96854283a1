"""No tracked file names the machine it was written on: its host, its package index, its folders."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
LOCAL = {"localhost", "127.0.0.1"}
TEXT = {".py", ".md", ".toml", ".sql", ".yml", ".yaml", ".cfg", ".txt", ".ipynb", ".json", ".sh", ""}


def tracked() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file() and Path(name).suffix in TEXT]


def machine_words() -> set[str]:
    """Return what would tell this machine from another: host name, checkout, home, package indexes."""
    words = {str(ROOT)}
    if (host := socket.gethostname()) not in ("localhost", "") and len(host) > 3:
        words.add(host)
    config = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    for url in re.findall(r"https?://[^\s'\"]+", config):
        host = urlsplit(url).hostname
        if host and host not in LOCAL:
            words.add(host)
    return words


def test_no_file_names_this_machine() -> None:
    words = machine_words()
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if word in path.read_text("utf-8", errors="replace")
    ]
    assert not found


def test_saved_notebooks_name_no_folder_and_no_user() -> None:
    private = re.compile(r"(?<![\w.])/(?:root|home|Users|tmp|var/folders)/[\w.-]+")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in tracked()
        if path.suffix == ".ipynb"
        for match in private.finditer(path.read_text("utf-8"))
    ]
    assert not found
