from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import chat, events
from tests.gateway.serving import (
    MODEL,
    Gateway,
    chat_body,
    served_double,
    until,
)

pytestmark = pytest.mark.asyncio


def text_of(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def test_answers_with_a_chat_completion(gateway: Gateway, double: EngineDouble) -> None:
    answer = await chat(gateway, chat_body("hello", metadata={"k": "v"}))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    num_prompt = len(double.requests[0].prompt_token_ids)
    assert body["id"] == "chatcmpl-" + answer.headers["x-request-id"].replace("-", "")
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["metadata"] == {"k": "v"}
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "You said: hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 15,
        "total_tokens": num_prompt + 15,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


async def test_streams_exactly_the_bytes_openai_streams(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="Hi")
    answer = await chat(gateway, chat_body(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    first = events(answer.body)[0]
    head = (
        f'data: {{"id":"{first["id"]}","object":"chat.completion.chunk",'
        f'"created":{first["created"]},"model":"tiny","system_fingerprint":null,"choices":['
    )
    tail = "]}\n\n"
    expected = (
        ('{"role":"assistant","content":""}', "null"),
        ('{"content":"H"}', "null"),
        ('{"content":"i"}', "null"),
        ("{}", '"stop"'),
    )
    assert (
        answer.body.decode()
        == "".join(
            f'{head}{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}{tail}'
            for delta, reason in expected
        )
        + "data: [DONE]\n\n"
    )


async def test_usage_comes_in_the_last_chunk_and_null_before(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="Hi", num_cached_tokens=5)
    body = chat_body(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events((await chat(gateway, body)).body)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    totals = await gateway.usage()
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (
        last["usage"]["prompt_tokens"],
        5,
        2,
    )


async def test_a_character_split_over_tokens_is_never_sent_in_halves(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="né👩‍🚀!")
    chunks = events((await chat(gateway, chat_body(stream=True))).body)
    assert text_of(chunks) == "né👩‍🚀!"
    assert not any("�" in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


async def test_max_tokens_ends_with_length(gateway: Gateway) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        limit: dict[str, Any] = {name: 3}
        choice = (await chat(gateway, chat_body(**limit))).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == "You"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_and_the_work(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: Play(text="one two three four " * 50, interval_s=0.001)
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await chat(gateway, chat_body(stop=["two th", "zzz"], stream=stream, **options))
    if stream:
        *chunks, usage, _ = events(answer.body)
        assert text_of(chunks) == "one "
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        usage = answer.json()
        assert usage["choices"][0]["message"]["content"] == "one "
        assert usage["choices"][0]["finish_reason"] == "stop"
    (request_id,) = double.aborted
    # Billed and told alike: what the engine really generated, the stop string included.
    assert usage["usage"]["completion_tokens"] == double.generated[request_id] < 100
    totals = await gateway.usage()
    assert totals.completion_tokens == double.generated[request_id]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(gateway: Gateway, double: EngineDouble, stream: bool) -> None:
    answers = iter(["first", "second", "third"])
    double.script = lambda prompt: Play(text=next(answers), interval_s=0.001)
    answer = await chat(gateway, chat_body(n=3, seed=7, stream=stream))
    if stream:
        *chunks, done = events(answer.body)
        assert done == "[DONE]"
        texts = [text_of(chunks, index) for index in range(3)]
        assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    else:
        texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
        assert answer.json()["usage"]["prompt_tokens"] == len(double.requests[0].prompt_token_ids)
    assert texts == ["first", "second", "third"]
    assert [request.params.seed for request in double.requests] == [7, 8, 9]
    totals = await gateway.usage()
    assert totals.requests == 1
    assert totals.completion_tokens == len("firstsecondthird")


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


async def test_tool_calls(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text=CALL)
    choice = (await chat(gateway, chat_body(tools=TOOLS))).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert '"name": "get_weather"' in double.prompt()


async def test_tool_calls_stream_their_name_once_and_arguments_in_fragments(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text=f"Sure. {CALL}\n{CALL}")
    *chunks, _ = events((await chat(gateway, chat_body(tools=TOOLS, stream=True))).body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert text_of(chunks) == "Sure."
    for index in (0, 1):
        first, *rest = [piece for piece in pieces if piece["index"] == index]
        assert first["type"] == "function"
        assert first["function"] == {"name": "get_weather", "arguments": ""}
        assert all(set(piece) == {"index", "function"} for piece in rest)
        assert all(set(piece["function"]) == {"arguments"} for piece in rest)
        assert len(rest) > 1
        assert "".join(p["function"]["arguments"] for p in rest) == '{"city": "Oslo"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_tool_choice_none_hides_the_tools(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text=CALL)
    body = chat_body(tools=TOOLS, tool_choice="none")
    choice = (await chat(gateway, body)).json()["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert "get_weather" not in double.prompt()


async def test_history_with_tools_reaches_the_template(
    gateway: Gateway, double: EngineDouble
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    answer = await chat(gateway, {"model": MODEL, "messages": messages})
    assert answer.status == 200
    assert double.prompt() == (
        "<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\nx\ny<|im_end|>"
        '<|im_start|>assistant\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        "<|im_end|><|im_start|>tool\n2<|im_end|><|im_start|>assistant\n"
    )


async def test_the_engine_gets_what_the_tenant_is_worth(
    gateway: Gateway, double: EngineDouble
) -> None:
    await chat(
        gateway,
        chat_body(temperature=0, top_p=0.5, top_k=3, min_p=0.1, seed=-1, ignore_eos=True),
    )
    request = double.requests[0]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 3, 0.1)
    assert params.seed == 2**64 - 1
    assert params.ignore_eos
    assert params.max_tokens == double.max_model_len - len(request.prompt_token_ids)
    assert request.fair_key == gateway.tenant.id.hex
    assert request.weight == gateway.tenant.weight
    assert len(request.cache_salt) == 64


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_error_is_never_a_clean_end(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: Play(
        error="the mask went wrong", error_code="internal", queued_s=0.2
    )
    answer = await chat(gateway, chat_body(stream=stream))
    if stream:
        *_, last = events(answer.body)
        assert "[DONE]" not in answer.body.decode()
        assert last["error"]["code"] == "generation_failed"
    else:
        assert answer.status == 500
        assert answer.headers["x-should-retry"] == "false"
        assert answer.error["message"] == "the mask went wrong"
    totals = await gateway.usage()
    assert (totals.prompt_tokens, totals.completion_tokens) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_engine_has_a_real_status(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: Play(error="no such token", error_code="invalid_request")
    answer = await chat(gateway, chat_body(stream=stream))
    assert answer.status == 400
    assert answer.error["message"] == "no such token"
    double.script = lambda prompt: Play(error="too many wait", error_code="queue_full")
    answer = await chat(gateway, chat_body(stream=stream))
    assert answer.status == 503
    assert answer.error["code"] == "overloaded"
    assert answer.headers["retry-after"] == "1"
    assert "x-should-retry" not in answer.headers
    assert (await gateway.usage(2)).prompt_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_crash_is_an_error_and_the_next_request_is_served(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: Play(text="x" * 1000, interval_s=0.01)
    asking = asyncio.create_task(chat(gateway, chat_body(stream=stream)))
    await until(lambda: double.generated)
    double.crash()
    answer = await asking
    if stream:
        *_, last = events(answer.body)
        assert last["error"]["code"] == "engine_unavailable"
        assert b"[DONE]" not in answer.body
    else:
        assert answer.status == 503
        assert answer.headers["x-should-retry"] == "false"  # tokens were generated: no second bill
    totals = await gateway.usage()
    assert totals.completion_tokens == sum(double.generated.values())
    double.script = lambda prompt: Play(text="again")
    await until(lambda: gateway.engine.ready)
    assert (await chat(gateway, chat_body())).status == 200


async def test_while_the_engine_is_away_requests_are_told_to_come_back(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.crash()
    answer = await chat(gateway, chat_body())
    assert answer.status == 503
    assert answer.error["code"] == "engine_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert "x-should-retry" not in answer.headers


async def test_a_silent_stream_beats(model_dir: Path) -> None:
    async with served_double(model_dir, heartbeat_s=0.1) as (gateway, double):
        double.script = lambda prompt: Play(text="late", queued_s=0.6)
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await chat(gateway, chat_body(stream=True))
        most = (loop.time() - began) / 0.1
    chunks = events(answer.body)
    beats = [c for c in chunks[1:-1] if c["choices"][0]["delta"] == {"content": ""}]
    assert 1 <= len(beats) <= most
    assert text_of(chunks) == "late"


async def test_tokens_are_coalesced(model_dir: Path) -> None:
    async with served_double(model_dir, flush_interval_ms=50) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 100, interval_s=0.002)
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await chat(gateway, chat_body(stream=True))
        most = (loop.time() - began) / 0.05 + 1
    _, first, *rest = [c["choices"][0]["delta"].get("content") for c in events(answer.body)[:-2]]
    assert first == "x"  # at once
    assert "".join(rest) == "x" * 99
    assert len(rest) <= most
