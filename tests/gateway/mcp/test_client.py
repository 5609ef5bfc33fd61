"""Exchanges with real servers, and with hostile ones."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.mcp import client
from gateway.mcp.exchange import CallFailed, Exchange, Result
from tests.gateway.mcp.servers import Hostile, Weather, on_a_port

pytestmark = pytest.mark.asyncio


def exchange(url: str, **fields: Any) -> Exchange:
    usual: dict[str, Any] = {
        "networks": ("127.0.0.0/8",),
        "headers": {},
        "timeout_s": 10.0,
        "max_bytes": 2**20,
    }
    return Exchange(url=url, **usual | fields)


@pytest_asyncio.fixture
async def hostile() -> AsyncIterator[tuple[Hostile, str]]:
    server = Hostile()
    async with on_a_port(server.app()) as url:
        yield server, url


async def test_tools_are_listed_and_called() -> None:
    weather = Weather()
    async with on_a_port(weather.app()) as url:
        at = exchange(f"{url}/mcp")
        tools = {tool.name: tool for tool in await client.list_tools(at)}
        assert set(tools) == {"get_weather", "fail", "wait", "long"}
        assert tools["get_weather"].description == "The weather in a city."
        assert tools["get_weather"].input_schema["required"] == ["city"]
        assert await client.call_tool(at, "get_weather", {"city": "Oslo"}) == Result(
            text="It is 7 degrees in Oslo."
        )
        failed = await client.call_tool(at, "fail", {"city": "Oslo"})
        assert failed.is_error
        assert failed.text.startswith("Error executing tool fail")
        with pytest.raises(CallFailed, match=r"sent more than 1048576 bytes"):
            await client.call_tool(at, "long", {"city": "Oslo"})
        slow = exchange(f"{url}/mcp", timeout_s=0.5)
        with pytest.raises(CallFailed, match=r"No answer within 0\.5 s") as caught:
            await client.call_tool(slow, "wait", {"city": "Oslo"})
        assert caught.value.code == 504
    assert weather.asked == ["Oslo"]
    assert weather.num_cancelled == 1  # it was told that nobody waits


async def test_a_private_address_is_asked_only_if_it_is_allowed(
    hostile: tuple[Hostile, str],
) -> None:
    server, url = hostile
    for host in ("127.0.0.1", "localhost"):
        at = exchange(f"{url.replace('127.0.0.1', host)}/page", networks=())
        with pytest.raises(CallFailed, match="not a public address"):
            await client.list_tools(at)
    assert server.paths == []


async def test_a_name_that_means_another_address_later_is_asked_at_the_checked_one(
    hostile: tuple[Hostile, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns a name may let it lead to a public address when it is checked, and then to this
    machine: the connection must not look it up again."""
    server, url = hostile
    port = url.rpartition(":")[2]
    connected: list[object] = []
    loop = asyncio.get_running_loop()

    async def resolved(host: str, *_: object, **__: object) -> list[Any]:
        connected.append(host)
        address = "93.184.215.14" if len(connected) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))]

    monkeypatch.setattr(loop, "getaddrinfo", resolved, raising=False)
    with pytest.raises(CallFailed):
        await client.list_tools(
            exchange(f"http://rebind.example:{port}/page", networks=(), timeout_s=0.5)
        )
    assert server.paths == []


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/mcp", "//evil.example/"],
)
async def test_redirects_to_other_servers_are_not_followed(
    hostile: tuple[Hostile, str], location: str
) -> None:
    server, url = hostile
    server.location = location
    with pytest.raises(CallFailed, match="not followed"):
        await client.list_tools(exchange(f"{url}/redirect"))


async def test_what_never_ends_is_cut_short(hostile: tuple[Hostile, str]) -> None:
    server, url = hostile
    began = time.monotonic()
    with pytest.raises(CallFailed, match="sent more than 1048576 bytes"):
        await client.list_tools(exchange(f"{url}/endless"))
    with pytest.raises(CallFailed, match="No answer within"):
        await client.list_tools(exchange(f"{url}/silent", timeout_s=0.3))
    assert time.monotonic() - began < 5
    assert server.num_sent < 200


async def test_what_would_hold_the_event_loop_is_not_read(hostile: tuple[Hostile, str]) -> None:
    _, url = hostile
    with pytest.raises(CallFailed, match=r"too much to read.* 8192 arrays and objects"):
        await client.list_tools(exchange(f"{url}/many"))


async def test_what_is_no_mcp_server_is_said_to_be_none(hostile: tuple[Hostile, str]) -> None:
    _, url = hostile
    for path in ("/page", "/nothing"):
        with pytest.raises(CallFailed):
            await client.list_tools(exchange(url + path))
    with pytest.raises(CallFailed):
        await client.list_tools(exchange("http://127.0.0.1:9/mcp"))
    with pytest.raises(CallFailed, match=r"nothing\.invalid"):
        await client.list_tools(exchange("http://nothing.invalid/mcp"))
