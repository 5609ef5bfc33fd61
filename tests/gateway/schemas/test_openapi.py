from __future__ import annotations

from gateway.routes.documents import document_routes
from gateway.schemas import openapi
from gateway.schemas.openapi import OPERATIONS


def test_every_reference_leads_somewhere() -> None:
    document = openapi.document()

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
    assert len(set(ids)) == len(ids) == len(OPERATIONS)


def test_every_field_of_a_chat_is_documented() -> None:
    schemas = openapi.document()["components"]["schemas"]
    assert {"messages", "tools", "logprobs", "structured_outputs"} <= set(
        schemas["ChatCompletionRequest"]["properties"]
    )


def test_the_documents_are_served() -> None:
    assert {route.path for route in document_routes()} == {"/openapi.json", "/asyncapi.json"}
