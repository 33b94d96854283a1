"""The public names: what `__all__` says, what resolves, and what docs/reference.md documents are the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import lakeshore

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
_DIRECTIVE = re.compile(r"^\.\. auto[a-z]+:: (lakeshore[\w.]*)", re.MULTILINE)


def documented() -> list[str]:
    names = _DIRECTIVE.findall(REFERENCE.read_text("utf-8"))
    return [name.removeprefix("lakeshore.") for name in names if name.count(".") == 1]


def test_all_is_what_the_reference_documents() -> None:
    assert sorted(documented()) == sorted(set(lakeshore.__all__) - {"__version__"})


def test_dir_shows_all() -> None:
    assert dir(lakeshore) == sorted(lakeshore.__all__)


@pytest.mark.parametrize("name", lakeshore.__all__)
def test_each_name_resolves_and_says_what_it_is(name: str) -> None:
    value = getattr(lakeshore, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", value)
        return
    assert inspect.getdoc(value), f"lakeshore.{name} has no docstring"


@pytest.mark.parametrize("name", lakeshore.errors.__all__)
def test_each_error_is_exported_at_the_top_with_a_code_of_its_own(name: str) -> None:
    error = getattr(lakeshore.errors, name)
    assert getattr(lakeshore, name) is error
    if issubclass(error, lakeshore.LakeshoreError):
        every = [getattr(lakeshore.errors, other) for other in lakeshore.errors.__all__]
        codes = [other.code for other in every if issubclass(other, lakeshore.LakeshoreError)]
        assert codes.count(error.code) == 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lakeshore.nothing  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", lakeshore.__all__)
def test_public_members_have_docstrings(name: str) -> None:
    owner = getattr(lakeshore, name)
    if not inspect.isclass(owner):
        return
    missing = [
        member
        for member, value in vars(owner).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod)))
        if not inspect.getdoc(getattr(owner, member))
    ]
    assert not missing, f"lakeshore.{name} lacks docstrings: {missing}"
