"""Every code block of README and guide runs as printed, in a real kernel, one kernel a page.

``python`` and ``ipython`` blocks are cells, in order. A line ``expression  # → value`` is held to its
value. ``bash`` blocks are held to the commands and flags there are. Other fences are not run.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```\{?(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"\s# → (?P<value>.+)$")


def blocks(page: Path, *languages: str) -> list[str]:
    found = _FENCE.findall(page.read_text("utf-8"))
    return [body for language, body in found if language in languages]


def checked(cell: str) -> str:
    """Turn each ``expression  # → value`` statement of a cell into an assertion; magics stay as they are."""
    lines = cell.splitlines()
    python = "\n".join("pass" if line.startswith(("%", "!")) else line for line in lines)
    if cell.startswith("%%"):
        return cell
    for node in reversed(ast.parse(python).body):
        match = _ARROW.search(lines[(node.end_lineno or 0) - 1])
        if match and isinstance(node, ast.Expr):
            code, promise = ast.unparse(node.value), match["value"]
            lines[node.lineno - 1 : node.end_lineno] = [
                f"__got = repr({code})",
                f"assert __got == {promise!r}, 'the page promises ' + {promise!r} + ', got ' + __got",
            ]
    return "\n".join(lines)


@pytest.fixture
def kernel(tmp_path: Path, home: Path) -> Iterator[object]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path), extra_arguments=["--HistoryManager.enabled=False"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def with_cells() -> list[Path]:
    return [page for page in PAGES if page.is_file() and blocks(page, "python", "ipython")]


@pytest.mark.parametrize("page", with_cells(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_run(page: Path, kernel: object) -> None:
    for number, cell in enumerate(blocks(page, "python", "ipython"), 1):
        said: list[str] = []
        reply = kernel.execute_interactive(  # type: ignore[attr-defined]
            checked(cell),
            timeout=60,
            allow_stdin=False,
            output_hook=lambda message: said.append(str(message["content"].get("text", ""))),
        )["content"]
        assert reply["status"] == "ok", (
            f"{page.name}, block {number}:\n{cell}\n{reply.get('ename')}: {reply.get('evalue')}\n"
            + "".join(said)
        )


def commands() -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), line)
        for page in PAGES
        if page.is_file()
        for block in blocks(page, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]


def usage(command: list[str]) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


@pytest.mark.parametrize(("page", "line"), commands())
def test_the_commands_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:
        words.pop(0)
    if words[:2] == ["python3", "tasks.py"]:
        tasks = subprocess.run([sys.executable, "tasks.py", "-h"], capture_output=True, text=True, cwd=ROOT)
        assert f"tasks.py {words[2]} " in tasks.stdout
        return
    if words[0] == "lakeshore":
        program = [str(Path(sys.executable).parent / "lakeshore")]
        verbs = list(takewhile(re.compile(r"[a-z]+").fullmatch, words[1:]))
    elif words[:3] == ["python", "-m", "lakeshore.daemon"]:
        program, verbs = [sys.executable, *words[1:3]], []
    else:
        return
    text = usage([*program, *verbs])
    if verbs[:1] == ["worker"]:
        text += usage([sys.executable, "-m", "lakeshore.daemon"])
    for flag in [word.partition("=")[0] for word in words if word.startswith("--")]:
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), f"{page}: no flag {flag}: {line}"


def test_the_arrow_rule() -> None:
    assert "assert" in checked("1 + 1  # → 2")
    assert checked("x = 1  # a plain comment") == "x = 1  # a plain comment"


def test_the_readme_opens_with_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"```bash\n(.*?)\n```", text, re.DOTALL)[:2] == [
        "python3 tasks.py demo",
        "python3 tasks.py test",
    ]


def test_the_links_lead_somewhere() -> None:
    broken = []
    for page in filter(Path.is_file, PAGES):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
