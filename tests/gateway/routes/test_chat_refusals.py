"""What a chat request is refused for, and by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.admission import unsupported
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import chat, exchange, post
from tests.gateway.routes.test_chat import TOOLS
from tests.gateway.serving import Gateway, chat_body

pytestmark = pytest.mark.asyncio


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
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
            ]
        },
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    ({"zz": 1}, "zz", "unknown_parameter"),
    ({"temperature": -1}, "temperature", "invalid_request"),
    ({"temperature": "1"}, "temperature", "invalid_value"),
    ({"top_p": -0.1}, "top_p", "invalid_request"),
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
    ({"stop": ["x" * 1025]}, "stop", "invalid_request"),
    ({"stream_options": {"zz": 1}}, "stream_options.zz", "unknown_parameter"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_request"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_request"),
    ({"metadata": {"k": 1}}, "metadata.k", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
    ({"tools": TOOLS * 2}, "tools[1].function.name", "invalid_request"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
            ]
        },
        "tools[0].function.parameters",
        "invalid_request",
    ),
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
    ({"priority": -1}, "priority", "invalid_request"),
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
    ({"tools": [TOOLS[0] | {"strict": True}]}, "tools[0].strict", "unknown_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    (
        {"response_format": {"type": "json_object", "schema": {}}},
        "response_format.schema",
        "unknown_parameter",
    ),
    (
        {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
        "response_format.json_schema",
        "invalid_value",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {}},
                "strict": True,
            }
        },
        "response_format.strict",
        "unknown_parameter",
    ),
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
    "web_search_options": {},
}


async def test_every_unsupported_field_is_refused_by_name(gateway: Gateway) -> None:
    assert VALUES.keys() == unsupported.CHAT.keys()
    for name, value in VALUES.items():
        answer = await chat(gateway, chat_body(**{name: value}))
        assert (answer.status, answer.error["param"]) == (400, name)
        assert answer.error["code"] == "unsupported_parameter"


async def test_unsupported_fields_may_hold_what_changes_nothing(gateway: Gateway) -> None:
    chat_fields = unsupported.CHAT.items()
    neutral: dict[str, Any] = {name: values[0] if values else None for name, values in chat_fields}
    absent: dict[str, Any] = dict.fromkeys(unsupported.CHAT)
    assert (await chat(gateway, chat_body(**neutral))).status == 200
    assert (await chat(gateway, chat_body(**absent))).status == 200


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
    b'{"model": "tiny", "messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
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
