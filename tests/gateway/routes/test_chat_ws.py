from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.errors import PermissionDenied
from gateway.routes.chat_ws import check_origin
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
async def test_other_paths_are_not_websockets(gateway: Gateway) -> None:
    assert (await refused(gateway, path="/v1/nothing"))[0] == 401
    key = f"Bearer {gateway.api_key}"
    assert await refused(gateway, path="/v1/nothing", Authorization=key) == (404, "not_found")
    assert await refused(gateway, path="/", Authorization=key) == (404, "not_found")


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
