"""The MCP servers that tenants may use: one contract, two stores."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tenants.directory import MAX_MCP_SERVERS
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.store import Store

pytestmark = pytest.mark.asyncio


async def test_servers_are_a_tenants_own(store: Store) -> None:
    one, two = await store.create_tenant("one"), await store.create_tenant("two")
    made = await store.allow_mcp_server(one.id, "HTTPS://Example.com:443/mcp/")
    assert (made.url, made.allow_private) == ("https://example.com/mcp", False)
    again = await store.allow_mcp_server(one.id, "https://example.com/mcp", allow_private=True)
    assert (again.id, again.allow_private) == (made.id, True)
    other = await store.allow_mcp_server(one.id, "http://[::1]:8000/mcp?team=a")
    assert await store.list_mcp_servers(one.id) == [other, again]
    assert await store.list_mcp_servers(two.id) == await store.list_mcp_servers(uuid4()) == []
    with pytest.raises(ObjectNotFound, match=str(other.id)):
        await store.delete_mcp_server(two.id, other.id)
    assert await store.delete_mcp_server(one.id, other.id) == other
    with pytest.raises(ObjectNotFound, match="MCP server"):
        await store.delete_mcp_server(one.id, other.id)
    with pytest.raises(ObjectNotFound, match="tenant"):
        await store.allow_mcp_server(uuid4(), "https://example.com/mcp")
    entries = await store.list_audit(one.id)
    actions = [entry.action for entry in entries if entry.action.startswith("mcp_server")]
    assert actions == [
        "mcp_server.delete",
        "mcp_server.create",
        "mcp_server.update",
        "mcp_server.create",
    ]


async def test_only_urls_are_taken_and_not_too_many(store: Store) -> None:
    tenant = await store.create_tenant("one")
    for url in (
        *("", "x", "ftp://a/b", "https://", "https://u:p@a/b", "https://a/#b", "https://a/b c"),
        *("https://a:99999/", "https://a/\n", "https://ä.example/", "https://a/" + "b" * 2048),
    ):
        with pytest.raises(InvalidValue, match="url"):
            await store.allow_mcp_server(tenant.id, url)
    for number in range(MAX_MCP_SERVERS):
        await store.allow_mcp_server(tenant.id, f"https://example.com/{number}")
    with pytest.raises(InvalidValue, match="at most 100"):
        await store.allow_mcp_server(tenant.id, "https://example.com/more")
    await store.allow_mcp_server(tenant.id, "https://example.com/0", allow_private=True)
