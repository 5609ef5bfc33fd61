from __future__ import annotations

from typing import get_type_hints

from gateway.routes.table import OPERATIONS
from gateway.schemas import openapi
from gateway.schemas.operation import SOCKET


def test_every_reference_leads_somewhere() -> None:
    document = openapi.document(OPERATIONS)

    def check(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(ref := node.get("$ref"), str):
                found: object = document
                for step in ref.removeprefix("#/").split("/"):
                    assert isinstance(found, dict)
                    found = found[step]
            for value in node.values():
                check(value)
        elif isinstance(node, list):
            for value in node:
                check(value)

    check(document)
    ids = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    described = [one for one in OPERATIONS if one.summary and one.method != SOCKET]
    assert len(set(ids)) == len(ids) == len(described)


def test_every_field_of_a_chat_is_documented() -> None:
    schemas = openapi.document(OPERATIONS)["components"]["schemas"]
    assert {"messages", "tools", "logprobs", "structured_outputs"} <= set(
        schemas["ChatCompletionRequest"]["properties"]
    )


def test_handlers_take_the_body_that_the_table_states() -> None:
    for operation in OPERATIONS:
        hints = list(get_type_hints(operation.handler).values())
        if operation.body is not None and operation.method != SOCKET:
            assert hints[2] is operation.body, operation.path
        else:
            assert len(hints) == 3, operation.path  # services, request and what it returns
