"""The OpenAPI document says what routes there are; tests/integration/fuzz_openapi.py asks them by it."""

from __future__ import annotations

import jsonschema  # type: ignore[import-untyped]

from lakeshore.planes import protocol


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
        if method != "HEAD" and not route.path.endswith((".js", ".css"))
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
