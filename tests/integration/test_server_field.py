"""A client already in the field, unchanged, against the control plane: it submits, runs, streams and posts.

It is run by an interpreter that has its package: this one, or the one that FIELD_PYTHON names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakeshore import Dispatch
from lakeshore.planes.store_tokens import EVERYWHERE, Tokens
from lakeshore.server import Options, create_app
from lakeshore.server.run import background

CLIENT = Path(__file__).with_name("field_client.py")


def interpreter() -> str:
    named = os.environ.get("FIELD_PYTHON")
    if named is None:
        try:
            found = importlib.util.find_spec("dreamlake.lakeshore")
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(
                "no dreamlake-lakeshore here: install it, or set FIELD_PYTHON to a Python that has it"
            )
    return named or sys.executable


@pytest.mark.parametrize("auth", [False, True], ids=["no-auth", "token"])
def test_a_client_in_the_field(auth: bool, tmp_path: Path) -> None:
    python = interpreter()
    root = tmp_path / "root"
    root.mkdir()
    with Dispatch(tmp_path / "d.sqlite") as plane:
        token = Tokens(plane).create(ns=EVERYWHERE, role="admin")[0] if auth else ""
        with background(create_app(plane, Options(auth=auth))) as url:
            done = subprocess.run(
                [python, str(CLIENT), url, token, str(root)],
                capture_output=True,
                text=True,
                timeout=100,
                env={**os.environ, "PYTHONPATH": ""},
            )
        errors = [row["error"] for row in plane.invocations(state="failed")]
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["key"][0] == told["key"][1]
    assert told["queued"] == "queued"
    assert told["payload"] == {"x": 1}
    assert told["payload result"] == {"done": True}
    assert told["payload stream"] == [{"half": 1}]
    assert told["sum"] == 5
    assert told["stream"] == [{"k0": 0}, {"k1": 1}, {"k2": 4}, {"k3": 9}]
    assert told["stream again"] == told["stream"][2:]
    # an attempt's ERROR that is tried again is taken back: no reader ends there, the next counts from 0
    assert told["retried live"][-2:] == told["retried stream"] == [{"before": 1}, {"after": 2}]
    assert "never" in told["failed"]
    assert "never" in told["failed stream"]
    assert errors == ["WorkerError: KeyError: 'never'"]
    assert told["topic"] == [0, 1, 2]
    assert told["listen"] == 2
    assert told["silence"] is told["unknown"] is None
    assert "409" in told["lost"]
