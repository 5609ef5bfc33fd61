"""Clients that stop reading, over real sockets: their requests pause, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket

from engine.text.tokenizer import Tokenizer
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, chat, events, get, post
from tests.gateway.routes.test_responses import events_of
from tests.gateway.serving import (
    MODEL,
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    until,
)
from tests.ledger import usage_totals

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


@asynccontextmanager
async def stalled_response(
    model_dir: Path, **fields: Any
) -> AsyncIterator[tuple[Gateway, EngineDouble, RawClient, str]]:
    """A response whose reader has stopped, and which is parked for that; its id comes last."""
    config = make_config(model_dir, flush_interval_ms=0, send_timeout_s=60)
    double = EngineDouble(Tokenizer.load(model_dir), max_model_len=10**6)
    double.script = lambda prompt: Play(text="x" * LENGTH)
    engine = double_client(config, double, max_unread_tokens=50)
    async with served(config, engine) as gateway:
        client = await connect(gateway)
        body = {"model": MODEL, "input": "hi", "stream": True, **fields}
        client.send(post(gateway, encode(body), path="/v1/responses"))
        await until(lambda: double.lives[-1].parked, within_s=60)
        (response_id,) = gateway.app.state.services.responses._running
        yield gateway, double, client, response_id
        client.reset()
        await until(lambda: not gateway.server.server_state.connections)


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_obfuscation": True}}])
async def test_cancelling_a_response_does_not_wait_for_its_reader(
    model_dir: Path, fields: dict[str, Any]
) -> None:
    async with stalled_response(model_dir, **fields) as (gateway, double, client, response_id):
        services = gateway.app.state.services
        path, key = f"/v1/responses/{response_id}", f"Bearer {gateway.api_key}"
        async with asyncio.timeout(10):
            answer = await get(gateway, f"{path}/cancel", method="POST", authorization=key)
        cancelled = answer.json()
        assert cancelled["status"] == "cancelled"
        (done,) = double.generated.values()
        assert cancelled["output"][0]["content"][0]["text"] == "x" * done
        assert cancelled["usage"]["output_tokens"] == done < LENGTH
        # It is settled, and its place is free: nothing of it is left but what its reader is owed.
        assert (await usage_totals(gateway.store, gateway.tenant.id)).completion_tokens == done
        assert not services.quota._holds
        assert not services.generations.live()
        assert (await get(gateway, path, authorization=key)).json() == cancelled

        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            told = events_of((await client.answer()).body)
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert told[-1]["type"] == "response.incomplete"
        assert told[-1]["response"] == cancelled
        deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "x" * done


async def test_a_reader_may_leave_or_read_on_while_its_response_is_cancelled(
    model_dir: Path,
) -> None:
    for moment_s, leaves in ((0.0, True), (0.001, False), (0.004, True), (0.004, False)):
        async with stalled_response(model_dir) as (gateway, double, client, response_id):
            path, key = f"/v1/responses/{response_id}", f"Bearer {gateway.api_key}"
            cancelling = asyncio.create_task(
                get(gateway, f"{path}/cancel", method="POST", authorization=key)
            )
            await asyncio.sleep(moment_s)
            if leaves:
                client.reset()
            else:
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                told = events_of((await client.answer()).body)
                assert [e["sequence_number"] for e in told] == list(range(len(told)))
                assert told[-1]["type"] == "response.incomplete"
            async with asyncio.timeout(10):
                answer = await cancelling
            assert answer.json()["status"] == "cancelled"
            totals = await usage_totals(gateway.store, gateway.tenant.id)
            assert totals.completion_tokens == sum(double.generated.values())
            assert not gateway.app.state.services.responses._running


async def test_deleting_a_response_does_not_wait_for_its_reader(model_dir: Path) -> None:
    async with stalled_response(model_dir) as (gateway, double, _, response_id):
        path, key = f"/v1/responses/{response_id}", f"Bearer {gateway.api_key}"
        async with asyncio.timeout(10):
            answer = await get(gateway, path, method="DELETE", authorization=key)
        assert answer.json()["deleted"]
        assert not gateway.app.state.services.generations.live()
        assert not double.running
        assert (await get(gateway, path, authorization=key)).status == 404


@asynccontextmanager
async def stalled_socket(
    model_dir: Path, path: str, **message: Any
) -> AsyncIterator[tuple[Gateway, EngineDouble, ClientConnection]]:
    """A WebSocket whose client does not read the answer to ``message``."""
    config = make_config(model_dir, flush_interval_ms=0, send_timeout_s=60, ws_outbox_bytes=4096)
    double = EngineDouble(Tokenizer.load(model_dir), max_model_len=10**6)
    double.script = lambda prompt: Play(text="x" * LENGTH)
    engine = double_client(config, double, max_unread_tokens=50)
    async with served(config, engine) as gateway:
        for listener in gateway.server.servers[0].sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (gateway.host, gateway.port))
        key = {"authorization": f"Bearer {gateway.api_key}"}
        url = gateway.ws_url.removesuffix("/v1/chat") + path
        async with connect_socket(
            url, sock=connection, additional_headers=key, max_queue=1, compression=None
        ) as client:
            await client.send(json.dumps(message))
            await until(lambda: double.lives[-1].parked, within_s=60)
            yield gateway, double, client


async def _settled(gateway: Gateway, double: EngineDouble) -> int:
    """Waits until nothing runs and all is settled; returns the tokens that were generated."""
    services = gateway.app.state.services
    async with asyncio.timeout(10):
        totals = await gateway.usage()
        await until(lambda: not services.quota._holds and not services.generations.live())
    (done,) = double.generated.values()
    assert totals.completion_tokens == done < LENGTH
    return done


async def test_a_cancelled_turn_is_settled_though_nobody_reads_it(model_dir: Path) -> None:
    chat = chat_body() | {"type": "chat", "id": "t"}
    async with stalled_socket(model_dir, "/v1/chat", **chat) as (gateway, double, client):
        await client.send('{"type": "cancel", "id": "t"}')
        done = await _settled(gateway, double)
        frames = [json.loads(await client.recv())]
        while frames[-1]["type"] != "done":
            frames.append(json.loads(await client.recv()))
        assert [frame["seq"] for frame in frames[1:]] == list(range(len(frames) - 1))
        assert "".join(frame.get("content", "") for frame in frames) == "x" * done
        assert frames[-1]["finish_reason"] == "cancelled"
        assert frames[-1]["usage"]["completion_tokens"] == done
    assert (await gateway.usage()).requests == 1


async def test_a_cancelled_response_is_settled_though_nobody_reads_it(model_dir: Path) -> None:
    create = {"type": "response.create", "model": MODEL, "input": "hi"}
    async with stalled_socket(model_dir, "/v1/responses", **create) as (gateway, double, client):
        (response_id,) = gateway.app.state.services.responses._running
        cancel = json.dumps({"type": "response.cancel", "response_id": response_id})
        for _ in range(2):
            await client.send(cancel)
        done = await _settled(gateway, double)
        told = [json.loads(await client.recv())]
        while told[-1]["type"] != "response.incomplete":
            told.append(json.loads(await client.recv()))
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "x" * done
        assert told[-1]["response"]["usage"]["output_tokens"] == done
    assert (await gateway.usage()).requests == 1
