"""Arrow on the wire: pyarrow.Table (21) and polars.DataFrame (20) as uncompressed Arrow IPC streams.

`arrow_stream` proves a stream harmless before anyone decodes it: whole, uncompressed, every offset in bounds.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

from lakeshore.wire.codecs import Refused

_MAGIC = 0xFFFFFFFF
_DICTIONARY, _RECORDS = 2, 3  # Message.header's union
_SLACK = 4096


def encoder(kind: type) -> tuple[int, Callable[[Any], bytes]] | None:
    """Return the codec for a polars DataFrame or a pyarrow Table, or None. Raises `Refused` for their kin."""
    package, name = kind.__module__.partition(".")[0], kind.__name__
    if package == "polars":
        import polars

        if kind is polars.DataFrame:
            return 20, encode_polars
        if kind is polars.Series:
            raise Refused("a polars Series has no code of its own; send value.to_frame()")
        if kind is polars.LazyFrame:
            raise Refused("a polars LazyFrame is a plan, not data; send value.collect()")
    elif package == "pyarrow":
        import pyarrow

        if kind is pyarrow.Table:
            return 21, encode_arrow
        if kind is pyarrow.RecordBatch:
            raise Refused("a pyarrow RecordBatch has no code; send pyarrow.Table.from_batches([value])")
        if name.endswith(("Array", "Scalar")):
            raise Refused(
                f"a pyarrow {name} has no code; send a pyarrow.table, or value.to_pylist() / as_py()"
            )
    return None


def encode_arrow(table: Any) -> bytes:
    """Return the IPC stream of a pyarrow Table."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    if not decode_arrow(body).equals(table, check_metadata=True) and not _holds_nan(table.schema):
        raise Refused(
            "this pyarrow Table does not survive an Arrow IPC stream; send columns as arrays or lists"
        )
    return body


def _holds_nan(schema: Any) -> bool:
    """Whether a table may hold a NaN, which `equals` takes as different from itself."""
    return any("float" in str(kind) or "double" in str(kind) for kind in schema.types)


def decode_arrow(body: bytes) -> Any:
    """Return the pyarrow Table of a stream, every value in bounds."""
    import pyarrow

    check_stream(body)
    source = pyarrow.BufferReader(body)
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)  # a pool of threads would not survive a fork
    table = pyarrow.ipc.open_stream(source, options=options).read_all()
    if source.tell() != len(body):
        raise ValueError("bytes are left over after an Arrow stream")
    table.validate(full=True)
    return table


def encode_polars(frame: Any) -> bytes:
    """Return the IPC stream of a polars DataFrame."""
    sink = io.BytesIO()
    try:
        frame.write_ipc_stream(sink, compression="uncompressed")
        body = sink.getvalue()
        back = decode_polars(body)
    except BaseException as e:
        if not _is_polars(e):
            raise
        raise Refused(f"a polars DataFrame of {frame.schema} has no Arrow form: {e}; cast its columns") from e
    if back.schema != frame.schema or not back.equals(frame, null_equal=True):
        raise Refused(
            f"a polars DataFrame of {frame.schema} would come back as {back.schema}; cast its columns"
        )
    return body


def decode_polars(body: bytes) -> Any:
    """Return the polars DataFrame of a stream."""
    import polars

    check_stream(body)
    try:
        return polars.read_ipc_stream(io.BytesIO(body))
    except BaseException as e:
        if not _is_polars(e):
            raise
        raise ValueError(f"polars cannot read the stream: {type(e).__name__}: {e}") from e


def _is_polars(error: BaseException) -> bool:
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def check_stream(body: bytes) -> None:
    """Raise `ValueError` unless `body` is a whole Arrow IPC stream without compression or absurd lengths.

    A compressed buffer states its decompressed length itself, and a column of nulls its rows: a few bytes
    could ask for any amount of memory.

    Source: the Arrow columnar format, "Encapsulated message format", and its Message.fbs.
    """
    at = 0
    while True:
        if len(body) - at == 0:
            return
        magic, size = struct.unpack_from("<Ii", body, at)
        at += 8
        if magic != _MAGIC or size < 0 or size > len(body) - at:
            raise ValueError("no Arrow stream, or a truncated one")
        if size == 0:
            if at != len(body):
                raise ValueError("bytes are left over after an Arrow stream")
            return
        length = _check_message(body[at : at + size], len(body))
        at += size
        if not 0 <= length <= len(body) - at:
            raise ValueError("a truncated Arrow stream")
        at += length


def _check_message(meta: bytes, limit: int) -> int:
    """Return the length of the body that follows a message."""
    root = _u32(meta, 0)
    kind_at, header_at, length_at = (_field(meta, root, n) for n in (1, 2, 3))
    kind = meta[kind_at] if kind_at else 0
    if kind in (_DICTIONARY, _RECORDS) and header_at:
        records = header_at + _u32(meta, header_at)
        if kind == _DICTIONARY:
            data_at = _field(meta, records, 1)
            records = data_at + _u32(meta, data_at)
        if _field(meta, records, 3):
            raise ValueError("a compressed Arrow stream; write it uncompressed")
        rows_at, nodes_at = _field(meta, records, 0), _field(meta, records, 1)
        rows = _i64(meta, rows_at) if rows_at else 0
        columns = _u32(meta, nodes_at + _u32(meta, nodes_at)) if nodes_at else 0
        if rows < 0 or (columns and rows > 8 * limit + _SLACK):
            raise ValueError(f"an Arrow stream of {limit} bytes cannot hold {rows} rows")
        nodes = nodes_at + _u32(meta, nodes_at) + 4 if nodes_at else 0
        for n in range(columns):
            if not 0 <= _i64(meta, nodes + 16 * n) <= 8 * limit + _SLACK:
                raise ValueError(
                    f"an Arrow stream of {limit} bytes cannot hold {_i64(meta, nodes + 16 * n)} values"
                )
    return _i64(meta, length_at) if length_at else 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a flatbuffers table holds its field, 0 where it is left out."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if not 0 <= vtable <= len(data) - 4:
        raise ValueError("a damaged Arrow message")
    size = int(struct.unpack_from("<H", data, vtable)[0])
    if 4 + 2 * number + 2 > size:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _i64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0])
