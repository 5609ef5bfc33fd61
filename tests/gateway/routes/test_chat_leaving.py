"""Clients that leave amid a chat, or stop reading it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, post
from tests.gateway.serving import MOMENT_S, Gateway, chat_body, served_double, until

pytestmark = pytest.mark.asyncio


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


async def test_a_client_that_leaves_after_a_long_prompt_is_missed(
    gateway: Gateway, double: EngineDouble
) -> None:
    """More than the server takes at once before it stops reading: it must read on afterwards."""
    double.script = lambda prompt: Play(text="x", queued_s=60.0)
    client = await RawClient.connect(gateway)
    body = json.dumps(chat_body()).encode() + b" " * 200_000
    request = post(gateway, body)
    head = request.index(b"\r\n\r\n") + 4
    client.send(request[:head])
    await until(lambda: gateway.server.server_state.tasks)
    await asyncio.sleep(0.05)  # it waits for the body
    client.send(request[head:])
    await until(lambda: double.running)
    left_at = asyncio.get_running_loop().time()
    await client.close()
    await until(lambda: not double.running)
    (aborted_at,) = double.aborted.values()
    assert aborted_at - left_at < MOMENT_S


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
