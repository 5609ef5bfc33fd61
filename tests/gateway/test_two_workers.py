"""Two gateway workers over one PostgreSQL: whichever is asked, the answer is the same."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from engine.text.tokenizer import Tokenizer
from tenants.store import Store
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import bodiless, events, get
from tests.gateway.routes.test_responses import events_of
from tests.gateway.routes.test_responses import request as response_request
from tests.gateway.routes.test_streams import (
    again,
    read_on,
    read_some,
    request,
    said,
    start,
    stop,
    stranger,
    whole_events,
)
from tests.gateway.serving import MODEL, Gateway, double_client, make_config, served, until
from tests.gateway.ws_client import WsClient, connected

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

TEXT = "".join(f"{number} ünd " for number in range(60))
Pair = tuple[list[Gateway], list[EngineDouble]]


@asynccontextmanager
async def workers(model_dir: Path, dsn: str, **server: Any) -> AsyncIterator[Pair]:
    """Each with an engine, a pool of connections and memory of its own."""
    config = make_config(model_dir, **server)
    doubles = [EngineDouble(Tokenizer.load(model_dir)) for _ in range(2)]
    stores = [await Store.connect(dsn, max_size=3) for _ in range(2)]
    for double in doubles:
        double.script = lambda prompt: Play(text=TEXT, interval_s=0.0005)
    async with (
        served(config, double_client(config, doubles[0]), store=stores[0]) as one,
        served(config, double_client(config, doubles[1]), store=stores[1], beside=one) as two,
    ):
        for gateway in (one, two):
            await until(lambda gateway=gateway: _is_known(gateway))  # type: ignore[misc]
        yield [one, two], doubles


async def _is_known(gateway: Gateway) -> bool:
    worker_id = gateway.app.state.services.peers.worker_id
    return await gateway.store.shared.find_worker(worker_id) is not None


async def test_cut_at_a_hundred_points_and_read_on_anywhere(model_dir: Path, pg_dsn: str) -> None:
    luck = random.Random(11)
    async with workers(model_dir, pg_dsn) as (gateways, doubles):
        cuts, rounds = 0, 0
        while cuts < 100:
            rounds += 1
            client, stream_id = await start(gateways[rounds % 2], request(gateways[0]))
            body, ended = b"", False
            while not ended:
                some, ended = await read_some(client, luck.randrange(5_000))
                cuts += not ended
                body += whole_events(some)
                if not ended:
                    gateway = luck.choice(gateways)
                    client, _ = await start(gateway, again(gateway, stream_id, body))
            for gateway in gateways:
                assert (await read_on(gateway, stream_id)).body == body
            assert said(body) == TEXT
            assert events(body)[-1] == "[DONE]"
        assert not doubles[0].aborted
        assert not doubles[1].aborted
        totals = await gateways[0].usage(rounds)
        assert totals.requests == rounds
        assert totals.completion_tokens == rounds * len(TEXT.encode())


async def test_a_response_is_cut_and_read_on_anywhere(model_dir: Path, pg_dsn: str) -> None:
    luck = random.Random(5)
    async with workers(model_dir, pg_dsn) as (gateways, doubles):
        cuts, rounds = 0, 0
        while cuts < 100:
            rounds += 1
            body = {"input": "hi", "stream": True, "background": rounds % 2 == 0, "store": True}
            client, response_id = await start(
                gateways[0], response_request(gateways[0], body, x_sluice_resumable="1")
            )
            text, ended = b"", False
            while not ended:
                some, ended = await read_some(client, luck.randrange(5_000))
                cuts += not ended
                text += whole_events(some)
                if not ended:
                    gateway = luck.choice(gateways)
                    after = text.count(b"\n\n") - 1
                    query = f"stream=true&starting_after={after}" if text else "stream=true"
                    path = f"/v1/responses/{response_id}?{query}"
                    client, _ = await start(
                        gateway, bodiless("GET", path, authorization=f"Bearer {gateway.api_key}")
                    )
            told = events_of(text)
            deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
            assert "".join(deltas) == TEXT
            assert told[-1]["type"] == "response.completed"
            assert told[-1]["response"]["output"][0]["content"][0]["text"] == TEXT
        assert not doubles[0].aborted
        totals = await gateways[0].usage(rounds)
        assert totals.requests == rounds
        assert totals.completion_tokens == rounds * len(TEXT.encode())


async def test_streams_outlive_their_worker_once_they_have_ended(
    model_dir: Path, pg_dsn: str
) -> None:
    async with workers(model_dir, pg_dsn) as (gateways, _):
        config = make_config(model_dir)
        double = EngineDouble(Tokenizer.load(model_dir))
        store = await Store.connect(pg_dsn)
        third = served(config, double_client(config, double), store=store, beside=gateways[0])
        async with third as gateway:
            client, stream_id = await start(gateway, request(gateway))
            body, _ = await read_some(client, 10**7)
        for gateway in gateways:
            assert (await read_on(gateway, stream_id)).body == body
            assert (await stop(gateway, stream_id)).status == 204


async def test_stopping_from_the_other_worker(model_dir: Path, pg_dsn: str) -> None:
    async with workers(model_dir, pg_dsn, heartbeat_s=0.1) as (gateways, doubles):
        doubles[0].script = lambda prompt: Play(text="ab", queued_s=60)
        client, stream_id = await start(gateways[0], request(gateways[0]))
        reader, _ = await start(gateways[1], again(gateways[1], stream_id))
        heard = b""
        while heard.count(b"\n\n") < 3:  # the heartbeats come through as well
            heard += await reader.chunk()
        key = await stranger(gateways[0])
        assert (await stop(gateways[1], stream_id, key=key)).status == 404
        assert not doubles[0].aborted
        assert (await stop(gateways[1], stream_id)).status == 204
        await until(lambda: doubles[0].aborted)
        rest, _ = await read_some(reader, 10**6)
        assert (await read_on(gateways[0], stream_id)).body == heard + rest
        client.reset()


async def test_responses_are_found_and_ended_from_the_other_worker(
    model_dir: Path, pg_dsn: str
) -> None:
    async with workers(model_dir, pg_dsn) as (gateways, doubles):
        doubles[0].script = lambda prompt: Play(text="x" * 1500, interval_s=0.01)
        async with gateways[0].openai() as here, gateways[1].openai() as there:
            response = await here.responses.create(model=MODEL, input="hi", background=True)

            async def has_begun() -> bool:
                return (await there.responses.retrieve(response.id)).status == "in_progress"

            await until(has_begun)
            assert (await there.responses.input_items.list(response.id)).data[0].type == "message"
            with pytest.raises(BadRequestError) as caught:
                await there.responses.create(
                    model=MODEL, input="x", previous_response_id=response.id
                )
            assert caught.value.code == "previous_response_in_progress"
            assert (await there.responses.cancel(response.id)).status == "cancelled"
            await until(lambda: doubles[0].aborted)
            # An ended one needs no line to its worker.
            following = await there.responses.create(
                model=MODEL, input="more", previous_response_id=response.id
            )
            assert (await here.responses.retrieve(following.id)).output_text == TEXT
            stream = await here.responses.create(model=MODEL, input="hi", stream=True)
            event = await anext(aiter(stream))
            assert event.type == "response.created"
            await there.responses.delete(event.response.id)
            assert [event.type async for event in stream][-1] == "response.incomplete"
            for client in (here, there):
                with pytest.raises(NotFoundError):
                    await client.responses.retrieve(event.response.id)
            await there.responses.delete(following.id)
            with pytest.raises(NotFoundError):
                await here.responses.retrieve(following.id)


async def test_a_background_response_of_a_worker_that_died_has_failed(
    model_dir: Path, pg_dsn: str
) -> None:
    async with workers(model_dir, pg_dsn) as (gateways, doubles):
        doubles[0].script = lambda prompt: Play(text="x", queued_s=60)
        async with gateways[0].openai() as here, gateways[1].openai() as there:
            response = await here.responses.create(model=MODEL, input="hi", background=True)
            await gateways[1].store.shared.forget_worker(
                gateways[0].app.state.services.peers.worker_id
            )
            found = await there.responses.retrieve(response.id)
            assert found.status == "failed"
            assert found.error is not None
            assert found.error.code == "server_error"
            assert (await there.responses.cancel(response.id)).status == "failed"
            await here.responses.cancel(response.id)


async def test_a_ticket_opens_a_socket_at_the_other_worker(model_dir: Path, pg_dsn: str) -> None:
    async with workers(model_dir, pg_dsn) as (gateways, _):
        answer = await get(
            gateways[0],
            "/v1/ws-tickets",
            method="POST",
            authorization=f"Bearer {gateways[0].api_key}",
        )
        ticket = answer.json()["ticket"]
        async with connected(gateways[1], ticket=ticket) as client:
            assert (await client.receive())["type"] == "ready"
            await _chat(client)
        for gateway in gateways:
            with pytest.raises(Exception, match="401"):
                async with connected(gateway, ticket=ticket):
                    pass


async def _chat(client: WsClient) -> None:
    await client.chat("t")
    assert (await client.turn("t"))[-1]["type"] == "done"


async def test_a_turn_is_read_on_at_the_other_worker(model_dir: Path, pg_dsn: str) -> None:
    async with workers(model_dir, pg_dsn) as (gateways, _):
        headers = {"authorization": f"Bearer {gateways[0].api_key}"}
        async with connected(gateways[0], additional_headers=headers) as client:
            await client.receive()
            await client.chat("t", resumable=True)
            started = await client.receive()
            frames = [started, *[await client.receive() for _ in range(5)]]
        async with connected(gateways[1], additional_headers=headers) as client:
            await client.receive()
            await client.resume("t", started["stream_id"], frames[-1]["seq"])
            frames += await client.turn("t")
        text = "".join(frame.get("content", "") for frame in frames if frame["type"] == "delta")
        assert text == TEXT
