"""The Responses API through the real ``openai`` package, against the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.gateway.serving import MODEL, Gateway

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

HELLO = "Hello! What can you do?"
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Person(BaseModel):
    name: str
    age: int


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def test_create_and_retrieve(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model=MODEL, input=HELLO, temperature=0)
    assert answer.status == "completed"
    assert "Calculate" in answer.output_text
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert await client.responses.retrieve(answer.id) == answer
    items = await client.responses.input_items.list(answer.id)
    assert items.data[0].type == "message"
    await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_a_response_says_what_a_chat_says(client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": HELLO}], temperature=0
    )
    stream = await client.responses.create(model=MODEL, input=HELLO, temperature=0, stream=True)
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == chat.choices[0].message.content
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text


async def test_the_streaming_helper(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input=HELLO, temperature=0) as stream:
        texts = [
            event.delta async for event in stream if event.type == "response.output_text.delta"
        ]
        final = await stream.get_final_response()
    assert len(texts) > 2
    assert "".join(texts) == final.output_text


async def test_parse_with_a_pydantic_model(client: AsyncOpenAI) -> None:
    answer = await client.responses.parse(
        model=MODEL,
        input="Extract as JSON: Anna is 31 years old.",
        text_format=Person,
        temperature=0,
        max_output_tokens=200,
        extra_body={"seed": 1},
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, Person)


async def test_a_forced_call_and_its_output(client: AsyncOpenAI) -> None:
    async with client.responses.stream(
        model=MODEL,
        input="What is the weather in Oslo?",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
        max_output_tokens=100,
    ) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls[0].name == "get_weather"
    assert set(json.loads(calls[0].arguments)) == {"city"}
    following = await client.responses.create(
        model=MODEL,
        previous_response_id=answer.id,
        input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
            for call in calls
        ],
        temperature=0,
        max_output_tokens=60,
    )
    assert following.output_text


async def test_the_background(client: AsyncOpenAI) -> None:
    begun = await client.responses.create(
        model=MODEL, input=HELLO, background=True, stream=False, extra_body={"ignore_eos": True}
    )
    assert begun.status == "queued"
    cancelled = await client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    begun = await client.responses.create(
        model=MODEL, input=HELLO, background=True, temperature=0, max_output_tokens=40
    )
    # Reading its events on, from any of them, is how one waits for it.
    stream = await client.responses.retrieve(begun.id, stream=True, starting_after=2)
    texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
    found = await client.responses.retrieve(begun.id)
    assert found.status in ("completed", "incomplete")
    assert "".join(texts) == found.output_text


async def test_errors_are_those_of_the_package(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="x", top_p=9)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="gpt-4o", input="x")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_nothing")
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_nothing")


async def test_an_idempotency_key(client: AsyncOpenAI) -> None:
    keyed = {"idempotency-key": "one"}
    both = await asyncio.gather(
        *(client.responses.create(model=MODEL, input=HELLO, extra_headers=keyed) for _ in range(2))
    )
    assert both[0] == both[1]
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model=MODEL, input="else", extra_headers=keyed)


async def test_over_a_websocket(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as opened:
        connection: Any = opened  # its events are a union of sixty types
        previous: str | None = None
        for _ in range(2):
            await connection.response.create(
                model=MODEL, input=HELLO, temperature=0, store=False,
                previous_response_id=previous or openai.omit,
            )  # fmt: skip
            text = ""
            while (event := await connection.recv()).type != "response.completed":
                text += event.delta if event.type == "response.output_text.delta" else ""
            assert text == event.response.output_text
            previous = event.response.id
