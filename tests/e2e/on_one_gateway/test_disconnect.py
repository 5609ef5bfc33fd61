"""Clients that leave, with the real engine: it stops, and its blocks are free."""

from __future__ import annotations

import pytest

from tests.e2e.on_one_gateway.conftest import with_its_own_tenant
from tests.gateway.raw_http import RawClient, post
from tests.gateway.serving import Gateway, chat_body, encode, until
from tests.gateway.ws_client import connected

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

NUM_TOKENS = 1800
LONG = {"max_tokens": NUM_TOKENS, "ignore_eos": True}


async def free_blocks(gateway: Gateway) -> int:
    return (await gateway.engine.fetch_stats()).num_free_blocks


async def wait_freed(gateway: Gateway, total: int) -> None:
    """Until all blocks are free."""

    async def freed() -> bool:
        return await free_blocks(gateway) == total

    await until(freed)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_stops_soon_after_a_client_left(gateway: Gateway, stream: bool) -> None:
    total = (await gateway.engine.fetch_stats()).num_total_blocks
    assert await free_blocks(gateway) == total
    generated: list[int] = []
    while len(generated) < 20 and min(generated, default=NUM_TOKENS) >= NUM_TOKENS:
        before = (await gateway.engine.fetch_stats()).generation_tokens
        client = await RawClient.connect(gateway)
        client.send(post(gateway, encode(chat_body("Hello!", stream=stream, **LONG))))

        async def holds_blocks() -> bool:
            return await free_blocks(gateway) < total

        await until(holds_blocks)
        client.reset()
        await wait_freed(gateway, total)
        generated.append((await gateway.engine.fetch_stats()).generation_tokens - before)
    # The best of some: this machine's other work must not decide.
    assert min(generated) < NUM_TOKENS


async def test_queued_requests_leave_the_queue(gateway: Gateway) -> None:
    """More than the engine runs at once; those that wait are dropped without having run."""
    # What earlier tests left may still be on its way into the ledger.
    gateway = await with_its_own_tenant(gateway)
    clients = [await RawClient.connect(gateway) for _ in range(80)]
    for client in clients:
        client.send(post(gateway, encode(chat_body("Hello!", **LONG))))

    async def crowded() -> bool:
        stats = await gateway.engine.fetch_stats()
        # All have come: one that leaves before its request was read is in no ledger.
        return stats.num_waiting > 5 and stats.num_running + stats.num_waiting == len(clients)

    await until(crowded, within_s=120)
    for client in clients:
        client.reset()
    await wait_freed(gateway, (await gateway.engine.fetch_stats()).num_total_blocks)
    stats = await gateway.engine.fetch_stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert (await gateway.usage(80)).requests == 80


async def test_a_websocket_that_leaves(gateway: Gateway) -> None:
    total = (await gateway.engine.fetch_stats()).num_total_blocks
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=gateway.api_key)
        await client.receive()
        for i in range(4):
            await client.chat(f"t{i}", "Hello!", **LONG)

        async def running() -> bool:
            return (await gateway.engine.fetch_stats()).num_running > 0

        await until(running)
        client.socket.transport.abort()
        await wait_freed(gateway, total)
