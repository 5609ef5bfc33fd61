from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from gateway.admission import unsupported
from gateway.schemas import ws
from gateway.schemas.chat import ChatCompletionRequest, ChatFields

EXAMPLES: list[str] = [
    " ".join(text.split()) for text in re.findall(r"``(\{.*?\})``", ws.__doc__ or "", re.DOTALL)
]
CLIENT = {"auth", "chat", "cancel", "ping"}
SERVER: dict[str, type[msgspec.Struct]] = {
    "ready": ws.Ready,
    "started": ws.Started,
    "done": ws.Done,
    "error": ws.TurnError,
    "pong": ws.Pong,
}


def example(kind: str) -> Any:
    for text in EXAMPLES:
        if f'"type": "{kind}"' in text:
            filled = text.replace(", ...}", "}").replace('"usage": {...}', '"usage": null')
            return json.loads(filled)
    raise AssertionError(f"{kind} has no example")


@pytest.mark.parametrize("kind", sorted(CLIENT))
def test_the_documented_messages_of_clients_are_understood(kind: str) -> None:
    decoded = msgspec.convert(example(kind), ws.ClientMessage)
    assert type(decoded).__struct_config__.tag == kind


@pytest.mark.parametrize("kind", sorted(SERVER))
def test_the_documented_messages_of_the_server_have_these_fields(kind: str) -> None:
    fields = set(SERVER[kind].__struct_fields__) - {"structured_outputs"} | {"type"}
    assert set(example(kind)) == fields


def test_a_chat_has_the_documented_fields() -> None:
    assert ws.__doc__ is not None
    http, chat = set(ChatCompletionRequest.__struct_fields__), set(ws.Chat.__struct_fields__)
    assert set(ChatFields.__struct_fields__) < http & chat
    refused = {*unsupported.CHAT, *unsupported.HINTS}
    only_http = {"stream", "stream_options", "n", "store", "prediction"}
    assert http - chat == only_http | refused
    assert chat - http == {"id"}
    for name in (*only_http, "model", "reasoning_content", "logprobs"):
        assert f"``{name}``" in ws.__doc__


def test_a_chat_takes_what_chat_completions_takes_but_its_transport() -> None:
    only_http = set(ChatCompletionRequest.__struct_fields__) - set(ws.Chat.__struct_fields__)
    assert {"stream", "stream_options", "n"} <= only_http
    with pytest.raises(msgspec.ValidationError, match="unknown field `stream`"):
        msgspec.convert({"type": "chat", "id": "t", "messages": [], "stream": True}, ws.Chat)
