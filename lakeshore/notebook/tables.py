"""What the line magics return: lists, dicts and text that show themselves as HTML, escaped, and as text."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Format = Callable[[Any], str]


class Table(list[dict[str, Any]]):
    """Rows that show as a table.

    Parameters
    ----------
    rows : iterable of dict
        The rows; each may hold more than is shown.
    columns : mapping of str to callable
        What is shown: column -> how its value is written.
    empty : str
        What is shown instead of a table without rows.
    """

    def __init__(
        self, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Format], *, empty: str = "none"
    ) -> None:
        super().__init__(dict(row) for row in rows)
        self._columns, self._empty = dict(columns), empty

    def __reduce__(self) -> tuple[type, tuple[list[dict[str, Any]]]]:
        """Travel as the plain rows: how they are shown stays here."""
        return list, (list(self),)

    def cells(self) -> list[list[str]]:
        """Return what is shown, headings first."""
        heads = [name.replace("_", " ") for name in self._columns]
        return [heads, *([show(row.get(name)) for name, show in self._columns.items()] for row in self)]

    def __repr__(self) -> str:
        if not self:
            return self._empty
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(self._columns))]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
        )

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{html.escape(self._empty)}</p>"
        heads, *rows = self.cells()
        return _html_table([f"<th>{html.escape(h)}</th>" for h in heads], rows)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class Record(dict[str, Any]):
    """One thing's fields, shown as a table of two columns."""

    def __repr__(self) -> str:
        width = max((len(name) for name in self), default=0)
        return "\n".join(
            f"{name.ljust(width)}  {_indented(plain(value), width + 2)}" for name, value in self.items()
        )

    def _repr_html_(self) -> str:
        return _html_table([], [[name, value] for name, value in self.items()])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class Text(str):
    """Text that shows as it is, not as a quoted literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Count(int):
    """A number that shows what it counts.

    Parameters
    ----------
    number : int
        The number.
    said : str
        What is shown.
    """

    said: str

    def __new__(cls, number: int, said: str) -> Count:  # noqa: D102 - the class's own
        made = super().__new__(cls, number)
        made.said = said
        return made

    def __reduce__(self) -> tuple[type, tuple[int]]:
        """Travel as the plain number."""
        return int, (int(self),)

    def __repr__(self) -> str:
        return self.said

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.said)


def _html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    style = "text-align:left;vertical-align:top;white-space:pre-wrap"
    body = "".join(
        "<tr>" + "".join(f'<td style="{style}">{_html(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    head = f'<thead><tr style="text-align:left">{"".join(heads)}</tr></thead>' if heads else ""
    return f'<table class="lakeshore-table">{head}<tbody>{body}</tbody></table>'


def _html(cell: Any) -> str:
    return cell._repr_html_() if isinstance(cell, Table) else html.escape(plain(cell))


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


# -- how values are written


def plain(value: Any) -> str:
    """Write any value; None is nothing."""
    return "" if value is None else str(value)


def first_line(value: Any) -> str:
    """Write the first line of a text, at most 80 characters."""
    line = plain(value).partition("\n")[0]
    return line if len(line) <= 80 else line[:79] + "…"


def span(seconds: float) -> str:
    """Write a duration in its largest unit: ``0.4 s``, ``12 s``, ``3 min``, ``2.0 h``, ``5 d``."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def ago(at: float | None) -> str:
    """Write how far off a time in Unix seconds is: ``3 min ago``, ``in 2.0 h``."""
    if at is None:
        return ""
    since = time.time() - at
    # Less than a second ahead is another machine's clock.
    return f"{span(since)} ago" if since > -1 else f"in {span(-since)}"


def when(at: float | None) -> str | None:
    """Write a time in Unix seconds by the local clock, and how long ago that was."""
    if at is None:
        return None
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} ({ago(at)})"


def age(seconds: float) -> str:
    """Write a duration in whole units and words: ``30 days``, ``1 hour``."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return _plural(int(seconds // length), unit)
    return _plural(int(seconds) if seconds == int(seconds) else seconds, "second")


def _plural(number: float, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
