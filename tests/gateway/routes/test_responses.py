"""``/v1/responses`` as OpenAI's own package uses it, on the engine double."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai import BadRequestError, NotFoundError
from openai.types.responses import ResponseReasoningItem
from pydantic import BaseModel

from engine.text.tokenizer import Tokenizer
from gateway.schemas.response_answers import ResponseAnswer, ResponseEvent
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, RawClient, exchange, post
from tests.gateway.serving import (
    MODEL,
    Gateway,
    double_client,
    make_config,
    served,
    until,
)

pytestmark = pytest.mark.asyncio

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
ORDER_OF_TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def request(gateway: Gateway, body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps({"model": MODEL, **body}).encode()
    raw = post(gateway, data, **headers)
    return raw.replace(b"/v1/chat/completions", b"/v1/responses")


async def create(gateway: Gateway, **body: Any) -> Answer:
    return await exchange(gateway, request(gateway, body))


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Checked: an event's name is its type, numbers have no gaps, and what has ended is done."""
    found = []
    told = body.decode().split("\n\n")[:-1]
    is_done = told[-1] == "data: [DONE]"
    for event in told[:-1] if is_done else told:
        name, data = event.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert name == f"event: {parsed['type']}"
        found.append(parsed)
    ends = ("response.completed", "response.incomplete", "response.failed")
    assert is_done is (found[-1]["type"] in ends)
    numbers = [event["sequence_number"] for event in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return found


def types_of(events: list[dict[str, Any]]) -> list[str]:
    """Without repetitions in a row."""
    types = [event["type"] for event in events]
    return [kind for place, kind in enumerate(types) if place == 0 or types[place - 1] != kind]


async def check_documented(client: openai.AsyncOpenAI, response_id: str) -> None:
    raw = await client.responses.with_raw_response.retrieve(response_id)
    msgspec.json.decode(raw.content, type=ResponseAnswer)


async def test_one_answer(gateway: Gateway, double: EngineDouble) -> None:
    async with gateway.openai() as client:
        response = await client.responses.create(
            model=MODEL, input="hello", instructions="Be kind.", metadata={"a": "b"}, user="ann"
        )
        assert response.output_text == "You said: hello"
        assert response.status == "completed"
        assert response.error is None
        assert response.metadata == {"a": "b"}
        assert response.usage is not None
        assert response.usage.output_tokens == len("You said: hello")
        assert response.usage.total_tokens == (
            response.usage.input_tokens + response.usage.output_tokens
        )
        (message,) = response.output
        assert message.type == "message"
        assert message.status == "completed"
        again = await client.responses.retrieve(response.id)
        assert again == response
    assert double.prompt().startswith("<|im_start|>system\nBe kind.<|im_end|><|im_start|>user\n")
    totals = await gateway.usage()
    assert (totals.requests, totals.completion_tokens) == (1, len("You said: hello"))


async def test_the_order_of_events(gateway: Gateway) -> None:
    answer = await create(gateway, input="hé", stream=True)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.body)
    assert events[0]["sequence_number"] == 0
    assert types_of(events) == ORDER_OF_TEXT
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "You said: hé"
    (added,) = [e for e in events if e["type"] == "response.output_item.added"]
    (done,) = [e for e in events if e["type"] == "response.output_item.done"]
    assert added["item"]["content"] == []
    assert done["item"] == events[-1]["response"]["output"][0]
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["usage"]["output_tokens"] == len("You said: hé".encode())
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    for event in events:
        msgspec.convert(event, ResponseEvent)
        if "response" in event:
            msgspec.convert(event["response"], ResponseAnswer)  # as it is documented


async def test_the_helper_of_the_package(gateway: Gateway) -> None:
    async with gateway.openai() as client, client.responses.stream(model=MODEL, input="hi") as s:
        texts = [e.delta async for e in s if e.type == "response.output_text.delta"]
        final = await s.get_final_response()
    assert "".join(texts) == final.output_text == "You said: hi"


async def test_calls_and_their_outputs(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text=f"Let me see.{CALL}")
    async with gateway.openai() as client:
        async with client.responses.stream(model=MODEL, input="Rain?", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        assert "response.function_call_arguments.done" in kinds
        await check_documented(client, first.id)
        message, call = first.output
        assert message.type == "message"
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"city": "Köln"}
        double.script = lambda prompt: Play(text="It rains.")
        second = await client.responses.create(
            model=MODEL,
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
            tools=[TOOL],
        )
        assert second.output_text == "It rains."
        assert second.previous_response_id == first.id
    prompt = double.prompt()
    assert "Rain?" in prompt
    assert "Let me see." in prompt
    assert '<tool_call>{"name": "get_weather"' in prompt
    assert prompt.index("<tool_call>") < prompt.index("<|im_start|>tool\nrain")


@pytest.mark.parametrize(("city", "valid"), [('"Köln"', True), ("3", False)])
async def test_arguments_that_nothing_held_to_their_schema_are_checked(
    gateway: Gateway, double: EngineDouble, city: str, valid: bool
) -> None:
    double.script = lambda prompt: Play(text=CALL.replace('"Köln"', city))
    plain = (await create(gateway, input="Rain?", tools=[TOOL])).json()
    streamed = await create(gateway, input="Rain?", tools=[TOOL], stream=True)
    for response in (plain, events_of(streamed.body)[-1]["response"]):
        msgspec.convert(response, ResponseAnswer)  # as it is documented
        (call,) = response["output"]
        report = response["structured_outputs"]
        assert report["unenforced"][0]["function"] == "get_weather"
        assert report["valid"] is valid
        where = [(violation["call_id"], violation["path"]) for violation in report["violations"]]
        assert where == ([] if valid else [(call["call_id"], "$.city")])


@pytest.mark.parametrize(
    ("city", "strict", "is_held"),
    [
        ({"type": "string"}, None, True),
        ({"type": "string"}, False, False),
        ({"type": "number", "multipleOf": 0.01}, None, False),  # which nobody can enforce
        ({"type": "string", "minLength": 1}, None, False),  # outside of the strict subset
    ],
)
async def test_functions_are_strict_by_default_where_that_is_possible(
    gateway: Gateway, double: EngineDouble, city: Any, strict: bool | None, is_held: bool
) -> None:
    double.script = lambda prompt: Play(text="It rains.")
    schema = {
        "type": "object",
        "properties": {"city": city},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "name": "get_weather", "parameters": schema, "strict": strict}
    answer = await create(gateway, input="Rain?", tools=[tool])
    assert answer.status == 200
    assert answer.json()["tools"][0]["strict"] is strict
    assert (double.requests[0].params.structured_outputs is not None) == is_held


async def test_items_sent_back_by_hand(gateway: Gateway, double: EngineDouble) -> None:
    """As agents do that keep no state on the server: the whole list each time."""
    double.script = lambda prompt: Play(text=CALL)
    async with gateway.openai() as client:
        first = await client.responses.create(model=MODEL, input="Rain?", tools=[TOOL], store=False)
        (call,) = first.output
        assert call.type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "no"}
        items: Any = [{"role": "user", "content": "Rain?"}, call.to_dict(), output]
        await client.responses.create(model=MODEL, input=items, tools=[TOOL], store=False)
        with pytest.raises(BadRequestError) as caught:
            await client.responses.create(model=MODEL, input=[output])
        assert caught.value.param == "input[0].call_id"
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(first.id)  # not stored
    assert "<|im_start|>tool\nno<|im_end|>" in double.prompt()


async def test_a_conversation(gateway: Gateway, double: EngineDouble) -> None:
    async with gateway.openai() as client:
        previous: str | None = None
        for text in ("one", "two", "three"):
            response = await client.responses.create(
                model=MODEL,
                input=text,
                previous_response_id=previous,
                instructions=f"Say {text}",
            )
            previous = response.id
        prompt = double.prompt()
        for text in ("one", "You said: one", "two", "You said: two", "three", "Say three"):
            assert text in prompt
        assert "Say one" not in prompt  # instructions are a response's own
        items = await client.responses.input_items.list(response.id)
        (item,) = items.data
        assert item.type == "message"
        # What a response was is deleted with it: nothing continues it any more.
        await client.responses.delete(response.id)
        for _ in range(2):
            with pytest.raises(NotFoundError):
                await client.responses.retrieve(response.id)
        with pytest.raises(BadRequestError) as caught:
            await client.responses.create(model=MODEL, input="x", previous_response_id=response.id)
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.param == "previous_response_id"


async def test_input_items_in_pages(gateway: Gateway) -> None:
    items: Any = [{"role": "user", "content": str(number)} for number in range(7)]
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input=items)
        pages = client.responses.input_items.list(response.id, limit=3, order="asc")
        texts = [item.content[0].text async for item in pages]  # type: ignore[union-attr, index]
        assert texts == [str(number) for number in range(7)]
        newest = await client.responses.input_items.list(response.id, limit=2)
        assert [item.content[0].text for item in newest.data] == ["6", "5"]  # type: ignore[union-attr, index]
        assert newest.has_more
        for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_x"}):
            with pytest.raises(BadRequestError) as caught:
                await client.responses.input_items.list(response.id, **wrong)
            assert caught.value.param == next(iter(wrong))


async def test_counting_the_input_beforehand(gateway: Gateway, double: EngineDouble) -> None:
    async with gateway.openai() as client:
        first = await client.responses.create(model=MODEL, input="one")
        schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        held = {"type": "function", "name": "now", "parameters": schema}  # strict by default
        wanted: Any = {
            "model": MODEL,
            "input": [{"role": "user", "content": "two"}],
            "instructions": "Be kind.",
            "previous_response_id": first.id,
            "tools": [TOOL, held],
        }
        before = len(double.requests)
        counted = await client.responses.input_tokens.count(**wanted)
        assert counted.object == "response.input_tokens"
        assert len(double.requests) == before
        response = await client.responses.create(**wanted)
        assert response.usage is not None
        assert counted.input_tokens == response.usage.input_tokens
        for name, value in (("model", "zz"), ("previous_response_id", "resp_zz"), ("input", None)):
            wrong: dict[str, Any] = {"model": MODEL, "input": "x", name: value}
            with pytest.raises((BadRequestError, NotFoundError)) as caught:
                await client.responses.input_tokens.count(**wrong)
            assert caught.value.param == name


async def test_item_references(gateway: Gateway, double: EngineDouble) -> None:
    async with gateway.openai() as client:
        first = await client.responses.create(model=MODEL, input="one")
        asked = (await client.responses.input_items.list(first.id)).data[0]
        references: Any = [
            {"type": "item_reference", "id": asked.id},
            {"id": first.output[0].id},
            {"role": "user", "content": "two"},
        ]
        await client.responses.create(model=MODEL, input=references)
        assert "one" in double.prompt()
        assert "You said: one" in double.prompt()
        for wrong in ("msg_nothing", f"{first.output[0].id}1", "x"):
            with pytest.raises(BadRequestError) as caught:
                await client.responses.create(
                    model=MODEL, input=[{"type": "item_reference", "id": wrong}]
                )
            assert caught.value.param == "input[0].id"


class City(BaseModel):
    name: str


async def test_parsing_into_a_model(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text='{"name": "Köln"}')
    async with gateway.openai() as client:
        parsed = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
        assert parsed.output_parsed == City(name="Köln")
        async with client.responses.stream(model=MODEL, input="Where?", text_format=City) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == City(name="Köln")
    outputs = double.requests[-1].params.structured_outputs
    assert outputs is not None
    assert outputs.json is not None
    assert json.loads(outputs.json)["required"] == ["name"]


async def test_an_answer_cut_by_its_limit(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi", max_output_tokens=3)
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output_text == "You"
        async with client.responses.stream(model=MODEL, input="hi", max_output_tokens=3) as stream:
            kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.incomplete"


async def test_in_the_background(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="slowly said", interval_s=0.01)
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi", background=True)
        assert response.status == "queued"
        assert response.background
        while response.status in ("queued", "in_progress"):
            response = await client.responses.retrieve(response.id)
        assert response.output_text == "slowly said"
        # What it said can be read from any point while the log is kept.
        stream = await client.responses.retrieve(response.id, stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        for after in (0, 3, len(events) - 2):
            rest = await client.responses.retrieve(response.id, stream=True, starting_after=after)
            assert [event async for event in rest] == events[after + 1 :]


async def test_cancelling(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    async with gateway.openai() as client:
        response = await client.responses.create(model=MODEL, input="hi", background=True)
        await until(lambda: double.running)
        cancelled = await client.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        await until(lambda: double.aborted)
        assert (await client.responses.cancel(response.id)).status == "cancelled"
        assert (await client.responses.retrieve(response.id)).status == "cancelled"
        # One with a connection is cancelled from another one just so.
        stream = await client.responses.create(model=MODEL, input="hi", stream=True)
        first = await anext(aiter(stream))
        assert first.type == "response.created"
        await client.responses.cancel(first.response.id)
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.incomplete"
    totals = await gateway.usage(2)
    assert totals.completion_tokens == sum(double.generated.values())


async def test_who_leaves_finds_what_there_was(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    client = await RawClient.connect(gateway)
    client.send(request(gateway, {"input": "hi", "stream": True}))
    await client.head()
    body = b""
    while b"output_text.delta" not in body:
        body += await client.chunk()
    response_id = events_of(body[: body.rfind(b"\n\n") + 2])[0]["response"]["id"]
    client.reset()
    await until(lambda: double.aborted)
    await gateway.usage()
    async with gateway.openai() as sdk:
        response = await sdk.responses.retrieve(response_id)
    assert response.status == "cancelled"
    assert set(response.output_text) == {"x"}


async def test_a_failure_is_the_last_event(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    async with gateway.openai() as client:
        stream = await client.responses.create(model=MODEL, input="hi", stream=True)
        kinds = []
        async for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                double.crash()
        assert event.type == "response.failed"
        assert event.response.error is not None
        assert event.response.error.code == "server_error"
        assert (await client.responses.retrieve(event.response.id)).status == "failed"


async def test_many_at_once_end_and_leave_nothing(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        answers = await asyncio.gather(
            *(client.responses.create(model=MODEL, input=str(number)) for number in range(20))
        )
    assert [answer.output_text for answer in answers] == [f"You said: {n}" for n in range(20)]
    services = gateway.app.state.services
    await until(lambda: not services.responses._running)
    assert not services.responses._tasks


async def test_logprobs(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        response = await client.responses.create(
            model=MODEL, input="hi", include=["message.output_text.logprobs"], top_logprobs=2
        )
        message = response.output[0]
        assert message.type == "message"
        part = message.content[0]
        assert part.type == "output_text"
        assert part.logprobs is not None
        assert "".join(one.token for one in part.logprobs) == "You said: hi"
        assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
        assert response.top_logprobs == 2


async def test_padding(gateway: Gateway) -> None:
    answer = await create(
        gateway, input="hi", stream=True, stream_options={"include_obfuscation": True}
    )
    sizes = {len(e) for e in answer.body.split(b"event: ") if b"output_text.delta" in e}
    assert len(sizes) == 1
    assert any("obfuscation" in event for event in events_of(answer.body))


async def test_reasoning_is_told_apart_and_comes_back(model_dir: Path) -> None:
    config = make_config(model_dir)
    models = msgspec.structs.replace(config.models, reasoning_parser="think")
    config = msgspec.structs.replace(config, models=models)
    double = EngineDouble(Tokenizer.load(model_dir))
    double.script = lambda prompt: Play(text="<think>Hm.</think>It rains.")
    async with (
        served(config, double_client(config, double)) as gateway,
        gateway.openai() as client,
    ):
        async with client.responses.stream(model=MODEL, input="Rain?") as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
        assert "response.reasoning_summary_text.delta" in kinds
        await check_documented(client, response.id)
        thought, message = response.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert thought.content[0].text == thought.summary[0].text == "Hm."
        assert response.output_text == "It rains."
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        items: Any = [{"role": "user", "content": "Rain?"}, thought.to_dict(), message.to_dict()]
        again = await client.responses.create(
            model=MODEL, input=[*items, {"role": "user", "content": "Sure?"}]
        )
        await client.responses.create(model=MODEL, input="And?", previous_response_id=again.id)
        # Clients that keep no plain text send back what stands for it.
        asked: Any = {"include": ["reasoning.encrypted_content"], "store": False}
        response = await client.responses.create(model=MODEL, input="Rain?", **asked)
        thought, message = response.output
        assert isinstance(thought, ResponseReasoningItem)
        assert thought.encrypted_content is not None
        assert base64.urlsafe_b64decode(thought.encrypted_content) == b"Hm."
        for content in (thought.encrypted_content, "gAAAA-of-another-server"):
            opaque = {"type": "reasoning", "summary": [], "encrypted_content": content}
            said: Any = [items[0], opaque, message.to_dict(), {"role": "user", "content": "Sure?"}]
            await client.responses.create(model=MODEL, input=said, **asked)


async def test_what_does_not_fit_is_left_out_if_asked(
    gateway: Gateway, double: EngineDouble
) -> None:
    items: Any = [{"role": "developer", "content": "Be kind."}]
    items += [{"role": "user", "content": f"{number} " + "x" * 500} for number in range(10)]
    async with gateway.openai() as client:
        with pytest.raises(BadRequestError) as caught:
            await client.responses.create(model=MODEL, input=items)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        response = await client.responses.create(
            model=MODEL, input=items, truncation="auto", max_output_tokens=20
        )
        assert response.truncation == "auto"
        prompt = double.prompt()
        assert "Be kind." in prompt
        kept = [number for number in range(10) if f"{number} x" in prompt]
        assert kept == [7, 8, 9]
        # It is continued with everything, and shortened again.
        pages = client.responses.input_items.list(response.id, limit=100)
        assert len([item async for item in pages]) == 11
        await client.responses.create(
            model=MODEL, input="x", truncation="auto", previous_response_id=response.id
        )


async def test_turns_as_the_ai_sdk_sends_them(gateway: Gateway, double: EngineDouble) -> None:
    """It refers to stored items by their ids, calls among them, and streams always."""
    double.script = lambda prompt: Play(text=f"Let me see.{CALL}")
    system = {"role": "system", "content": "Be kind."}
    user = {"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]}
    asked: dict[str, Any] = {
        "input": [system, user],
        "tools": [TOOL],
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    }
    first = events_of((await create(gateway, **asked)).body)[-1]["response"]
    double.script = lambda prompt: Play(text="It rains.")
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    output = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": '{"sky":"grey"}',
    }
    asked["input"] = [system, user, *references, output]
    answer = await create(gateway, **asked)
    assert answer.status == 200, answer.body
    assert events_of(answer.body)[-1]["response"]["status"] == "completed"
    prompt = double.prompt()
    assert "Let me see.<tool_call>" in prompt
    assert '{"sky":"grey"}' in prompt
