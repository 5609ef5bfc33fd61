"""The published documents against the running server."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from gateway.routes import pages
from gateway.routes.table import OPERATIONS
from gateway.schemas.answers import ChatCompletionAnswer, ChatCompletionChunk, CompletionAnswer
from gateway.schemas.operation import SOCKET
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import chat, events, get
from tests.gateway.serving import MODEL, Gateway, chat_body
from tests.gateway.ws_client import ready

pytestmark = pytest.mark.asyncio

TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def published(gateway: Gateway, path: str) -> Any:
    answer = await get(gateway, path)
    assert answer.status == 200
    return answer.json()


def validator(document: Any, name: str) -> jsonschema.Draft202012Validator:
    """Of one component; nothing may come that is not documented."""
    schemas = {
        key: {"additionalProperties": False, **schema} if "properties" in schema else schema
        for key, schema in document["components"]["schemas"].items()
    }
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    )


async def test_every_route_is_documented_and_the_other_way_round(gateway: Gateway) -> None:
    document = await published(gateway, "/openapi.json")
    documented = {(m.upper(), path) for path, one in document["paths"].items() for m in one}
    channels = (await published(gateway, "/asyncapi.json"))["channels"].values()
    documented |= {(SOCKET, channel["address"]) for channel in channels}
    served = {(one.method, one.path.replace(":path", "")) for one in OPERATIONS if one.summary}
    assert served == documented
    left_out = {one.path for one in OPERATIONS if not one.summary}
    assert left_out <= {"/v1/responses/compact", *(one.path for one in pages.operations())}


ASKED: list[dict[str, Any]] = [
    {},
    {"n": 2, "metadata": {"a": "b"}, "service_tier": "auto"},
    {"logprobs": True, "top_logprobs": 2},
    {"tools": TOOLS},
    {"stream_options": {"include_usage": True, "include_obfuscation": True}},
]


@pytest.mark.parametrize("fields", ASKED)
async def test_chat_answers_are_as_documented(
    gateway: Gateway, double: EngineDouble, fields: dict[str, Any]
) -> None:
    double.script = lambda prompt: Play(text=f"So: {CALL}" if "tools" in fields else "Hé")
    document = await published(gateway, "/openapi.json")
    if "stream_options" not in fields:
        answer = (await chat(gateway, chat_body(**fields))).json()
        validator(document, "ChatCompletionAnswer").validate(answer)
        msgspec.convert(answer, ChatCompletionAnswer)
    *chunks, done = events((await chat(gateway, chat_body(stream=True, **fields))).body)
    assert done == "[DONE]"
    for chunk in chunks:
        validator(document, "ChatCompletionChunk").validate(chunk)
        msgspec.convert(chunk, ChatCompletionChunk)


async def test_completions_are_as_documented(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="Hé")
    document = await published(gateway, "/openapi.json")
    async with gateway.openai() as client:
        body = {"model": MODEL, "prompt": "a", "logprobs": 2}
        answer = await client.post("/completions", body=body, cast_to=object)
    validator(document, "CompletionAnswer").validate(answer)
    msgspec.convert(answer, CompletionAnswer)


async def test_errors_are_as_documented(gateway: Gateway) -> None:
    document = await published(gateway, "/openapi.json")
    answer = await chat(gateway, chat_body(n=0))
    validator(document, "ErrorBody").validate(answer.json())


async def test_requests_that_are_refused_for_their_form_break_the_document(
    gateway: Gateway,
) -> None:
    document = await published(gateway, "/openapi.json")
    check = validator(document, "ChatCompletionRequest")
    check.validate(chat_body(tools=TOOLS, stop=["a"], logit_bias={"1": 2}))
    for change in ({"zz": 1}, {"messages": "hi"}, {"tool_choice": "any"}):
        assert not check.is_valid(chat_body() | change)
        assert (await chat(gateway, chat_body() | change)).status == 400


async def test_the_frames_of_a_socket_are_as_documented(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text=f"So: {CALL}" if "tools" in prompt else "Hé")
    document = await published(gateway, "/asyncapi.json")
    frames: list[dict[str, Any]] = []
    async with ready(gateway) as client:
        await client.send(type="ping", data="x")
        frames.append(await client.receive())
        await client.chat("a", logprobs=True, top_logprobs=1)
        frames += await client.turn("a")
        await client.chat("b", tools=TOOLS, resumable=True)
        frames += await client.turn("b")
        await client.chat("c", n=1)
        frames += await client.turn("c")
        await client.send(type="nonsense")
        frames.append(await client.receive())
    kinds = {frame["type"] for frame in frames}
    assert kinds == {"pong", "started", "delta", "done", "error"}
    for frame in frames:
        name = {"pong": "Pong", "started": "Started", "delta": "Delta", "done": "Done"}.get(
            frame["type"], "TurnError" if frame.get("id") else "SocketError"
        )
        ref = document["components"]["messages"][f"chat_{name}"]["payload"]["$ref"]
        validator(document, ref.rpartition("/")[2]).validate(frame)
    assert any("logprobs" in frame for frame in frames)
    assert any("tool_calls" in frame for frame in frames)


async def test_documents_need_no_key_and_are_json(gateway: Gateway) -> None:
    for path in ("/openapi.json", "/asyncapi.json"):
        answer = await get(gateway, path)
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.body)
