"""What sampling parameters may say, on every way that a request can come."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.gateway.engine_double import EngineDouble, says
from tests.gateway.raw_http import exchange, post
from tests.gateway.serving import MODEL, Gateway

pytestmark = pytest.mark.asyncio

INT64 = 2**63
REFUSED: list[tuple[dict[str, Any], str]] = [
    # OpenAI's fields, with its ranges.
    ({"temperature": 9}, "from 0 to 2, got 9"),
    ({"temperature": 2.01}, "from 0 to 2, got 2.01"),
    ({"temperature": -0.01}, "from 0 to 2"),
    ({"top_p": 1.01}, "from 0 to 1"),
    ({"top_p": -0.01}, "from 0 to 1"),
    ({"frequency_penalty": 2.01}, "from -2 to 2"),
    ({"frequency_penalty": -2.01}, "from -2 to 2"),
    ({"presence_penalty": 2.01}, "from -2 to 2"),
    ({"presence_penalty": -2.01}, "from -2 to 2"),
    ({"seed": INT64}, f"from -{INT64} to {INT64 - 1}"),
    ({"seed": -INT64 - 1}, f"from -{INT64} to {INT64 - 1}"),
    ({"logit_bias": {"1": 100.1}}, "[-100, 100]"),
    ({"logit_bias": {"1": -100.1}}, "[-100, 100]"),
    ({"logit_bias": {"-1": 1}}, "from 0 to"),
    ({"logit_bias": {"9" * 5000: 1}}, "from 0 to"),
    ({"stop": list("abcde")}, "At most 4"),
    # vLLM's.
    ({"top_k": -2}, "from -1 to"),
    ({"top_k": 2**31}, "from -1 to"),
    ({"min_p": 1.01}, "from 0 to 1"),
    ({"min_p": -0.01}, "from 0 to 1"),
    ({"repetition_penalty": 0}, "above 0"),
    ({"repetition_penalty": -1}, "above 0"),
    ({"min_tokens": -1}, "at least 0"),
    ({"min_tokens": 2**70}, "must not exceed"),
    ({"stop_token_ids": [-1]}, "from 0 to"),
    ({"stop_token_ids": [2**70]}, "from 0 to"),
    ({"allowed_token_ids": [2**70]}, "from 0 to"),
]
ACCEPTED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 2},
    {"top_p": 0},
    {"top_p": 1},
    {"frequency_penalty": -2, "presence_penalty": 2},
    {"frequency_penalty": 2, "presence_penalty": -2},
    {"seed": INT64 - 1},
    {"seed": -INT64},
    {"logit_bias": {"1": 100, "2": -100}},
    {"stop": list("zxyw")},
    {"top_k": -1},
    {"top_k": 0},
    {"top_k": 2**31 - 1},
    {"min_p": 0},
    {"min_p": 1},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100},
    {"min_tokens": 0},
    {"stop_token_ids": [0], "allowed_token_ids": [65]},
]

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends fields; returns the error's object, empty if the request was answered."""

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}
MESSAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "/v1/chat": ("chat", {"id": "t", "messages": [{"role": "user", "content": "hi"}]}, "done"),
    "/v1/responses": ("response.create", {"input": "hi"}, "response.completed"),
}


def over_http(gateway: Gateway, path: str) -> Ask:
    async def ask(fields: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps({"model": MODEL, **PATHS[path], **fields}).encode()
        answer = await exchange(gateway, post(gateway, body, path=path))
        assert answer.status in (200, 400), answer.body
        return {} if answer.status == 200 else answer.error

    return ask


def over_a_socket(gateway: Gateway, path: str) -> Ask:
    kind, minimum, last = MESSAGES[path]
    headers = {"authorization": f"Bearer {gateway.api_key}"}

    async def ask(fields: dict[str, Any]) -> dict[str, Any]:
        url = gateway.url.replace("http", "ws", 1) + path
        async with connect(url, additional_headers=headers) as socket:
            message = {"type": kind, "model": MODEL, **minimum, **fields}
            await socket.send(json.dumps(message))
            async for text in socket:
                event = json.loads(text)
                if event["type"] == "error":
                    assert event["status"] == 400
                    found: dict[str, Any] = event["error"]
                    return found
                if event["type"] == last:
                    return {}
        raise AssertionError("the socket closed without an answer")

    return ask


@pytest_asyncio.fixture(params=[*PATHS, *(f"ws {path}" for path in MESSAGES)])
async def ask(request: pytest.FixtureRequest, gateway: Gateway) -> AsyncIterator[Ask]:
    kind, _, path = request.param.rpartition(" ")
    yield over_a_socket(gateway, path) if kind else over_http(gateway, path)


async def test_what_is_out_of_range_is_refused_by_name(ask: Ask, double: EngineDouble) -> None:
    for fields, rule in REFUSED:
        (name,) = fields
        error = await ask(fields)
        assert error, fields
        assert error["param"].partition("[")[0] == name, error
        assert error["type"] == "invalid_request_error"
        assert rule in error["message"], error
    assert not double.requests


async def test_the_ends_of_the_ranges_are_served(ask: Ask, double: EngineDouble) -> None:
    double.script = says("ok")
    for fields in ACCEPTED:
        assert await ask(fields) == {}, fields
    assert len(double.requests) == len(ACCEPTED)
