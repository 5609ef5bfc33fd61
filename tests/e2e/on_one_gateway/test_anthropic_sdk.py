"""The real ``anthropic`` package against the real engine, and requests in Claude Code's style."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e import recorded_clients as recorded
from tests.gateway.serving import MODEL, Gateway

if TYPE_CHECKING:  # it takes a second, which whoever collects all tests need not wait for
    import anthropic
    from anthropic import AsyncAnthropic

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

HELLO: list[Any] = [{"role": "user", "content": "Hello! What can you do?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def client(gateway: Gateway) -> AsyncIterator[AsyncAnthropic]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(
        base_url=gateway.url, api_key=gateway.api_key, max_retries=0
    ) as client:
        yield client


def options(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 200}
    return {**body, "extra_body": {"temperature": 0}, **fields}


async def test_create(client: AsyncAnthropic, gateway: Gateway) -> None:
    message = await client.messages.create(**options(system="Be brief."))
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens > 0
    assert message._request_id
    counted = await client.messages.count_tokens(
        model=MODEL, messages=HELLO, system=[{"type": "text", "text": "Be brief."}]
    )
    cached = message.usage.cache_read_input_tokens
    assert cached is not None
    assert counted.input_tokens == message.usage.input_tokens + cached


async def test_a_prompt_that_comes_again_is_read_from_the_cache(client: AsyncAnthropic) -> None:
    system: Any = [
        {"type": "text", "text": "Be kind. " * 40, "cache_control": {"type": "ephemeral"}}
    ]
    first = await client.messages.create(**options(system=system))
    again = await client.messages.create(**options(system=system))
    assert again.usage.cache_read_input_tokens
    assert first.usage.cache_read_input_tokens is not None
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == (
        first.usage.input_tokens + first.usage.cache_read_input_tokens
    )


async def test_stream_equals_create(client: AsyncAnthropic) -> None:
    whole = await client.messages.create(**options())
    kinds: list[str] = []
    async with client.messages.stream(**options()) as stream:
        texts: list[str] = []
        async for event in stream:
            kinds.append(event.type)
            if event.type == "text":
                texts.append(event.text)
        final = await stream.get_final_message()
    assert final.content[0].model_dump() == whole.content[0].model_dump()
    assert "".join(texts) == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "end_turn"
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert len(texts) > 1


async def test_a_tool_in_two_steps(client: AsyncAnthropic) -> None:
    asked = options(messages=WEATHER, tools=[TOOL])
    async with client.messages.stream(**asked) as stream:
        pieces = [event.partial_json async for event in stream if event.type == "input_json"]
        first = await stream.get_final_message()
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use"
    assert call.name == "get_weather"
    assert call.input == {"city": "Oslo"} == json.loads("".join(pieces))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature_c":7}'}
    turns = [
        *WEATHER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = await client.messages.create(**options(messages=turns, tools=[TOOL]))
    assert second.stop_reason == "end_turn"
    assert second.content[0].type == "text"


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}],
)
async def test_a_tool_that_must_be_called(client: AsyncAnthropic, choice: Any) -> None:
    message = await client.messages.create(**options(tools=[TOOL], tool_choice=choice))
    (call,) = message.content
    assert (call.type, message.stop_reason) == ("tool_use", "tool_use")
    assert set(call.input) == {"city"}


async def test_a_tool_that_must_not_be_called(client: AsyncAnthropic) -> None:
    asked = options(messages=WEATHER, tools=[TOOL], tool_choice={"type": "none"})
    message = await client.messages.create(**asked)
    assert {block.type for block in message.content} == {"text"}


async def test_a_stop_sequence(client: AsyncAnthropic) -> None:
    whole = (await client.messages.create(**options())).content[0].text
    word = whole.split()[2]
    message = await client.messages.create(**options(stop_sequences=["unsaid", word]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert message.content[0].text == whole[: whole.index(word)]


async def test_the_end_of_the_budget_and_of_the_context(client: AsyncAnthropic) -> None:
    short = await client.messages.create(**options(max_tokens=2))
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    long = await client.messages.create(**options(max_tokens=20_000))
    assert long.stop_reason == "end_turn"


async def test_a_schema(client: AsyncAnthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    message = await client.messages.create(
        **options(
            messages=[{"role": "user", "content": "Extract as JSON: Anna is 31 years old."}],
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    )
    assert set(json.loads(message.content[0].text)) == {"name", "age"}


async def test_the_models(client: AsyncAnthropic) -> None:
    (model,) = [model async for model in client.models.list()]
    assert (model.id, model.type) == (MODEL, "model")
    assert (await client.models.retrieve(MODEL)).display_name == MODEL


def kind_of(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    return str(body["error"]["type"])


async def test_errors_have_their_classes(client: AsyncAnthropic, gateway: Gateway) -> None:
    import anthropic
    from anthropic import AsyncAnthropic

    with pytest.raises(anthropic.BadRequestError) as bad:
        await client.messages.create(**options(max_tokens=0))
    assert kind_of(bad.value) == "invalid_request_error"
    assert "max_tokens" in str(bad.value)
    assert bad.value.request_id
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**options(model="other"))
    assert kind_of(missing.value) == "not_found_error"
    with pytest.raises(anthropic.NotFoundError, match="Message Batches"):
        await client.messages.batches.list()
    async with AsyncAnthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0) as other:
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(**options())
    async with AsyncAnthropic(
        base_url=gateway.url, auth_token=gateway.api_key, max_retries=0
    ) as bearer:
        assert (await bearer.messages.create(**options())).content


async def test_claude_code(gateway: Gateway) -> None:
    """A long system prompt in blocks, many tools, and a stream; then the result of the tool."""
    headers = {**recorded.CLAUDE_CODE_HEADERS, "authorization": f"Bearer {gateway.api_key}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as client:
        first = await _claude_code(client, recorded.CLAUDE_CODE_FIRST)
        assert first["stop_reason"] == "tool_use"
        call = next(block for block in first["content"] if block["type"] == "tool_use")
        second = await _claude_code(client, recorded.claude_code_second(first["content"], call))
        counted = await client.post(
            "/v1/messages/count_tokens?beta=true", json=recorded.CLAUDE_CODE_COUNT
        )
    assert second["stop_reason"] in ("end_turn", "tool_use", "max_tokens")
    assert second["usage"]["cache_read_input_tokens"] > 0
    assert counted.json()["input_tokens"] > 1000


async def _claude_code(client: httpx.AsyncClient, body: Any) -> dict[str, Any]:
    """The message that a stream's events add up to."""
    answer = await client.post("/v1/messages?beta=true", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-sluice-ignored"] == "context_management"
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for lines in answer.text.strip().split("\n\n"):
        name, data = lines.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    said = inputs.get(event["index"], "") + delta["partial_json"]
                    inputs[event["index"]] = said
                else:
                    field = delta["type"].removesuffix("_delta")
                    block[field] += delta[field]
            case "content_block_stop":
                if event["index"] in inputs:
                    message["content"][event["index"]]["input"] = json.loads(inputs[event["index"]])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert name == "event: message_stop"
    return message
