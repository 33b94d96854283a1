"""A saved notebook as a stranger opens it: JupyterLab does not trust it and strips every ``<style>``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from lakeshore.notebook import render
from lakeshore.notebook.render_overview import GroupState, group_record
from lakeshore.notebook.render_state import Metric, PanelState
from lakeshore.notebook.render_terminal import Terminal
from lakeshore.notebook.render_values import show

if TYPE_CHECKING:
    from conftest import Front

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ID = "01KPZ4T9Q0V7M2D8R5XW3YHBNC"
TRUSTED = "() => window.jupyterapp.shell.currentWidget.content.widgets.some(cell => cell.model.trusted)"
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
CONTRAST = """element => {
    const light = text => {
        const channels = text.match(/[\\d.]+/g).slice(0, 3).map(c => {
            c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 });
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2] };
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
    const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05) }"""


def records() -> list[str]:
    """A job with numbers, a frozen one, and a fan-out."""
    metric = Metric("loss")
    for n in range(40):
        metric.add(1 / (n + 1))
    job = PanelState(
        ID, "squares(5)", "start", "succeeded", 1, "localhost-1", started_at=1.0, finished_at=1.5
    )
    job.frames, job.rate, job.metrics = 5, 9.6, {"loss": metric}
    terminal = Terminal()
    terminal.feed("\x1b[31mred\x1b[0m and \x1b[1;42mbold\x1b[0m, $x$ and $y$")
    job.log = terminal.lines(5)
    job.tail, job.result = [show({"step": n, "word": "x"}) for n in range(5)], show(55)
    frozen = PanelState(ID, "train", "gpu", "running", 1, "localhost-1", started_at=1.0, following="frozen")
    rows: list[dict[str, Any]] = [
        {"id": f"ID{n}", "queue": "gpu", "state": state, "attempt": 1, "error": None, "worker_id": "w"}
        | {"started_at": 1.0, "finished_at": None}
        for n, state in enumerate(["running", "queued"])
    ]
    group = GroupState("grid", rows, names={"ID0": "train(0.1)", "ID1": "train(0.3)"})
    return [render.record_html(job, 2.0), render.record_html(frozen, 2.0), group_record(group, 2.0)]


def write(path: Path, outputs: list[str]) -> None:
    """Save a notebook that no server has signed."""
    nb = nbformat.v4.new_notebook()
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for html in outputs:
        cell = nbformat.v4.new_code_cell("", execution_count=1)
        data = {"text/html": html, "text/plain": "a panel"}
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
        nb.cells.append(cell)
    nbformat.write(nb, path)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_record_reads_well_where_it_is_not_trusted(lab: Front, theme: str) -> None:
    name = f"untrusted-{theme[-5:].strip()}.ipynb"
    write(lab.root / name, records())
    lab.open(name, kernel=False)
    lab.page.evaluate(THEME, theme)
    lab.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=theme)
    job, frozen, group = (lab.output(n) for n in range(3))
    job.get_by_text("succeeded").wait_for()
    assert not lab.page.evaluate(TRUSTED), "the server signed what it had not run"
    assert lab.page.locator(".jp-OutputArea style").count() == 0, "this Lab keeps stylesheets"

    text = job.inner_text().replace("\u00a0", " ")
    assert "● succeeded · squares(5) · start · on localhost-1 · 0.5 s · 5 frames, 9.6/s · " + ID in text
    assert re.search(r"^loss 0\.025 *$", text, re.MULTILINE) and "result 55" in text
    sizes = [image.bounding_box() for image in job.locator("img").all()]
    assert [(box["width"], box["height"]) for box in sizes if box] == [(64, 15)]
    label, picture = job.get_by_text("loss", exact=True).bounding_box(), sizes[0]
    assert label and picture and abs(label["y"] - picture["y"]) < 12, "the line stands beside its number"
    assert job.locator("td").first.inner_text() == "0"
    assert job.locator("td").nth(1).evaluate("cell => getComputedStyle(cell).textAlign") == "left"

    red, bold = job.locator("pre").get_by_text("red", exact=True), job.locator("pre b").get_by_text("bold")
    assert red.evaluate("e => getComputedStyle(e).color") == "rgb(209, 58, 64)"
    behind = "e => getComputedStyle(e.parentElement).backgroundColor"
    assert bold.evaluate(behind) == "rgb(35, 134, 58)"
    assert "$x$ and $y$" in job.inner_text(), "a dollar was taken for a formula"

    frozen.get_by_text("frozen as it stood").wait_for()
    assert frozen.locator("[role=progressbar], .lk-bar").count() == 0
    lines = group.inner_text().replace("\u00a0", " ")
    assert "grid · 0 of 2 ended · ● queued 1 · ● running 1" in lines
    assert "train(0.3)" in group.locator("tr").nth(2).inner_text()
    for words in (job.get_by_text("succeeded"), job.get_by_text(ID), job.locator("td").first):
        assert words.evaluate(CONTRAST) > 4.5


def test_the_first_notebooks_are_small_pictures_and_whole_words_where_not_trusted(lab: Front) -> None:
    for path in sorted(NOTEBOOKS.glob("0[01]*.ipynb")):
        name = f"foreign-{path.name}"
        (lab.root / name).write_bytes(path.read_bytes())
        lab.open(name, kernel=False)
        output = lab.page.locator(".jp-OutputArea").filter(has_text="succeeded").first
        output.wait_for()
        assert not lab.page.evaluate(TRUSTED)
        heights = output.locator("img[src^='data:image/svg']").evaluate_all("all => all.map(i => i.height)")
        assert heights and max(heights) == 15
        assert "succeeded ·" in output.inner_text()
