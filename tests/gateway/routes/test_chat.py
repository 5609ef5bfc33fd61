from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway import unsupported
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, chat, events, exchange, post
from tests.gateway.serving import (
    MODEL,
    MOMENT_S,
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
        choice = (await chat(gateway, chat_body(**{name: 3}))).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == "You"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_and_the_work(
    gateway: Gateway, double: EngineDouble, stream: bool
) -> None:
    double.script = lambda prompt: Play(text="one two three four " * 50, interval_s=0.001)
    options = {"stream_options": {"include_usage": True}} if stream else {}
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


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 3}, "model", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_value"),
    ({"messages": []}, "messages", "invalid_request"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": "", "zz": 1}]},
        "messages[0].zz",
        "unknown_parameter",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    ({"zz": 1}, "zz", "unknown_parameter"),
    ({"temperature": -1}, "temperature", "invalid_request"),
    ({"temperature": "1"}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_request"),
    ({"top_k": -2}, "top_k", "invalid_request"),
    ({"min_p": 2}, "min_p", "invalid_request"),
    ({"max_tokens": 0}, "max_tokens", "invalid_request"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_request"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "invalid_request"),
    ({"max_tokens": 10**6}, "max_tokens", "context_length_exceeded"),
    ({"n": 0}, "n", "invalid_request"),
    ({"n": 9}, "n", "invalid_request"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_request"),
    ({"stop": ""}, "stop", "invalid_request"),
    ({"stream_options": {}}, "stream_options", "invalid_request"),
    ({"stream_options": {"zz": 1}}, "stream_options.zz", "unknown_parameter"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_request"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_request"),
    ({"metadata": {"k": 1}}, "metadata[...]", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "invalid_request"),
    ({"tools": TOOLS * 2}, "tools[1].function.name", "invalid_request"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "zz"}}},
        "tool_choice.function.name",
        "invalid_request",
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "zz"}}},
        "tool_choice.type",
        "unsupported_parameter",
    ),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "unsupported_parameter"),
    ({"top_logprobs": 1}, "top_logprobs", "invalid_request"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_request"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_request"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_request"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_request"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_request"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids[0]", "invalid_request"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_request"),
    ({"bad_words": [""]}, "bad_words", "invalid_request"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_request"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ({"verbosity": "low"}, "verbosity", "unsupported_parameter"),
    ({"service_tier": "priority"}, "service_tier", "unsupported_parameter"),
    ({"priority": -1}, "priority", "invalid_request"),
    ({"user": "a", "safety_identifier": "b"}, "safety_identifier", "invalid_request"),
    (
        {"chat_template_kwargs": {"enable_thinking": True}},
        "chat_template_kwargs.enable_thinking",
        "unsupported_parameter",
    ),
    (
        {"chat_template_kwargs": {"messages": []}},
        "chat_template_kwargs.messages",
        "unsupported_parameter",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "invalid_request"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "invalid_request"),
    ({"guided_choice": []}, "guided_choice", "invalid_request"),
    (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "guided_regex",
        "invalid_request",
    ),
    (
        {"tools": TOOLS, "structured_outputs": {"regex": "a"}},
        "structured_outputs.regex",
        "invalid_request",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "invalid_request",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        "tools[0].function.parameters",
        "invalid_request",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
        "missing_required_parameter",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a b", "schema": {}},
            }
        },
        "response_format.json_schema.name",
        "invalid_request",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "banana"}},
            }
        },
        "response_format",
        "invalid_request",
    ),
]


async def test_refusals_name_the_field(gateway: Gateway, double: EngineDouble) -> None:
    for change, param, code in REFUSED:
        answer = await chat(gateway, chat_body() | change)
        assert answer.status == 400, change
        assert (answer.error["param"], answer.error["code"]) == (param, code)
        assert answer.error["type"] == "invalid_request_error"
    assert not double.requests


VALUES: dict[str, Any] = {
    "audio": {"voice": "x", "format": "mp3"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "store": True,
    "web_search_options": {},
}


async def test_every_unsupported_field_is_refused_by_name(gateway: Gateway) -> None:
    assert VALUES.keys() == unsupported.CHAT.keys()
    for name, value in VALUES.items():
        answer = await chat(gateway, chat_body(**{name: value}))
        assert (answer.status, answer.error["param"]) == (400, name)
        assert answer.error["code"] == "unsupported_parameter"


async def test_unsupported_fields_may_hold_what_changes_nothing(gateway: Gateway) -> None:
    neutral = {name: values[0] if values else None for name, values in unsupported.CHAT.items()}
    assert (await chat(gateway, chat_body(**neutral))).status == 200
    assert (await chat(gateway, chat_body(**dict.fromkeys(unsupported.CHAT)))).status == 200
    # JSON's false is not its 0.
    assert (await chat(gateway, chat_body(store=0))).status == 400


async def test_a_prompt_that_does_not_fit(gateway: Gateway, double: EngineDouble) -> None:
    for text in ("x" * double.max_model_len, "x" * 20_000):
        answer = await chat(gateway, chat_body(text))
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["param"] == "messages"
        assert str(double.max_model_len) in answer.error["message"]
    assert not double.requests


async def test_an_unknown_model(gateway: Gateway) -> None:
    answer = await chat(gateway, chat_body(model="gpt-9"))
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"


ODD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"model": "tiny", "messages": [NaN]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "tiny", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",'
    b'"function":{"name":"f","parameters":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}}]}",
    b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"response_format":{"type":'
    b'"json_schema","json_schema":{"name":"x","schema":{"title":"\xff"}}}}',
]


async def test_json_oddities_are_400(gateway: Gateway) -> None:
    for body in ODD_BODIES:
        answer = await chat(gateway, body)
        assert answer.status == 400, body[:100]
        assert answer.error["type"] == "invalid_request_error"


async def test_the_body_must_be_json(gateway: Gateway) -> None:
    body = json.dumps(chat_body()).encode()
    form = "application/x-www-form-urlencoded"
    answer = await exchange(gateway, post(gateway, body, content_type=form))
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"
    answer = await exchange(gateway, post(gateway, body, content_encoding="gzip"))
    assert (answer.status, answer.error["param"]) == (415, "content-encoding")
    for fine in ("application/json; charset=utf-8", ""):
        assert (await exchange(gateway, post(gateway, body, content_type=fine))).status == 200


# -- clients that leave


async def _leave(client: RawClient, how: str) -> None:
    if how == "reset":
        client.reset()
    elif how == "half":
        client.writer.write_eof()
    else:
        await client.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_client_that_leaves_aborts_its_request(
    gateway: Gateway, double: EngineDouble, stream: bool, queued: bool, how: str
) -> None:
    double.script = lambda prompt: Play(
        text="x" * 5000, interval_s=0.002, queued_s=60.0 if queued else 0.0
    )
    client = await RawClient.connect(gateway)
    client.send(post(gateway, json.dumps(chat_body(stream=stream, max_tokens=2000)).encode()))
    await until(lambda: double.running and (queued or double.generated))
    left_at = asyncio.get_running_loop().time()
    await _leave(client, how)
    await until(lambda: not double.running)
    (aborted_at,) = double.aborted.values()
    assert aborted_at - left_at < MOMENT_S
    totals = await gateway.usage()
    assert totals.completion_tokens == sum(double.generated.values())
    client.reset()


async def test_a_client_that_leaves_with_several_choices_running(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 5000, interval_s=0.002)
    client = await RawClient.connect(gateway)
    client.send(post(gateway, json.dumps(chat_body(n=4, stream=True, max_tokens=2000)).encode()))
    await until(lambda: len(double.running) == 4)
    await client.close()
    await until(lambda: not double.running)
    totals = await gateway.usage()
    assert totals.completion_tokens == sum(double.generated.values())


async def test_a_client_that_stops_reading_loses_its_stream(model_dir: Path) -> None:
    limits = {"send_timeout_s": 0.3, "heartbeat_s": 0.1}
    async with served_double(model_dir, max_model_len=10**6, **limits) as (gateway, double):
        double.script = lambda prompt: Play(text="x" * 80_000)
        client = await RawClient.connect(gateway)
        client.send(post(gateway, json.dumps(chat_body(stream=True)).encode()))
        await until(lambda: double.generated)
        # uvicorn holds what the kernel does not take; neither is read by anybody.
        await until(lambda: double.aborted or not double.running, within_s=60)
        await until(lambda: not gateway.server.server_state.connections)
        totals = await gateway.usage()
        assert totals.completion_tokens == sum(double.generated.values())
        client.reset()
