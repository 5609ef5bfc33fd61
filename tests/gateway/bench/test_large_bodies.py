"""Bodies as large as may be reach the server beside the streams, and hold none of them up."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.bench.large_bodies import BODY_BYTES, LargeBodies, largest
from gateway.bench.load import Load, Workload
from gateway.commands.database import Address
from gateway.errors import ClientError
from gateway.schemas.chat import ChatCompletionRequest
from gateway.transport.body_shape import check
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway, until


def test_it_is_as_large_as_it_may_be() -> None:
    body = largest('a"b')
    assert BODY_BYTES - 100 < len(body) < BODY_BYTES + 200
    asyncio.run(check(body))
    request = msgspec.json.decode(body, type=ChatCompletionRequest)
    assert request.model == 'a"b'
    assert len(request.messages) > 16_000


@pytest.mark.asyncio
async def test_they_are_sent_until_the_streams_have_ended(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="x" * 100, interval_s=0.005)
    workload = Workload(max_tokens=30, large_bodies=20)
    level = await Load(Address(gateway.url, gateway.api_key), MODEL, workload).level(2, 6)
    assert (level.requests, level.errors) == (6, 0)
    assert len(double.requests) == 6  # what is too long for the model never gets there


@pytest.mark.asyncio
async def test_they_are_answered(gateway: Gateway) -> None:
    bodies = LargeBodies(Address(gateway.url, gateway.api_key), MODEL, per_s=20)
    sending = asyncio.create_task(bodies.run())
    await until(lambda: bodies.num_answered >= 2 or sending.done())
    assert not sending.done()
    sending.cancel()


@pytest.mark.asyncio
async def test_one_that_is_not_answered_fails_the_level(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: LargeBodies) -> None:
        raise ClientError("A large body was not answered")

    monkeypatch.setattr(LargeBodies, "run", fail)
    workload = Workload(max_tokens=3, large_bodies=1)
    with pytest.raises(ClientError, match="not answered"):
        await Load(Address(gateway.url, gateway.api_key), MODEL, workload).level(1, 1)


@pytest.mark.asyncio
async def test_a_server_that_is_gone_is_told() -> None:
    bodies = LargeBodies(Address("http://127.0.0.1:1", "k"), MODEL, per_s=20)
    with pytest.raises(ClientError, match="was not answered"):
        await bodies.run()
