"""The preview notebook shows every view without a plane, a worker or a job."""

from __future__ import annotations

from pathlib import Path

PREVIEW = Path(__file__).parents[2] / "widgets" / "preview.ipynb"


def test_every_view_is_shown() -> None:
    import nbclient
    import nbformat

    nb = nbformat.read(PREVIEW, as_version=4)
    assert not any(cell.get("outputs") for cell in nb.cells), "a saved widget would be an empty box"
    source = "\n".join(cell.source for cell in nb.cells)
    assert "Dispatch" not in source and "SyncQueue" not in source
    nbclient.NotebookClient(nb, timeout=60, kernel_name="python3").execute()
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    views = [o for o in outputs if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    records = [o for o in outputs if "lk-record" in o.get("data", {}).get("text/html", "")]
    assert len(views) == 6 and len(records) == 3
