from __future__ import annotations

import inspect

import msgspec

from gateway.routes.table import OPERATIONS
from gateway.schemas import asyncapi, responses_ws, ws


def test_every_message_has_a_channel_and_a_schema() -> None:
    document = asyncapi.document(OPERATIONS)
    assert document["asyncapi"] == "3.0.0"
    assert document["channels"].keys() == {"chat", "responses"}
    components = document["components"]
    named = []
    for name, channel in document["channels"].items():
        for message, ref in channel["messages"].items():
            assert ref == {"$ref": f"#/components/messages/{name}_{message}"}
            named.append(f"#/channels/{name}/messages/{message}")
    assert len(components["messages"]) == len(named)
    for message in components["messages"].values():
        schema = components["schemas"][message["payload"]["$ref"].rpartition("/")[2]]
        assert "type" in schema["properties"]
    used = [m["$ref"] for one in document["operations"].values() for m in one["messages"]]
    assert sorted(used) == sorted(named)


def test_clients_may_send_what_is_documented_and_nothing_else() -> None:
    messages = asyncapi.document(OPERATIONS)["operations"]["receive_chat"]["messages"]
    documented = {one["$ref"].rpartition("/")[2] for one in messages}
    assert documented == {struct.__name__ for struct in ws.ClientMessage.__args__}


def test_each_channel_is_described_by_its_module() -> None:
    channels = asyncapi.document(OPERATIONS)["channels"]
    for name, module in (("chat", ws), ("responses", responses_ws)):
        assert channels[name]["description"] == inspect.cleandoc(module.__doc__ or "")


def test_it_is_json() -> None:
    document = asyncapi.document(OPERATIONS)
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
