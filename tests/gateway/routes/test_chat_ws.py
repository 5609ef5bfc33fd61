from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from gateway.errors import PermissionDenied
from gateway.routes.sockets import check_origin
from tests.gateway.raw_http import bodiless, exchange
from tests.gateway.serving import Gateway, served_double
from tests.gateway.ws_client import WsClient, connected, text_of


async def refused(gateway: Gateway, *, path: str = "/v1/chat", **headers: str) -> tuple[int, str]:
    """Status and error code of a handshake that must not succeed."""
    url = gateway.ws_url.replace("/v1/chat", path)
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, additional_headers=headers):
            pass
    response = caught.value.response
    assert response.body is not None
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(response.body)["error"]["code"]


@pytest.mark.asyncio
async def test_a_key_in_the_header_makes_the_socket_ready(gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {gateway.api_key}"}
    async with connected(gateway, additional_headers=headers) as client:
        assert (await client.receive())["type"] == "ready"
        await client.chat("t", "hello")
        assert text_of(await client.turn("t")) == "You said: hello"


@pytest.mark.asyncio
async def test_a_refusal_is_no_error_of_the_servers(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await refused(gateway, Authorization="Bearer nonsense"))[0] == 401
    await asyncio.sleep(0.05)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.asyncio
async def test_a_bad_key_in_the_header_is_a_real_401(gateway: Gateway) -> None:
    assert await refused(gateway, Authorization="Bearer nonsense") == (401, "invalid_api_key")
    assert await refused(gateway, Authorization="Basic x") == (401, "invalid_api_key")


@pytest.mark.asyncio
async def test_a_foreign_page_is_a_real_403(gateway: Gateway) -> None:
    for origin in ("https://evil.example", "null", f"http://{gateway.host}:1", "http://"):
        assert await refused(gateway, Origin=origin) == (403, "origin_not_allowed")


@pytest.mark.asyncio
async def test_our_own_page_and_allowed_ones_may(model_dir: Path) -> None:
    async with served_double(model_dir, allowed_origins=["https://app.example"]) as (gateway, _):
        for origin in (gateway.url, "https://app.example"):
            async with connected(gateway, origin=origin) as client:
                assert isinstance(client, WsClient)
        assert await refused(gateway, Origin="https://app.example.evil") == (
            403,
            "origin_not_allowed",
        )


@pytest.mark.asyncio
async def test_every_page_may_if_all_are_allowed(model_dir: Path) -> None:
    async with (
        served_double(model_dir, allowed_origins=["*"]) as (gateway, _),
        connected(gateway, origin="https://anybody.example") as client,
    ):
        assert isinstance(client, WsClient)


@pytest.mark.asyncio
async def test_other_paths_are_not_websockets(gateway: Gateway) -> None:
    assert (await refused(gateway, path="/v1/nothing"))[0] == 401
    key = f"Bearer {gateway.api_key}"
    assert await refused(gateway, path="/v1/nothing", Authorization=key) == (404, "not_found")
    assert await refused(gateway, path="/", Authorization=key) == (404, "not_found")


def key_protocol(gateway: Gateway, key: str | None = None) -> Subprotocol:
    return Subprotocol(f"sluice.api-key.{key or gateway.api_key}")


async def ticket_of(gateway: Gateway) -> str:
    data = bodiless("POST", "/v1/ws-tickets", authorization=f"Bearer {gateway.api_key}")
    answer = await exchange(gateway, data)
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    body = answer.json()
    assert body["object"] == "ws_ticket"
    assert 25 <= body["expires_at"] - time.time() <= 30
    ticket: str = body["ticket"]
    return ticket


@pytest.mark.asyncio
async def test_a_ticket_opens_one_socket(gateway: Gateway) -> None:
    ticket = await ticket_of(gateway)
    async with connect(f"{gateway.ws_url}?ticket={ticket}") as socket:
        client = WsClient(socket)
        assert (await client.receive())["type"] == "ready"
        await client.chat("t", "hello")
        assert text_of(await client.turn("t")) == "You said: hello"
        for path in (f"/v1/chat?ticket={ticket}", "/v1/chat?ticket=", "/v1/chat?ticket=x"):
            assert await refused(gateway, path=path) == (401, "invalid_api_key")


@pytest.mark.asyncio
async def test_a_ticket_ends_with_its_key(gateway: Gateway) -> None:
    ticket = await ticket_of(gateway)
    (key,) = await gateway.store.list_keys(gateway.tenant.id)
    await gateway.store.revoke_key(key.public_id)
    gateway.authenticator.forget(key.public_id)
    path = f"/v1/chat?ticket={ticket}"
    assert await refused(gateway, path=path) == (401, "invalid_api_key")


@pytest.mark.asyncio
async def test_tickets_are_for_keys(gateway: Gateway) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}):
        answer = await exchange(gateway, bodiless("POST", "/v1/ws-tickets", **headers))
        assert answer.status == 401


@pytest.mark.asyncio
async def test_a_key_among_the_subprotocols_is_not_echoed(gateway: Gateway) -> None:
    ours, secret = Subprotocol("sluice.v1"), key_protocol(gateway)
    for offered in ([ours, secret], [secret, ours]):
        async with connect(gateway.ws_url, subprotocols=offered) as socket:
            assert socket.subprotocol == "sluice.v1"
            assert (await WsClient(socket).receive())["type"] == "ready"
    async with connect(gateway.ws_url, subprotocols=[ours]) as socket:
        assert socket.subprotocol == "sluice.v1"
        client = WsClient(socket)
        await client.send(type="auth", api_key=gateway.api_key)
        assert (await client.receive())["type"] == "ready"


@pytest.mark.asyncio
async def test_bad_subprotocols_and_two_ways_at_once(gateway: Gateway) -> None:
    good, bad = key_protocol(gateway), key_protocol(gateway, "nonsense")
    protocol = "Sec-WebSocket-Protocol"
    assert await refused(gateway, **{protocol: f"sluice.v1, {bad}"}) == (401, "invalid_api_key")
    assert await refused(gateway, **{protocol: good}) == (400, "invalid_request")
    bearer = {"Authorization": f"Bearer {gateway.api_key}"}
    ticket = await ticket_of(gateway)
    path = f"/v1/chat?ticket={ticket}"
    for headers in (bearer, {protocol: f"sluice.v1, {good}"}):
        assert await refused(gateway, path=path, **headers) == (400, "invalid_request")
    async with connect(f"{gateway.ws_url}?ticket={ticket}"):  # it was not used up
        pass


@pytest.mark.parametrize(
    ("origin", "host", "fine"),
    [
        (None, "a.example", True),
        ("https://a.example", "a.example", True),
        ("https://A.example", "a.EXAMPLE", True),
        ("http://a.example:8000", "a.example:8000", True),
        ("http://a.example:8000", "a.example:8001", False),
        ("http://a.example", "a.example:8000", False),
        ("https://a.example.evil", "a.example", False),
        ("https://evil/a.example", "a.example", False),
        ("https://a.example/", "a.example", False),
        ("file://a.example", "a.example", False),
        ("null", "a.example", False),
        ("", "", False),
        ("https://b.example", "a.example", True),
    ],
)
def test_origins(origin: str | None, host: str, fine: bool) -> None:
    headers = Headers({"host": host} | ({} if origin is None else {"origin": origin}))
    if fine:
        check_origin(headers, ["https://b.example"])
    else:
        with pytest.raises(PermissionDenied):
            check_origin(headers, ["https://b.example"])
