"""How answers look: tables for people, JSON for machines.

What is for people has every control character of a job's text made visible; JSON is exact.
"""

from __future__ import annotations

import base64
import datetime as dt
import json as jsonlib
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeshore.cli.terminal import json_text, one_line, shown

if TYPE_CHECKING:
    from lakeshore.conformance import Outcome
    from lakeshore.planes.health import Finding

_LEAST_WIDTH = 12
_STYLES = {"queued": "dim", "running": "cyan", "succeeded": "green", "failed": "red", "cancelled": "yellow"}


def jobs(rows: list[dict[str, Any]], *, json: bool) -> None:
    """Print a list of jobs."""
    if json:
        return value(rows, json=True)
    named = any(row.get("name") for row in rows)
    _table(
        ("id", *(["name"] if named else []), "queue", "state", "attempt", "submitted", "took", "error"),
        (
            (
                row["id"],
                *([row["name"] or ""] if named else []),
                row["queue"],
                _state(row["state"]),
                row["attempt"],
                _ago(row["submitted_at"]),
                _took(row),
                (row.get("error") or "").splitlines()[0][:60] if row.get("error") else "",
            )
            for row in rows
        ),
        spare=("attempt", "took", "submitted", "error", "name", "queue"),
        empty="no jobs",
    )
    return None


def row(fields: dict[str, Any], *, json: bool) -> None:
    """Print one job."""
    if json:
        return value(fields, json=True)
    for name, field in fields.items():
        if field is None or name in ("result", "traceback"):
            continue
        text = _clock(field) if name.endswith("_at") or name == "not_before" else str(field)
        _print(f"{name:>16}  {one_line(text)}")
    if fields.get("result") is not None:
        _print(f"{'result':>16}  {len(fields['result']):,} bytes; see: lakeshore result {fields['id']}")
    if fields.get("traceback"):
        _print(f"\n{fields['traceback'].rstrip()}")
    return None


def queues(counts: Mapping[str, Mapping[str, int]], *, json: bool) -> None:
    """Print the counts of each queue."""
    if json:
        return value(counts, json=True)
    _table(
        ("queue", *_STYLES),
        ((name, *(by_state.get(state, 0) for state in _STYLES)) for name, by_state in sorted(counts.items())),
        empty="no queues",
    )
    return None


def workers(rows: list[dict[str, Any]], *, everyone: bool, json: bool) -> None:
    """Print a list of workers; without `everyone` those that are gone are only counted."""
    if json:
        return value(rows, json=True)
    gone = [row for row in rows if row["gone"]]
    _table(
        ("worker", "queue", "host", "pid", "version", "seen", "running", *(["state"] if everyone else [])),
        (
            (
                row["worker_id"],
                row["queue"],
                row["host"],
                row["pid"],
                row["version"],
                _ago(row["seen_at"]),
                row["running"],
                *(["gone" if row["gone"] else "here"] if everyone else []),
            )
            for row in rows
            if everyone or not row["gone"]
        ),
        spare=("version", "host", "pid", "seen", "queue"),
        empty=f"no worker {'is here now' if rows else 'has asked for a job'}. "
        "Start one: lakeshore worker start --queue NAME",
    )
    if gone and not everyone:
        held = sum(row["running"] for row in gone)
        jobs = f", with {held} running job{'' if held == 1 else 's'} that will be taken anew" if held else ""
        _print(f"{len(gone)} more {'is' if len(gone) == 1 else 'are'} gone{jobs}; --all lists them")
    return None


def stopped(rows: list[dict[str, Any]], *, json: bool) -> None:
    """Print which workers were stopped."""
    if json:
        return value(rows, json=True)
    _table(
        ("worker", "queue", "pid", "outcome", "why"),
        ((row["worker_id"], row["queue"], row["pid"], row["outcome"], row["reason"] or "") for row in rows),
        empty="no worker of this machine runs",
    )
    return None


def tokens(rows: list[dict[str, Any]], *, json: bool) -> None:
    """Print a list of tokens, none of them itself."""
    if json:
        return value(rows, json=True)
    _table(
        ("id", "role", "state", "namespace", "last used", "until", "name"),
        (
            (
                *(row[name] for name in ("id", "role", "state", "namespace")),
                "never" if row["last_used_at"] is None else minute(row["last_used_at"]),
                "" if row["expires_at"] is None else minute(row["expires_at"]),
                row["name"],
            )
            for row in rows
        ),
        spare=("last used", "until", "name", "namespace"),
        empty="no tokens. Make one: lakeshore token create",
    )
    return None


def findings(rows: list[Finding], *, json: bool) -> None:
    """Print what the doctor found."""
    if json:
        return value([row._asdict() for row in rows], json=True)
    marks = {"ok": ("ok", "green"), "note": ("note", "yellow"), "fault": ("FAULT", "red")}
    for row in rows:
        mark, style = marks[row.state]
        _line((mark.ljust(6), style), (row.check.ljust(14), "bold"), (row.found, ""))
        if row.fix and row.state != "ok":
            _line(("".ljust(6), ""), ("".ljust(14), ""), (f"→ {row.fix}", ""))
    faults = sum(row.state == "fault" for row in rows)
    _print("all is well" if not faults else f"{faults} fault{'' if faults == 1 else 's'} to mend")
    return None


def outcomes(rows: list[Outcome], says: Mapping[str, str], *, json: bool) -> None:
    """Print which rules of the contract held; `says` is each rule in a sentence."""
    if json:
        return value([{**row._asdict(), "says": says[row.rule]} for row in rows], json=True)
    for row in rows:
        mark, style = ("held  ", "green") if row.ok else ("BROKEN", "red")
        _line((mark, style), (row.rule, "bold"), (says[row.rule], ""))
        if not row.ok:
            _print("".join(f"         {text}\n" for text in row.detail.strip().splitlines()).rstrip())
    held = sum(row.ok for row in rows)
    _print(f"{held} of {len(rows)} rules held")
    return None


def value(item: Any, *, json: bool) -> None:
    """Print one value."""
    if json:
        return _print_json(item, indent=2)
    _print(item if isinstance(item, str) else _pretty(item))
    return None


def line(item: Any, *, json: bool) -> None:
    """Print one value on one line, at once."""
    if json:
        _print_json(item)
    else:
        _print(item if isinstance(item, str) else repr(item))
    sys.stdout.flush()


def display_text(bundle: Mapping[str, Any]) -> str:
    """Return a display as text."""
    rich = [str(mime) for mime in bundle if mime != "text/plain"]
    return (
        f"{bundle.get('text/plain', '')} [{', '.join(rich)}]" if rich else str(bundle.get("text/plain", ""))
    )


def minute(at: float) -> str:
    """Return a time as a clock and a calendar here tell it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _line(*cells: tuple[str, str]) -> None:
    """Print styled cells on one line; long ones are not cut."""
    from rich.console import Console
    from rich.text import Text

    text = Text("  ").join(Text(shown(cell), style) for cell, style in cells)
    Console(highlight=False, markup=False, soft_wrap=True).print(text)


def _print(text: str) -> None:
    print(shown(text))  # noqa: T201 - what a command line is for


def _print_json(item: Any, indent: int | None = None) -> None:
    print(json_text(_json(item, indent)))  # noqa: T201 - as above


def _pretty(item: Any) -> str:
    from pprint import pformat

    return pformat(item, width=100, sort_dicts=False)


def _json(item: Any, indent: int | None = None) -> str:
    return jsonlib.dumps(_plain(item), indent=indent, ensure_ascii=False, default=_other)


def _plain(item: Any) -> Any:
    """Return an item in JSON's own types; a dict whose keys would become one is a list of pairs."""
    if isinstance(item, Mapping):
        table = {key if isinstance(key, str) else repr(key): _plain(each) for key, each in item.items()}
        return table if len(table) == len(item) else [[_plain(k), _plain(each)] for k, each in item.items()]
    if isinstance(item, (list, tuple)):
        return [_plain(each) for each in item]
    if isinstance(item, (set, frozenset)):
        return [_plain(each) for each in sorted(item, key=repr)]
    if isinstance(item, float) and not math.isfinite(item):
        return repr(item)
    return item


def _other(item: Any) -> Any:
    if isinstance(item, (bytes, bytearray)):
        return {"base64": base64.b64encode(item).decode()}
    if isinstance(item, (dt.date, dt.time)):
        return item.isoformat()
    if getattr(getattr(item, "dtype", None), "kind", "") in ("M", "m"):  # tolist gives bare integers
        return _plain(item.astype(str).tolist())
    for rows in ("to_pylist", "to_dicts", "tolist"):  # pyarrow's, polars', numpy's and pandas'
        if callable(found := getattr(item, rows, None)):
            return _plain(found())
    table = getattr(item, "to_dict", None)
    return _plain(table("records")) if callable(table) else str(item)


def _table(
    columns: Iterable[str], rows: Iterable[Iterable[Any]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print a table; in a terminal too narrow for it, without the columns of `spare`, first to last."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
    names = list(columns)
    body = [
        [cell if isinstance(cell, Text) else Text(one_line(str(cell))) for cell in cells] for cells in rows
    ]
    shown_ones = _fitting(names, body, console.width, spare)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number in shown_ones:
        table.add_column(names[number], no_wrap=number == 0, overflow="ellipsis" if number else "fold")
    for cells in body:
        table.add_row(*(cells[number] for number in shown_ones))
    if table.row_count:
        console.print(table)
    else:
        console.print(empty)


def _fitting(names: list[str], body: list[list[Any]], width: int, spare: Sequence[str]) -> list[int]:
    """Return which columns to show: all whose widths, two apart and the last cut short, fit."""
    widths = [max([len(name), *(cells[n].cell_len for cells in body)]) for n, name in enumerate(names)]
    kept = list(range(len(names)))
    for name in (*spare, None):
        least = sum(widths[n] + 2 for n in kept[:-1]) + min(widths[kept[-1]], _LEAST_WIDTH)
        if least <= width or name is None:
            break
        kept = [n for n in kept if names[n] != name]
    return kept


def _state(state: str) -> Any:
    from rich.text import Text

    return Text(state, style=_STYLES.get(state, ""))


def _ago(at: float) -> str:
    return f"{_span(time.time() - at)} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _took(row: dict[str, Any]) -> str:
    if row.get("started_at") is None:
        return ""
    return f"{(row.get('finished_at') or time.time()) - row['started_at']:.1f} s"


def _clock(at: float) -> str:
    """Write a time and how far it is from now; what is as good as never is only a number."""
    try:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f}"
    left = at - time.time()
    return f"{stamp} (in {_span(left)})" if left > 0 else f"{stamp} ({_ago(at)})"
