"""Numbers as small pictures: sparklines and tables with aligned decimals; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from lakeshore.notebook.render_numerals import as_float, is_number, number

COLUMNS_SHOWN = 10
LEFT = " align=left style=text-align:left"
"""For a cell of text: JupyterLab's own sheet overrules the attribute, and GitHub takes the style away."""


def sparkline(points: Sequence[float]) -> str:
    """Return points as a small ``<img>`` of an SVG line, or an empty text for fewer than two finite ones."""
    finite = [p for p in points if math.isfinite(p)]
    if len(finite) < 2:
        return ""
    finite = [finite[i * (len(finite) - 1) // 31] for i in range(32)] if len(finite) > 32 else finite
    low, high = min(finite), max(finite)
    scale = (high - low) if math.isfinite(high - low) else 0.0
    step = 60 / (len(finite) - 1)
    path = " ".join(
        f"{2 + i * step:.0f},{13 - (11 * ((p - low) / scale) if scale else 5.5):.0f}"
        for i, p in enumerate(finite)
    )
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='64' height='15' viewBox='0 0 64 15'>"
        f"<polyline points='{path}' fill='none' stroke='#3b74d8' stroke-width='1.3'/></svg>"
    )
    # Its size stands in the picture, too: a viewer may strip the attributes and stretch what has none.
    size = 'width="64" height="15" style="vertical-align:middle"'
    return f'<img alt="" {size} src="data:image/svg+xml,{quote(svg, safe=" =:/,.-")}">'


def fields_table(rows: Sequence[Sequence[tuple[str, Any]]]) -> str:
    """Return rows of (key, value) pairs as a table: one column a key, numbers aligned to common decimals."""
    keys = list(dict.fromkeys(key for row in rows for key, _ in row))
    hidden = len(keys) - COLUMNS_SHOWN
    keys = keys[:COLUMNS_SHOWN]
    columns = [_column([dict(row).get(key) for row in rows]) for key in keys]
    left = [LEFT if not numeric else "" for _, numeric in columns]
    head = "".join(f"<th{side}>{escape(key)}" for key, side in zip(keys, left, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{side}>{escape(cells[r])}" for side, (cells, _) in zip(left, columns, strict=True))
        for r in range(len(rows))
    )
    more = f"<div>+{hidden} more keys</div>" if hidden > 0 else ""
    table = f'<table><thead align="right"><tr>{head}<tbody align="right">{body}</table>'
    return f'<div class="lk-scroll">{table}{more}</div>'


def _column(values: list[Any]) -> tuple[list[str], bool]:
    numeric = all(v is None or is_number(v) for v in values)
    numbers = [v for v in values if is_number(v)]
    floats = [as_float(v) for v in numbers if isinstance(v, float) or not as_float(v).is_integer()]
    finite = [abs(x) for x in floats if math.isfinite(x)]
    if not numeric or not finite or not 1e-3 <= max(finite) < 1e7:
        return ["" if v is None else number(v) if is_number(v) else str(v) for v in values], numeric
    texts = [number(x) for x in finite]
    needed = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=6)
    decimals = min(needed, max(0, 3 - math.floor(math.log10(max(finite)))))
    return [_fixed(v, decimals) for v in values], True


def _fixed(value: Any, decimals: int) -> str:
    if value is None:
        return ""
    x = as_float(value)
    return number(value) if isinstance(value, int) or not math.isfinite(x) else f"{x:.{decimals}f}"
