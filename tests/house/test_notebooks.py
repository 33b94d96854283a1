"""The saved notebooks read as texts: run in order, outputs kept, no error, a check, nothing left alive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8"))["cells"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_opens_with_a_title_and_explains_each_step(self, path: Path) -> None:
        kinds = [cell["cell_type"] for cell in cells(path)]
        assert source(cells(path)[0]).startswith("# ")
        assert kinds.count("markdown") >= kinds.count("code") // 2

    def test_ran_in_order_without_errors(self, path: Path) -> None:
        code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]

    def test_keeps_its_outputs_as_html_or_text(self, path: Path) -> None:
        outputs = [out for cell in cells(path) if cell["cell_type"] == "code" for out in cell["outputs"]]
        assert outputs
        for out in outputs:
            assert out["output_type"] == "stream" or "text/plain" in out["data"]
            kinds = set(out.get("data", {}))
            assert "application/vnd.jupyter.widget-view+json" not in kinds or "text/html" in kinds

    def test_checks_itself(self, path: Path) -> None:
        assert any("assert " in source(cell) for cell in cells(path) if cell["cell_type"] == "code")

    def test_stays_small(self, path: Path) -> None:
        assert path.stat().st_size < 300_000


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS][:2] == ["00_start", "01_training_stream"]
