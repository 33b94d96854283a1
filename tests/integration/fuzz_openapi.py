"""Asks a control plane everything its OpenAPI document allows, and more, by schemathesis.

    pip install schemathesis
    python -m tests.integration.fuzz_openapi &  # serves a new store on port 8123, holds nothing
    SCHEMATHESIS_HOOKS=tests.integration.fuzz_openapi schemathesis run http://127.0.0.1:8123/openapi.json \\
        --exclude-path-regex 'result/stream|storages|code-repos'

It also teaches schemathesis msgpack, in which text fields marked ``binary`` are bytes. Left out are streams,
since one of a journal that nobody writes to never ends, and files, whose keys have rules no schema tells:
tests/unit/server has both.
"""

from __future__ import annotations

from typing import Any

import msgpack

try:
    import schemathesis  # type: ignore[import-not-found]
except ModuleNotFoundError:  # where this only serves
    schemathesis = None


BINARY = frozenset({"args_blob", "bytes", "result_blob", "frame"})


def plain(value: Any) -> Any:
    """Return a generated value as msgpack can hold it."""
    if isinstance(value, dict):
        return {
            str(key): each.encode() if key in BINARY and isinstance(each, str) else plain(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return (
        value
        if isinstance(value, (bytes, bool, int, float, type(None)))
        else bytes(getattr(value, "data", b""))
    )


def as_msgpack(context: Any, value: Any) -> bytes:
    """Pack a body."""
    if isinstance(value, bytes):
        return value
    body = plain(value)
    data: bytes = msgpack.packb(body)
    return data


def of_msgpack(context: Any, response: Any) -> Any:
    """Read an answer; what JSON has no type for is shown as text."""
    reader = msgpack.Unpacker(raw=False, strict_map_key=False)
    reader.feed(response.content)
    items = [shown(each) for each in reader]
    return (
        items[0] if response.headers.get("content-type", [""])[0] == "application/x-msgpack" else str(items)
    )


def shown(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def serve() -> None:
    """Serve a new store until it is stopped."""
    from lakeshore import Dispatch
    from lakeshore.server import Options, create_app
    from lakeshore.server.run import listen, server_of

    with Dispatch(":memory:") as plane:
        app = create_app(plane, Options(auth=False, hold=0.02))
        server_of(app).run(sockets=[listen("127.0.0.1", 8123)])


if schemathesis is not None:
    schemathesis.serializer("application/x-msgpack")(as_msgpack)
    schemathesis.deserializer("application/x-msgpack")(of_msgpack)
if __name__ == "__main__":
    serve()
