"""``kill -9`` of the engine is a pause: every kind of answer is the one that comes without it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from openai import AsyncOpenAI

from tests.gateway.raw_http import get
from tests.gateway.serving import MODEL, Gateway, until
from tests.gateway.ws_client import ready, text_of

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

RESTART_S = 90.0
NUM_TOKENS = 450
LONG: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "max_tokens": NUM_TOKENS,
    "extra_body": {"ignore_eos": True},
}
NUMBERS = {
    "type": "object",
    "properties": {
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60}
    },
    "required": ["numbers"],
    "additionalProperties": False,
}


async def streamed(client: AsyncOpenAI, **fields: Any) -> object:
    """All that a stream says, but for its id."""
    chunks = await client.chat.completions.create(
        **{**LONG, **fields}, stream=True, stream_options={"include_usage": True}
    )
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    logprobs: dict[int, list[tuple[str, float]]] = {}
    usage = None
    async for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason
            found = choice.logprobs.content if choice.logprobs is not None else None
            logprobs.setdefault(choice.index, []).extend(
                (one.token, round(one.logprob, 3)) for one in found or ()
            )
    assert usage is not None
    return texts, reasons, logprobs, usage.prompt_tokens, usage.completion_tokens


async def whole(client: AsyncOpenAI) -> object:
    answer = await client.chat.completions.create(**LONG, stop=["no such words"], seed=3)
    usage = answer.usage
    assert usage is not None
    return answer.choices[0].message.content, usage.prompt_tokens, usage.completion_tokens


async def numbers(client: AsyncOpenAI) -> object:
    schema = {"name": "numbers", "schema": NUMBERS, "strict": True}
    fields = {"response_format": {"type": "json_schema", "json_schema": schema}, "temperature": 0}
    answer = await client.chat.completions.create(**{**LONG, **fields, "extra_body": {}})
    text = answer.choices[0].message.content or ""
    assert len(json.loads(text)["numbers"]) == 60
    return text


async def in_the_background(client: AsyncOpenAI) -> object:
    response = await client.responses.create(
        model=MODEL,
        input="Tell me a story about a fox.",
        background=True,
        max_output_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    while response.status in ("queued", "in_progress"):
        await asyncio.sleep(0.2)
        response = await client.responses.retrieve(response.id)
    assert response.usage is not None
    return response.output_text, response.usage.output_tokens


async def over_a_websocket(gateway: Gateway) -> object:
    async with ready(gateway) as socket:
        await socket.chat(
            "t", "Hello!", max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=11
        )
        return text_of(await socket.turn("t"))


async def test_kill_9_is_a_pause(gateway: Gateway) -> None:
    async with gateway.openai(max_retries=0) as client:
        kinds: list[Callable[[], Awaitable[object]]] = [
            lambda: streamed(client, temperature=0),
            lambda: streamed(client, seed=7, n=2, temperature=1.0, logprobs=True, top_logprobs=2),
            lambda: streamed(client, seed=9, temperature=0.8, presence_penalty=0.5),
            lambda: whole(client),
            lambda: numbers(client),
            lambda: in_the_background(client),
            lambda: over_a_websocket(gateway),
        ]
        undisturbed = await asyncio.gather(*(ask() for ask in kinds))

        before = (await gateway.engine.fetch_stats()).generation_tokens
        asked = [asyncio.ensure_future(ask()) for ask in kinds]

        async def generating() -> bool:
            stats = await gateway.engine.fetch_stats()
            return stats.generation_tokens > before + 300

        await until(generating)
        assert not any(one.done() for one in asked)
        pid = gateway.engine.info.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not gateway.engine.ready)
        assert (await get(gateway, "/livez")).status == 200
        assert (await get(gateway, "/readyz")).status == 503
        refused = await get(gateway, "/v1/models", authorization=f"Bearer {gateway.api_key}")
        assert refused.status == 200
        # The package obeys retry-after: what is asked meanwhile is answered in time.
        async with gateway.openai(max_retries=20) as patient, asyncio.timeout(RESTART_S):
            late = await patient.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello!"}], max_tokens=5
            )
            assert late.choices[0].message.content
            assert await asyncio.gather(*asked) == undisturbed
    assert gateway.engine.moves.num_moved == 8
    assert gateway.engine.moves.num_failed == 0
    assert gateway.engine.info.pid != pid
    assert not psutil.pid_exists(pid)
    assert (await get(gateway, "/readyz")).status == 200
    totals = await gateway.usage(15)
    assert totals.requests == 15
    assert late.usage is not None
    # Each kind was answered twice, and the length of one of them is its grammar's.
    tokens = totals.completion_tokens - late.usage.completion_tokens
    of_numbers, odd = divmod(tokens - 2 * 7 * NUM_TOKENS, 2)
    assert not odd
    assert 0 < of_numbers <= NUM_TOKENS
