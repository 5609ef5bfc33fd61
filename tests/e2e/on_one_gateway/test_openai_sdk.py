"""The real ``openai`` package against the real engine: existing clients must work unchanged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ContentDeltaEvent
from pydantic import BaseModel

from tests.gateway.serving import MODEL, Gateway

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

HELLO: list[Any] = [{"role": "user", "content": "Hello! What can you do?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


TOOLS_STRICT: list[Any] = [
    {
        "type": "function",
        "function": {
            **TOOLS[0]["function"],
            "strict": True,
            "parameters": {**TOOLS[0]["function"]["parameters"], "additionalProperties": False},
        },
    }
]


class Person(BaseModel):
    name: str
    age: int


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


async def test_create(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    text = answer.choices[0].message.content
    assert text
    assert "Calculate" in text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )


async def test_stream_equals_create(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 4


async def test_the_streaming_helper(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, temperature=0, n=2, stream_options={"include_usage": True}
    ) as stream:
        deltas = [event.delta async for event in stream if isinstance(event, ContentDeltaEvent)]
        final = await stream.get_final_completion()
    assert deltas
    first, second = final.choices
    assert first.message.content == second.message.content  # greedy
    assert final.usage is not None


async def test_parse_with_a_pydantic_model(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Extract as JSON: Anna is 31 years old."}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Person)


async def test_tools_there_and_back(client: AsyncOpenAI) -> None:
    asked = await client.chat.completions.create(
        model=MODEL, messages=WEATHER, tools=TOOLS, temperature=0
    )
    message = asked.choices[0].message
    assert asked.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature_c": 7}'}
    # The message goes back exactly as the SDK dumps it.
    answer: Any = message.model_dump()
    told = await client.chat.completions.create(
        model=MODEL,
        messages=[*WEATHER, answer, result],
        tools=TOOLS,
        temperature=0,
    )
    assert told.choices[0].message.content


async def test_streamed_tools_add_up_in_the_helper(client: AsyncOpenAI) -> None:
    is_old = int(openai.__version__.partition(".")[0]) < 3  # its helper takes strict tools only
    async with client.chat.completions.stream(
        model=MODEL, messages=WEATHER, tools=TOOLS_STRICT if is_old else TOOLS, temperature=0
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


async def test_a_required_call_comes_whatever_was_said(client: AsyncOpenAI) -> None:
    forced = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=200,
        temperature=0,  # a free string that goes on and on would end with the limit
    )  # fmt: skip
    assert forced.choices[0].finish_reason == "tool_calls"
    assert forced.choices[0].message.tool_calls
    for call in forced.choices[0].message.tool_calls:
        assert call.type == "function"
        assert isinstance(json.loads(call.function.arguments)["city"], str)


async def test_a_named_strict_function_parses_into_its_model(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL,
        messages=HELLO,
        tools=[openai.pydantic_function_tool(Person), *TOOLS_STRICT],
        tool_choice={"type": "function", "function": {"name": "Person"}},
        max_tokens=300,
    )
    assert answer.choices[0].message.tool_calls is not None
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Person)


async def test_streamed_strict_tools_under_auto(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=WEATHER, tools=TOOLS_STRICT, temperature=0, parallel_tool_calls=False
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": "Oslo"}


async def test_logprobs(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, logprobs=True, top_logprobs=3, n=2
    )
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        said = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
        assert said.decode() == choice.message.content
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 3
            assert token.token == token.top_logprobs[0].token  # greedy
            assert token.logprob == token.top_logprobs[0].logprob <= 0


async def test_streamed_logprobs_add_up_in_the_helper(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, temperature=0, logprobs=True
    ) as stream:
        final = await stream.get_final_completion()
    choice = final.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    said = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
    assert said.decode() == choice.message.content


async def test_completions_echo_with_logprobs(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="Hello there", echo=True, logprobs=2, max_tokens=4, temperature=0
    )
    (choice,) = answer.choices
    assert choice.text.startswith("Hello there")
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert "".join(found.tokens) == choice.text
    assert found.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in found.token_logprobs[1:])
    assert found.text_offset is not None
    for offset, token in zip(found.text_offset, found.tokens, strict=True):
        assert choice.text[offset : offset + len(token)] == token
    assert found.top_logprobs is not None
    assert all(2 <= len(top) <= 3 for top in found.top_logprobs[1:])


async def test_logit_bias_and_penalties(client: AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=1, logprobs=True, top_logprobs=2
    )
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.content is not None
    first, second = plain.choices[0].logprobs.content[0].top_logprobs
    banned = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=1,
        extra_body={"bad_words": [first.token]},
    )
    assert banned.choices[0].message.content == second.token
    repeated = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0,
        max_tokens=60,
        frequency_penalty=2,
        presence_penalty=2,
        extra_body={"repetition_penalty": 1.5},
    )
    assert repeated.choices[0].message.content != plain.choices[0].message.content


async def test_a_seed_repeats_itself(client: AsyncOpenAI) -> None:
    texts = {
        (
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, temperature=1.5, seed=11, max_tokens=30
            )
        )
        .choices[0]
        .message.content
        for _ in range(2)
    }
    assert len(texts) == 1


async def test_stop_and_length(client: AsyncOpenAI) -> None:
    stopped = await client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, stop=["Calculate"]
    )
    content = stopped.choices[0].message.content
    assert content is not None
    assert "Calculate" not in content
    assert stopped.choices[0].finish_reason == "stop"
    cut = await client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_completion_tokens=3
    )
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 3


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_a_second_turn_hits_the_prefix_cache(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Please repeat after me: " + "la " * 40}]
    first = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    again = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 < cached < again.usage.prompt_tokens


async def test_the_request_id_is_exposed(client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=1
    )
    assert raw.request_id
    assert raw.parse().id == "chatcmpl-" + raw.request_id.replace("-", "")


async def test_errors_have_the_classes_clients_catch(gateway: Gateway, client: AsyncOpenAI) -> None:
    async def create(**fields: Any) -> None:
        await client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | fields))

    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        await create(messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as unsupported:
        await create(web_search_options={})
    assert unsupported.value.param == "web_search_options"
    async with gateway.openai(api_key="sk-wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as denied:
            await stranger.models.list()
        assert denied.value.code == "invalid_api_key"
        assert denied.value.request_id


async def test_a_length_error_under_parse(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Person, max_tokens=2
        )


async def test_extra_body(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=40,
        extra_body={"top_k": 1, "min_p": 0.1, "ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    assert answer.choices[0].finish_reason == "length"
