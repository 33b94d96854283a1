"""What `%%lakeshore submit` refuses because the kernel, or the cell itself, would be the worse for it."""

from __future__ import annotations

import pytest

from tests.unit.notebook.conftest import Notebook


@pytest.mark.parametrize("flag", ["-o", "--out", "-w -r"])
@pytest.mark.parametrize(
    "name", ["__builtins__", "__name__", "get_ipython", "In", "Out", "_", "__", "_i", "_oh", "_3", "exit"]
)
def test_a_variable_that_the_kernel_lives_by(nb: Notebook, flag: str, name: str) -> None:
    said = nb.refused(f"%%lakeshore submit gpu {flag} {name}\ndef job(): return 1")
    assert f"{name!r} belongs to Python or IPython" in said
    assert nb("len([1, 2])") == 2


@pytest.mark.parametrize("name", ["class", "a.b", "1x", "a b"])
def test_what_is_no_variable(nb: Notebook, name: str) -> None:
    assert "is no name for a variable" in nb.refused(
        f"%%lakeshore submit gpu --out '{name}'\ndef job(): return 1"
    )


@pytest.mark.parametrize("name", ["job", "_job", "_lakeshore", "__job", "Input", "été"])
def test_other_variables_are_the_users(nb: Notebook, name: str) -> None:
    nb(f"%%lakeshore submit gpu -q --out {name}\ndef job(): return 1")
    assert nb.result(nb.names[name]) == 1


@pytest.mark.parametrize("flag", ["", "--cell", "--dry-run"])
@pytest.mark.parametrize(
    ("line", "number"),
    [("x = '\ud800'", 2), ("def f(): return 1\n# \udfff\nf()", 3), ("1\n'''\n\udc80'''", 4)],
)
def test_half_a_character(nb: Notebook, flag: str, line: str, number: int) -> None:
    said = nb.refused(f"%%lakeshore submit gpu {flag}\n{line}")
    assert f"line {number}: holds half a character, U+D" in said
    assert "UnicodeEncodeError" not in said


def test_half_a_character_that_is_escaped(nb: Notebook) -> None:
    nb("%%lakeshore submit gpu -q --out job\nx = '\\ud800'\nlen(x)")
    assert nb.result(nb.names["job"]) == 1
