"""User code type-checks under ``mypy --strict`` against the installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_user_code_type_checks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
