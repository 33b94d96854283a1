"""Asks a control plane everything its OpenAPI document allows, and more, by schemathesis; it finds nothing.

    pip install schemathesis
    python -m tests.integration.fuzz_openapi --max-examples 300

serves a new store on a free port, runs schemathesis with what else is given, and ends with its exit code.

This also teaches schemathesis what no schema says: msgpack, in which text fields marked ``binary`` are bytes,
and texts that are bounded in bytes. Streams are asked for with ``wait=0``, since one of a journal that nobody
writes to never ends. What lies behind a signed URL is not asked for: nobody can guess one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import msgpack

try:
    import schemathesis  # type: ignore[import-not-found]
    from hypothesis import strategies as st
except ModuleNotFoundError:  # where this only serves
    schemathesis = None


CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 429]
"""
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


def read_now(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Ask for what a stream has by now."""
    if case.path.endswith("/result/stream") and not case.query:
        case.query = {"wait": "0"}
    elif case.path.endswith("/result/stream") and "wait" not in case.query:
        case.query["wait"] = "0"


def decidable(context: Any, case: Any) -> bool:
    """Leave out what is said to break a ``format`` of ours: schemathesis cannot tell whether a text does."""
    meta = getattr(case, "meta", None)
    told = getattr(getattr(getattr(meta, "phase", None), "data", None), "description", None)
    return "`format`" not in (told or "")


def teach() -> None:
    """Tell schemathesis what it does not know."""
    schemathesis.serializer("application/x-msgpack")(as_msgpack)
    schemathesis.deserializer("application/x-msgpack")(of_msgpack)
    schemathesis.hook("before_call")(read_now)
    schemathesis.hook("filter_case")(decidable)
    letters = st.characters(exclude_categories=("Cc", "Cs"))
    printable = st.characters(exclude_categories=("C", "Z"), exclude_characters="@:/?#[]")
    # requests takes the dots of a path away
    name = within(letters, 255).filter(lambda text: text not in ("", ".", ".."))
    part = within(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\:"), 255)
    part = part.filter(lambda text: text not in ("", ".", ".."))
    schemathesis.openapi.format("name", name)
    schemathesis.openapi.format("name-or-nothing", within(letters, 255))
    schemathesis.openapi.format("line", within(printable, 2048).filter(bool))
    schemathesis.openapi.format("key", st.lists(part, min_size=1, max_size=3).map("/".join))


def within(alphabet: Any, most: int) -> Any:
    """Return texts of so many bytes at most."""
    return st.text(alphabet, max_size=most).filter(lambda text: len(text.encode()) <= most)


def serve() -> int:
    """Serve a new store while schemathesis asks; returns its exit code."""
    from lakeshore import Dispatch
    from lakeshore.server import Options, create_app
    from lakeshore.server.run import background

    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.integration.fuzz_openapi"}
    with (
        tempfile.NamedTemporaryFile("w", suffix=".toml") as config,
        Dispatch(":memory:") as plane,
        background(create_app(plane, Options(auth=False, hold=0.02))) as url,
    ):
        config.write(CONFIG)
        config.flush()
        program = [os.environ.get("SCHEMATHESIS", "schemathesis"), "--config-file", config.name]
        command = [*program, "run", f"{url}/openapi.json", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if schemathesis is not None and __name__ != "__main__":
    teach()
if __name__ == "__main__":
    sys.exit(serve())
