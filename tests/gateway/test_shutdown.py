"""What clients hear of a server that shuts down, whatever they are about at that moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.text.tokenizer import Tokenizer
from gateway.processes import server
from tenants.types import Principal
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, bodiless, events, post
from tests.gateway.routes.test_streams import request as stream_request
from tests.gateway.serving import (
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    served_double,
    until,
)
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

TEXT = "x" * 60
SOON_S = 60.0


@asynccontextmanager
async def two_workers(
    model_dir: Path, **settings: Any
) -> AsyncIterator[tuple[Gateway, Gateway, EngineDouble]]:
    """Two workers, and the engine of the first."""
    config, store = make_config(model_dir, **settings), MemoryStore()
    doubles = [EngineDouble(Tokenizer.load(model_dir)) for _ in range(2)]
    async with (
        served(config, double_client(config, doubles[0]), store=store) as one,
        served(config, double_client(config, doubles[1]), store=store, beside=one) as two,
    ):
        worker_id = one.app.state.services.peers.worker_id
        await until(lambda: _is_known(store, worker_id))
        yield one, two, doubles[0]


async def _is_known(store: MemoryStore, worker_id: str) -> bool:
    return await store.shared.find_worker(worker_id) is not None


async def sent(gateway: Gateway, request: bytes) -> RawClient:
    client = await RawClient.connect(gateway)
    client.send(request)
    return client


def stop(gateway: Gateway) -> None:
    gateway.server.should_exit = True


# -- who reads what another worker generates


async def test_an_answer_of_another_worker_is_waited_for(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ABORT_S", 1.0)
    async with two_workers(model_dir) as (one, two, double):
        double.script = lambda prompt: Play(text=TEXT, interval_s=0.03)
        request = post(one, encode(chat_body()), idempotency_key="k")
        first = await sent(one, request)
        await until(lambda: double.running)
        second = await sent(two, request)
        await until(lambda: two.app.state.services.streams.readers)
        stop(two)
        answers = [await client.answer() for client in (first, second)]
        assert [answer.status for answer in answers] == [200, 200]
        assert answers[0].body == answers[1].body
        for client in (first, second):
            await client.close()


async def test_after_the_deadline_it_is_refused_as_an_error_object(model_dir: Path) -> None:
    async with two_workers(model_dir, shutdown_timeout_s=0.1) as (one, two, double):
        double.script = lambda prompt: Play(text=TEXT, interval_s=0.1)
        request = post(one, encode(chat_body()), idempotency_key="k")
        first = await sent(one, request)
        await until(lambda: double.running)
        second = await sent(two, request)
        await until(lambda: two.app.state.services.streams.readers)
        stop(two)
        answer = await second.answer()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "1"
        for client in (first, second):
            client.reset()


async def test_after_the_deadline_a_stream_ends_with_an_error(model_dir: Path) -> None:
    async with two_workers(model_dir, shutdown_timeout_s=0.1) as (one, two, double):
        double.script = lambda prompt: Play(text=TEXT, interval_s=0.1)
        first = await sent(one, stream_request(one))
        stream_id = (await first.head()).headers["x-sluice-stream-id"]
        key = f"Bearer {one.api_key}"
        path = f"/v1/streams/{stream_id}"
        second = await sent(two, bodiless("GET", path, authorization=key))
        await until(lambda: two.app.state.services.streams.readers)
        stop(two)
        *_, last = events((await second.answer()).body)
        assert last["error"]["code"] == "shutting_down"
        for client in (first, second):
            client.reset()


# -- who has not got far enough to be waited for


async def test_who_still_sends_a_body_gets_an_error_object(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ABORT_S", 1.0)
    async with served_double(model_dir) as (gateway, _):
        client = await sent(gateway, post(gateway, encode(chat_body()))[:-1])
        await until(lambda: gateway.server.server_state.tasks)
        stop(gateway)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["connection"] == "close"
        client.reset()


async def test_a_handshake_that_waits_is_refused_with_an_error_object(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with served_double(model_dir) as (gateway, _):
        may_know = asyncio.Event()

        async def authenticate(key: str) -> Principal:
            await may_know.wait()
            return await known(key)

        known = gateway.authenticator.authenticate
        monkeypatch.setattr(gateway.authenticator, "authenticate", authenticate)
        request = bodiless(
            "GET",
            "/v1/chat",
            authorization=f"Bearer {gateway.api_key}",
            connection="upgrade",
            upgrade="websocket",
            sec_websocket_version="13",
            sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
        )
        client = await sent(gateway, request)
        await until(lambda: gateway.server.server_state.tasks)
        stop(gateway)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        may_know.set()
        await client.close()
    assert not caplog.messages


# -- who does not read


async def test_a_kept_connection_that_nobody_reads_holds_nothing_up(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with served_double(model_dir, send_timeout_s=0.2) as (gateway, _):
        client = await RawClient.connect(gateway)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        asked = bodiless("GET", "/openapi.json")
        async with asyncio.timeout(SOON_S):
            while not _waits_unsent(gateway):
                client.send(asked)
                await asyncio.sleep(0.02)
            await until(lambda: not gateway.server.server_state.tasks)
        stop(gateway)
        await until(lambda: not gateway.server.server_state.connections)
        client.reset()
    assert not caplog.messages, "after 2 s uvicorn would log an error"


def _waits_unsent(gateway: Gateway) -> bool:
    """Whether an answered connection has bytes left that the kernel does not take, but fewer than
    would stop the application."""
    (connection,) = gateway.server.server_state.connections
    size: int = connection.transport.get_write_buffer_size()
    return size > 0
