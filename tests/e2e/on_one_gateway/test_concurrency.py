"""Two hundred streams at once, over HTTP and WebSockets, without an error."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.raw_http import RawClient, events, post
from tests.gateway.serving import Gateway, chat_body, encode
from tests.gateway.ws_client import connected

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

NUM_HTTP = 150
NUM_SOCKETS, TURNS = 10, 5
MAX_TOKENS = 12


async def http_stream(gateway: Gateway, i: int) -> int:
    client = await RawClient.connect(gateway)
    body = chat_body(
        f"What is {i % 10} + {i % 7}?",
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
    )
    client.send(post(gateway, encode(body)))
    *_, usage, done = events((await client.answer()).body)
    await client.close()
    assert done == "[DONE]"
    return int(usage["usage"]["completion_tokens"])


async def socket_turns(gateway: Gateway) -> int:
    generated = 0
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=gateway.api_key)
        await client.receive()
        for i in range(TURNS):
            await client.chat(f"t{i}", "Hello!", max_tokens=MAX_TOKENS, ignore_eos=True)
        ended = 0
        while ended < TURNS:
            frame = await client.receive(within_s=100)
            assert frame["type"] != "error"
            if frame["type"] == "done":
                ended += 1
                generated += frame["usage"]["completion_tokens"]
    return generated


async def test_200_streams(gateway: Gateway) -> None:
    async with asyncio.timeout(100):
        counts = await asyncio.gather(
            *(http_stream(gateway, i) for i in range(NUM_HTTP)),
            *(socket_turns(gateway) for _ in range(NUM_SOCKETS)),
        )
    num_requests = NUM_HTTP + NUM_SOCKETS * TURNS
    assert sum(counts) == num_requests * MAX_TOKENS
    totals = await gateway.usage(num_requests)
    assert totals.completion_tokens == num_requests * MAX_TOKENS
    stats = await gateway.engine.fetch_stats()
    assert stats.num_free_blocks == stats.num_total_blocks
    assert (stats.num_running, stats.num_waiting) == (0, 0)
