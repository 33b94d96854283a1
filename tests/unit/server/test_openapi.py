"""The OpenAPI document says what routes there are; tests/integration/fuzz_openapi.py asks them by it."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]

from lakeshore.planes import protocol
from lakeshore.planes.contract import LONGEST_SPAN
from lakeshore.planes.protocol_files import OBJECT_BYTES
from lakeshore.planes.protocol_values import LONGEST, MOST_VALUES, SMALL_LIMIT
from lakeshore.server import Options
from lakeshore.server.code_repos import LINE_BYTES
from lakeshore.server.filing import UPLOADS
from lakeshore.server.storages import JSON_BYTES, KEY_BYTES


def test_it_names_every_route_of_the_protocol(shared):
    told = shared.get("/openapi.json").told
    paths = {(method.upper(), path) for path, each in told["paths"].items() for method in each}
    routes = {
        (each.method, each.template) for each in vars(protocol).values() if isinstance(each, protocol.Route)
    }
    assert routes <= paths
    served = {
        (method, route.path)
        for route in shared.app.routes
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert paths == served


def test_its_schemas_are_schemas(shared):
    told = shared.get("/openapi.json").told
    for each in told["paths"].values():
        for operation in each.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for body in bodies:
                for content in body.get("content", {}).values():
                    jsonschema.Draft202012Validator.check_schema(content["schema"])
    ids = [operation["operationId"] for each in told["paths"].values() for operation in each.values()]
    assert len(ids) == len(set(ids))


def test_a_token_is_asked_for_where_one_is_wanted(shared_guarded):
    told = shared_guarded.get("/openapi.json").told
    assert told["security"] == [{"token": []}]
    assert told["paths"]["/healthz"]["get"]["security"] == []


def test_a_signed_url_wants_no_token(shared_guarded):
    told = shared_guarded.get("/openapi.json").told["paths"]["/v1/files/{signed}"]
    assert told["get"]["security"] == told["put"]["security"] == []
    assert {"200", "206", "403", "404", "412", "416"} <= told["get"]["responses"].keys()
    assert {"200", "202", "403", "413"} <= told["put"]["responses"].keys()


def test_the_limit_of_each_body_is_the_one_it_says(serve):
    served = serve(body_limit=300 * 1024)
    told = served.get("/openapi.json").told["paths"]
    posts = [(path, each["post"]) for path, each in told.items() if "post" in each]
    assert len(posts) > 10
    for path, operation in posts:
        refusal = operation["responses"]["413"]["description"]
        limit = 65_536 if "65,536" in refusal else 262_144 if "262,144" in refusal else 300 * 1024
        for size, over in ((limit, False), (limit + 1, True)):
            body = b"\xc7" + b"\0" * (size - 1)
            answer = served.post(re.sub(r"{\w+}", "x", path), body)
            assert (answer.status_code == 413) is over, (path, size, answer.text)


def test_every_status_of_an_error_is_told(shared):
    told = shared.get("/openapi.json").told["paths"]
    said = {status for path in told.values() for each in path.values() for status in each["responses"]}
    assert said >= {str(status) for status in protocol.STATUSES.values()}


def test_the_limits_of_the_documentation_are_those_in_force():
    text = (Path(__file__).parents[3] / "docs" / "control-plane.md").read_text("utf-8")
    table = text.partition("## Limits")[2].partition("\n## ")[0]
    options = Options()
    for limit in (
        f"| {options.body_limit // 2**20} MiB |",
        f"| {SMALL_LIMIT // 1024} KiB; {JSON_BYTES // 1024} KiB |",
        f"{MOST_VALUES:,}, of which {LONGEST:,} in one list",
        f"| connections | {options.connections:,},",
        f"| {options.streams} |",
        f"| {options.hold:g} s |",
        f"| {options.header_bytes // 1024} KiB within {options.header_seconds:g} s |",
        "{0} s and a second for each KiB, never silent for {0} s |".format(f"{options.body_seconds:g}"),
        f"| {options.stall_seconds:g} s | cut off |",
        f"| {UPLOADS} | 429",
        f"| {OBJECT_BYTES // 2**30} GiB | 413 |",
        f"| {KEY_BYTES} bytes of UTF-8, 255 a part | 400 |",
        f"| {LINE_BYTES} bytes of UTF-8 | 400 |",
        f"| {LONGEST_SPAN:,} seconds (ten years) | 400 |",
        f"| {options.field_lease / 3600:g} h |",
    ):
        assert limit in table, limit
