from __future__ import annotations

import msgspec
import pytest

from gateway.schemas import asyncapi, ws


def test_every_message_has_a_channel_and_a_schema() -> None:
    document = asyncapi.document()
    assert document["asyncapi"] == "3.0.0"
    messages = document["components"]["messages"]
    assert set(document["channels"]["chat"]["messages"]) == set(messages)
    for message in messages.values():
        name = message["payload"]["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][name]["properties"]["type"]["enum"]
    named = [m["$ref"] for op in document["operations"].values() for m in op["messages"]]
    assert sorted(named) == sorted(f"#/channels/chat/messages/{name}" for name in messages)


def test_clients_may_send_what_is_documented_and_nothing_else() -> None:
    documented = set(asyncapi.CLIENT_MESSAGES.values())
    assert documented == set(ws.ClientMessage.__args__)


@pytest.mark.parametrize("kind", asyncapi.CLIENT_MESSAGES)
def test_types_are_the_tags(kind: str) -> None:
    assert asyncapi.CLIENT_MESSAGES[kind].__struct_config__.tag == kind


def test_it_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(asyncapi.document()))
