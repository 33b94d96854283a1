"""The saved notebooks read as texts: run in order, outputs kept and clean, a check, the next one named.

Their outputs are held to a new run by `pytest --nbval` (tasks.py test); here they are held to their reader.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lakeshore.notebook.render_style import BLANK

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
GUIDE = [
    "00_start",
    "01_training_stream",
    "02_one_kernel",
    "03_failures",
    "04_reattach",
    "05_fan_out",
    "06_files",
    "07_control_plane",
    "08_async",
    "09_topics",
]
_THIS_MACHINE = re.compile(r"/(?:tmp|home|root|Users|private|var/folders|workspace)/\w|\blsk_\w")
_LINK = re.compile(r"\]\(([^)#:]+)\)")
IMAGE_BYTES, PANEL_BYTES = 60_000, 20_000


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8"))["cells"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def outputs(path: Path) -> list[dict[str, Any]]:
    return [out for cell in cells(path) if cell["cell_type"] == "code" for out in cell["outputs"]]


def is_blank(out: dict[str, Any]) -> bool:
    """Whether it is the clear point that a panel leaves of its stand-in."""
    return {mime: "".join(data).strip() for mime, data in out["data"].items()} == {"image/png": BLANK}


def texts(path: Path) -> list[str]:
    """What the outputs say, images left out."""
    return [
        "".join(text)
        for out in outputs(path)
        for text in (
            out.get("text", ""),
            *(data for mime, data in out.get("data", {}).items() if mime.startswith("text/")),
        )
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_of_a_format_that_viewers_take(self, path: Path) -> None:
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
        assert set(notebook.metadata) == {"kernelspec", "language_info"}

    def test_opens_with_a_title_and_explains_each_step(self, path: Path) -> None:
        kinds = [cell["cell_type"] for cell in cells(path)]
        assert source(cells(path)[0]).startswith("# ")
        assert kinds.count("markdown") >= kinds.count("code") // 2

    def test_ran_in_order_without_errors(self, path: Path) -> None:
        code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert not [out for out in outputs(path) if out["output_type"] == "error"]
        assert not [out for out in outputs(path) if out.get("name") == "stderr"]

    def test_keeps_its_outputs_as_html_or_text(self, path: Path) -> None:
        assert outputs(path)
        for out in outputs(path):
            assert out["output_type"] == "stream" or "text/plain" in out["data"] or is_blank(out)

    def test_keeps_each_panel_as_a_final_record(self, path: Path) -> None:
        panels = [out["data"] for out in outputs(path) if "lakeshore-panel" in str(out.get("data"))]
        for data in panels:
            assert "application/vnd.jupyter.widget-view+json" not in data
            assert "lk-record" in "".join(data["text/html"])
            assert re.search(r"\b(?:succeeded|failed|cancelled)\b", "".join(data["text/plain"]))
            assert len("".join(data["text/html"])) < PANEL_BYTES

    def test_names_no_machine(self, path: Path) -> None:
        assert [found[0] for text in texts(path) for found in _THIS_MACHINE.finditer(text)] == []

    def test_checks_itself(self, path: Path) -> None:
        assert any("assert " in source(cell) for cell in cells(path) if cell["cell_type"] == "code")

    def test_stays_small(self, path: Path) -> None:
        assert path.stat().st_size < 300_000
        images = [
            data
            for out in outputs(path)
            for mime, data in out.get("data", {}).items()
            if mime.startswith("image/")
        ]
        assert max(map(len, images), default=0) < IMAGE_BYTES

    def test_leads_on_to_the_next(self, path: Path) -> None:
        links = [link for cell in cells(path) for link in _LINK.findall(source(cell))]
        assert [link for link in links if not (FOLDER / link).exists()] == []
        following = GUIDE[GUIDE.index(path.stem) + 1 :]
        if following:
            assert re.search(rf"Next: \[.+\]\({following[0]}\.ipynb\)", source(cells(path)[-1]))


def test_the_guide_lists_them_in_order() -> None:
    assert [path.stem for path in NOTEBOOKS] == GUIDE
    for page in ("index.md", "tutorials.md"):
        text = (FOLDER.parent / "docs" / page).read_text("utf-8")
        assert re.findall(r"notebooks/(\d\d_\w+)", text) == GUIDE
