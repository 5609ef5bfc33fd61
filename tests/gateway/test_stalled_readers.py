"""Clients that stop reading, over real sockets: their requests pause, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from engine.tokenizer import Tokenizer
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, chat, events, post
from tests.gateway.serving import Gateway, chat_body, double_client, make_config, served, until

pytestmark = pytest.mark.asyncio

LENGTH = 20_000
"""Tokens; as chunks they are more than the buffers between the two take."""


async def connect(gateway: Gateway) -> RawClient:
    """With a small window, so that few bytes are on their way, and not reading yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (gateway.host, gateway.port))
    client = RawClient(*await asyncio.open_connection(sock=connection))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


async def test_it_is_parked_until_it_reads_on(model_dir: Path) -> None:
    config = make_config(model_dir, flush_interval_ms=0)
    double = EngineDouble(Tokenizer.load(model_dir), max_model_len=10**6)
    long, short = Play(text="x" * LENGTH), Play(text="short")
    double.script = lambda prompt: long if "long" in prompt else short
    engine = double_client(config, double, max_unread_tokens=50)
    async with served(config, engine) as gateway:
        client = await connect(gateway)
        body = chat_body("long", stream=True, max_tokens=LENGTH)
        client.send(post(gateway, json.dumps(body).encode()))
        await until(lambda: double.lives[-1].parked, within_s=60)
        (request_id,) = double.running
        done = double.generated[request_id]
        assert done < LENGTH

        answer = await chat(gateway, chat_body("quick"))
        assert answer.json()["choices"][0]["message"]["content"] == "short"
        await asyncio.sleep(0.05)
        assert double.generated[request_id] == done, "a parked request does nothing"

        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            answer = await client.answer()
        *chunks, last = events(answer.body)
        assert last == "[DONE]"
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert text == "x" * LENGTH
        assert not double.lives[-1].parked
        await client.close()


async def test_one_that_never_reads_on_is_aborted(model_dir: Path) -> None:
    config = make_config(model_dir, flush_interval_ms=0)
    double = EngineDouble(Tokenizer.load(model_dir), max_model_len=10**6)
    double.script = lambda prompt: Play(text="x" * LENGTH)
    engine = double_client(config, double, max_unread_tokens=50, stall_timeout_s=0.3)
    async with served(config, engine) as gateway:
        client = await connect(gateway)
        body = chat_body(stream=True, max_tokens=LENGTH)
        client.send(post(gateway, json.dumps(body).encode()))
        await until(lambda: double.aborted, within_s=60)
        assert not double.running
        assert 0 < sum(double.generated.values()) < LENGTH
        client.reset()
        await until(lambda: not gateway.server.server_state.connections)
