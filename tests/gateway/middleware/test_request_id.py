from __future__ import annotations

from uuid import UUID

import pytest
from websockets.asyncio.client import connect

from tests.gateway.raw_http import chat, exchange, get
from tests.gateway.serving import Gateway, chat_body

pytestmark = pytest.mark.asyncio


async def test_every_answer_has_its_own_id(gateway: Gateway) -> None:
    answers = [
        await get(gateway, "/livez"),
        await get(gateway, "/v1/models"),
        await chat(gateway, chat_body()),
        await chat(gateway, chat_body(stream=True)),
        await chat(gateway, b"{"),
        await exchange(gateway, b"NONSENSE\r\n\r\n"),
    ]
    ids = {UUID(answer.headers["x-request-id"]) for answer in answers}
    assert len(ids) == len(answers)


@pytest.mark.parametrize("name", ["mine", "01J/a-b_c.d:e+f=@", "x" * 128])
async def test_a_clients_own_name_comes_back_beside_the_id(gateway: Gateway, name: str) -> None:
    answer = await get(gateway, "/livez", x_request_id=name)
    assert answer.headers["x-request-id"] == name
    assert UUID(answer.headers["x-sluice-request-id"])


@pytest.mark.parametrize("name", ["a b", 'a"', "\xe9", "x" * 129, ""])
async def test_a_name_that_could_forge_a_field_is_dropped(gateway: Gateway, name: str) -> None:
    answer = await get(gateway, "/livez", x_request_id=name)
    assert answer.headers["x-request-id"] == answer.headers["x-sluice-request-id"]
    assert UUID(answer.headers["x-request-id"])


async def test_a_websocket_has_one(gateway: Gateway) -> None:
    async with connect(gateway.ws_url) as socket:
        assert socket.response is not None
        assert UUID(socket.response.headers["x-request-id"])


async def test_the_ledger_and_the_answer_name_the_same_request(gateway: Gateway) -> None:
    answer = await chat(gateway, chat_body())
    await gateway.usage()
    ledger = vars(gateway.store)["_ledger"]
    assert UUID(answer.headers["x-request-id"]) in ledger
