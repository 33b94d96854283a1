"""pandas on the wire: DataFrame, Series and Index (19) as Arrow IPC streams, proved to come back the same.

The stream holds one column for each column of the frame (one for a Series, none for an Index), under its
label where the labels are unique text, then one for each index level. A column of Python objects is a column
of text, or else of packed values. The schema's metadata holds ``lakeshore``: a packed dict of what Arrow does
not keep (kind, labels, names, a RangeIndex, freq, attrs, which columns are packed). A stream without it is
read as `pyarrow.Table.to_pandas` does.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lakeshore.wire.codecs import Refused
from lakeshore.wire.values import pack, unpack

_KEY = b"lakeshore"
_LEVEL = "index:"
_MAX_NESTED = 3
_TEXT = frozenset({str, type(None)})
_PLAIN = frozenset({str, bytes, int, bool, type(None)})
_nesting = threading.local()


def encoder(kind: type) -> tuple[int, Callable[[Any], bytes]] | None:
    """Return the codec for pandas' frames, series and indexes, or None. Raises `Refused` for its scalars."""
    if kind is pd.DataFrame or kind is pd.Series or issubclass(kind, pd.Index):
        return 19, encode_pandas
    if kind is pd.Timestamp:
        raise Refused("a pandas Timestamp has no code; send value.to_pydatetime(), or value.to_datetime64()")
    if kind is pd.Timedelta:
        raise Refused(
            "a pandas Timedelta has no code; send value.to_pytimedelta(), or value.to_timedelta64()"
        )
    if issubclass(kind, pd.api.extensions.ExtensionArray):
        raise Refused(f"a pandas {kind.__name__} has no code; send pandas.Series(value)")
    if kind in (type(pd.NA), type(pd.NaT)):
        raise Refused(f"a pandas {kind.__name__} has no code; send None, or float('nan')")
    return None


def encode_pandas(value: Any) -> bytes:
    """Return the IPC stream of a pandas value. Raises `Refused` where it would lose something."""
    try:
        import pyarrow  # noqa: F401 - said here, before anything is tried
    except ImportError:
        raise Refused("a pandas value travels as Arrow; install it: pip install pyarrow") from None
    what = f"this pandas {type(value).__name__}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is not exact is found by looking
            body = _encode(value)
            difference = _difference(value, decode_pandas(body))
    except (MemoryError, RecursionError, Refused):
        raise
    except Exception as e:
        raise Refused(f"{what} has no exact Arrow form ({type(e).__name__}: {e}); {_FIX}") from e
    if difference:
        raise Refused(f"{what} would not come back the same: {difference}; {_FIX}")
    return body


_FIX = "give its columns plain dtypes (value.astype(...)), or send value.to_dict('list')"


def _encode(value: Any) -> bytes:
    import pyarrow as pa

    from lakeshore.wire.codecs_tables import encode_arrow

    index = value if isinstance(value, pd.Index) else value.index
    extra: dict[str, Any] = {"kind": "index", "names": list(index.names)}
    extra["multi"] = isinstance(index, pd.MultiIndex)
    columns: dict[str, Any] = {}
    if isinstance(value, pd.DataFrame):
        extra["kind"] = "frame"
        labels = _arrow_names(value.columns)
        if labels is None:
            labels = [str(n) for n in range(value.shape[1])]
            extra["labels"] = _encode(value.columns)
        columns = {label: value.iloc[:, n] for n, label in enumerate(labels)}
    elif isinstance(value, pd.Series):
        extra |= {"kind": "series", "name": value.name}
        columns = {"0": value}
    if not isinstance(value, pd.Index):
        extra |= {"attrs": value.attrs, "unique": not value.flags.allows_duplicate_labels}
    if type(index) is pd.RangeIndex:
        extra["range"] = range(index.start, index.stop, index.step)
    else:
        extra["freq"] = getattr(getattr(index, "freq", None), "freqstr", None)
        columns |= {f"{_LEVEL}{n}": index.get_level_values(n) for n in range(index.nlevels)}
    table = pa.Table.from_pandas(
        pd.DataFrame({name: column.array for name, column in columns.items() if column.dtype != object}),
        preserve_index=False,
        nthreads=1,
    )
    arrays = dict(zip(table.column_names, table.columns, strict=True))
    extra |= {"objects": [], "packed": []}
    for name, column in columns.items():
        if column.dtype == object:
            values = column.to_list()
            packed = not _TEXT.issuperset(map(type, values))
            extra["packed" if packed else "objects"].append(name)
            cells = [pack(cell, at=f"{name}[{n}]") for n, cell in enumerate(values)] if packed else values
            arrays[name] = pa.array(cells, pa.large_binary() if packed else pa.large_string())
        elif isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
            arrays[name] = pa.array(column.to_numpy(), from_pandas=False)  # else a NaN would lose its bits
    metadata = {**(table.schema.metadata or {}), _KEY: pack(extra)}
    return encode_arrow(pa.table({name: arrays[name] for name in columns}).replace_schema_metadata(metadata))


def _arrow_names(labels: pd.Index) -> list[str] | None:
    """Return column labels that can be the Arrow columns' names, or None where they must travel apart."""
    names = list(labels)
    plain = type(labels) is pd.Index and labels.name is None and labels.is_unique
    plain = plain and all(type(name) is str and not name.startswith(_LEVEL) for name in names)
    return names if plain and names and pd.Index(names).dtype == labels.dtype else None


def decode_pandas(body: bytes) -> Any:
    """Return the DataFrame, Series or Index of a stream."""
    from lakeshore.wire.codecs_tables import decode_arrow

    level = getattr(_nesting, "level", 0)
    if level >= _MAX_NESTED:  # labels and attrs may hold frames, and each costs C stack
        raise ValueError("a pandas value nested too deep in another's labels or attrs")
    _nesting.level = level + 1
    try:
        table = decode_arrow(body)
        _check_types(table.schema)
        packed = (table.schema.metadata or {}).get(_KEY)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _to_pandas(table) if packed is None else _decode(table, unpack(packed))
    finally:
        _nesting.level = level


def _to_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(use_threads=False).copy()


def _decode(table: Any, extra: dict[str, Any]) -> Any:
    apart = [*extra["objects"], *extra["packed"]]
    plain = _to_pandas(table.drop_columns(apart))
    columns: dict[str, Any] = {}
    for name in table.column_names:
        if name in apart:
            cells = table.column(name).to_pylist()
            values = np.empty(len(cells), dtype=object)
            values[:] = [unpack(cell) for cell in cells] if name in extra["packed"] else cells
            columns[name] = pd.Series(values, dtype=object)
        else:
            columns[name] = plain[name]
    names = extra["names"]
    levels = [columns.pop(name) for name in list(columns) if name.startswith(_LEVEL)]
    index = _index(levels, extra)
    index.names = names
    kind = extra["kind"]
    if kind == "index":
        return index
    value: Any
    if kind == "series":
        value = columns["0"].set_axis(index)
        value.name = extra["name"]
    else:
        value = pd.DataFrame(dict(enumerate(columns.values())), index=None if columns else index)
        value.index = index
        value.columns = decode_pandas(extra["labels"]) if "labels" in extra else pd.Index(list(columns))
    value.attrs = dict(extra["attrs"])
    return value.set_flags(allows_duplicate_labels=False) if extra["unique"] else value


def _index(levels: list[Any], extra: dict[str, Any]) -> Any:
    if not levels:
        steps = extra["range"]
        return pd.RangeIndex(steps.start, steps.stop, steps.step)
    if extra["multi"]:
        return pd.MultiIndex.from_arrays(levels)
    index = pd.Index(levels[0], dtype=object if levels[0].dtype == object else None)
    if extra["freq"] is not None and not isinstance(index, pd.PeriodIndex):
        index.freq = extra["freq"]
    return index


def _check_types(schema: Any) -> None:
    from pyarrow import types

    known = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("columns", [])
    target = {column["field_name"]: column["numpy_type"] for column in known}
    for field in schema:
        _check_type(field.type, nested=False)
        if types.is_dictionary(field.type) and "int" not in target.get(field.name, "int"):
            raise ValueError("a pandas column of categories cannot be decoded as another dtype")


def _check_type(kind: Any, *, nested: bool) -> None:
    """Raise `ValueError` for an Arrow type whose values may be far more than its bytes."""
    from pyarrow import types

    if types.is_run_end_encoded(kind) or str(kind).endswith("_view") or "_view<" in str(kind):
        raise ValueError(f"a pandas column of Arrow type {kind} cannot be decoded safely")
    if nested and types.is_dictionary(kind):
        raise ValueError(f"a pandas column that nests Arrow type {kind} cannot be decoded safely")
    for child in _children(kind):
        _check_type(child, nested=True)


def _children(kind: Any) -> list[Any]:
    from pyarrow import BaseExtensionType, types

    if isinstance(kind, BaseExtensionType):
        return [kind.storage_type]
    if types.is_dictionary(kind):
        return [kind.value_type]
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_type]
    if types.is_struct(kind) or types.is_union(kind):
        return [kind.field(n).type for n in range(kind.num_fields)]
    return []


def _difference(a: Any, b: Any) -> str | None:
    if type(a) is not type(b):
        return f"it would be a {type(b).__name__}"
    if isinstance(a, pd.Index):
        return _index_difference(a, b)
    index = _index_difference(a.index, b.index)
    if index:
        return f"its index: {index}"
    if isinstance(a, pd.Series):
        return _column_difference(a, b) or (None if _same_label(a.name, b.name) else "its name")
    columns = _index_difference(a.columns, b.columns)
    if columns:
        return f"its column labels: {columns}"
    for n, label in enumerate(a.columns):
        column = _column_difference(a.iloc[:, n], b.iloc[:, n])
        if column:
            return f"column {label!r}: {column}"
    return None


def _index_difference(a: Any, b: Any) -> str | None:
    if type(a) is not type(b):
        return f"{type(a).__name__} against {type(b).__name__}"
    if len(a.names) != len(b.names) or not all(map(_same_label, a.names, b.names)):
        return f"names {list(a.names)} against {list(b.names)}"
    if getattr(a, "freq", None) != getattr(b, "freq", None):
        return f"freq {a.freq} against {b.freq}"
    if isinstance(a, pd.RangeIndex):
        return None if (a.start, a.stop, a.step) == (b.start, b.stop, b.step) else f"{a} against {b}"
    if isinstance(a, pd.MultiIndex):
        if a.nlevels != b.nlevels:
            return "levels"
        parts = ((a.get_level_values(n), b.get_level_values(n)) for n in range(a.nlevels))
        return next(filter(None, (_index_difference(x, y) for x, y in parts)), None)
    return _column_difference(a.to_series(), b.to_series())


def _column_difference(a: Any, b: Any) -> str | None:
    if a.dtype != b.dtype or type(a.dtype) is not type(b.dtype):
        return f"dtype {a.dtype} against {b.dtype}"
    if len(a) != len(b):
        return f"length {len(a)} against {len(b)}"
    if a.dtype == object:
        return None if all(map(_same_label, a.to_numpy(), b.to_numpy())) else "values in an object dtype"
    if isinstance(a.dtype, np.dtype):
        return None if a.to_numpy().tobytes() == b.to_numpy().tobytes() else "values"
    if isinstance(a.dtype, pd.CategoricalDtype):
        categories = _index_difference(a.cat.categories, b.cat.categories)
        same = a.cat.ordered == b.cat.ordered and bool(
            (a.cat.codes.to_numpy() == b.cat.codes.to_numpy()).all()
        )
        return f"categories: {categories}" if categories else None if same else "values"
    return None if a.array.equals(b.array) else "values"


def _same_label(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return bool(a == b) if type(a) in _PLAIN else repr(a) == repr(b)
