"""Recorded sequences of well-known clients, and what those read of the answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from tests.e2e import recorded_clients as recorded
from tests.e2e.on_one_gateway.conftest import with_its_own_tenant
from tests.gateway.raw_http import events
from tests.gateway.serving import MODEL, Gateway

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    async with httpx.AsyncClient(
        base_url=f"{gateway.url}/v1", headers=headers, timeout=30
    ) as client:
        yield client


def filled(body: Any, **values: str) -> Any:
    text = json.dumps(body)
    for name, value in values.items():
        text = text.replace(f'"{{{name}}}"', json.dumps(value))
    return json.loads(text)


async def chunks_of(
    client: httpx.AsyncClient, body: Any, headers: dict[str, str]
) -> list[dict[str, Any]]:
    answer = await client.post("/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer.content)
    assert done == "[DONE]"
    return chunks


def read_as_the_ai_sdk(chunks: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]], Any]:
    """It opens a call at a new index, which must bring id and name, and closes it when its
    arguments have become JSON; usage and the finish reason come from wherever they are."""
    text, finish = "", None
    calls: list[dict[str, str]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            text += delta.get("content") or ""
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "name": piece["function"]["name"], "text": ""})
                    assert piece["type"] == "function"
                calls[piece["index"]]["text"] += piece["function"].get("arguments", "")
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert len(usage) == 1
    assert usage[0]["prompt_tokens"] > 0
    return text, calls, finish


async def test_the_ai_sdk_calls_a_tool_and_goes_on(client: httpx.AsyncClient) -> None:
    headers = recorded.AI_SDK_HEADERS
    first = await chunks_of(client, recorded.AI_SDK_FIRST, headers)
    text, (call,), finish = read_as_the_ai_sdk(first)
    assert (text, finish) == ("", "tool_calls")
    assert json.loads(call["text"]) == {"city": "Oslo"}
    body = filled(recorded.AI_SDK_SECOND, call_id=call["id"], arguments=call["text"])
    text, calls, finish = read_as_the_ai_sdk(await chunks_of(client, body, headers))
    assert text
    assert (calls, finish) == ([], "stop")


@pytest.mark.parametrize("body", [recorded.AI_SDK_OBJECT, recorded.AI_SDK_LOOSE_OBJECT])
async def test_the_ai_sdk_generates_an_object(client: httpx.AsyncClient, body: Any) -> None:
    answer = await client.post("/chat/completions", json=body, headers=recorded.AI_SDK_HEADERS)
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "stop":
        document = json.loads(choice["message"]["content"])
        assert isinstance(document, dict)
        if body is recorded.AI_SDK_OBJECT:
            jsonschema.validate(document, recorded.DRAFT_07)
    else:
        assert choice["finish_reason"] == "length"


async def test_the_ai_sdk_calls_a_tool_over_responses(client: httpx.AsyncClient) -> None:
    """Its calls are checked against their schema, and fail there if they do not hold it."""
    (call,) = await items_of(client, recorded.AI_SDK_6_FIRST)
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    jsonschema.validate(json.loads(call["arguments"]), recorded.AI_SDK_6_SCHEMA)
    body = filled(recorded.AI_SDK_6_SECOND, call_id=call["call_id"], arguments=call["arguments"])
    assert [item["type"] for item in await items_of(client, body)] == ["message"]


async def items_of(client: httpx.AsyncClient, body: Any) -> list[dict[str, Any]]:
    """Of a streamed response that ends well."""
    answer = await client.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line[:5] == "data:"]
    assert data[-1] == "[DONE]"
    last = json.loads(data[-2])
    assert last["type"] == "response.completed"
    items: list[dict[str, Any]] = last["response"]["output"]
    return items


async def test_the_ai_sdk_generates_an_object_over_responses(client: httpx.AsyncClient) -> None:
    answer = await client.post("/responses", json=recorded.AI_SDK_6_OBJECT)
    assert answer.status_code == 200, answer.text
    response = answer.json()
    if response["status"] == "completed":
        text = response["output"][0]["content"][0]["text"]
        jsonschema.validate(json.loads(text), recorded.AI_SDK_6_SCHEMA)
    else:
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_the_ai_sdk_reads_errors(client: httpx.AsyncClient) -> None:
    body = recorded.AI_SDK_FIRST | {"model": "gpt-9"}
    answer = await client.post("/chat/completions", json=body)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_open_webui_chats_and_asks_for_its_titles(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    gateway = await with_its_own_tenant(gateway)
    headers = {**recorded.OPEN_WEBUI_HEADERS, "authorization": f"Bearer {gateway.api_key}"}
    models = (await client.get("/models", headers=headers)).json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == [MODEL]
    text, _, finish = read_as_the_ai_sdk(await chunks_of(client, recorded.OPEN_WEBUI_CHAT, headers))
    assert text
    assert finish == "stop"
    for task in recorded.OPEN_WEBUI_TASKS:
        answer = await client.post("/chat/completions", json=task, headers=headers)
        assert answer.status_code == 200, answer.text
        assert isinstance(answer.json()["choices"][0]["message"]["content"], str)
    assert (await gateway.usage(4)).requests == 4


async def test_langchain_asks_for_a_structured_answer(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/chat/completions", json=recorded.LANGCHAIN)).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "City"
    if answer["usage"]["completion_tokens"] < recorded.LANGCHAIN["max_completion_tokens"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), recorded.DRAFT_07)
