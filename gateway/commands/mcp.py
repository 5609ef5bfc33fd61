"""``sluice mcp``: the MCP servers whose tools a tenant's responses may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from tenants.store import Store

app = typer.Typer(
    help="Allow, list and deny the MCP servers of a tenant's responses.", no_args_is_help=True
)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]
Url = Annotated[str, typer.Argument(help="The server, as requests name it in server_url.")]


@app.command()
@on_store
async def allow(
    store: Store,
    tenant: TenantName,
    url: Url,
    private: Annotated[
        bool, typer.Option("--private", help="It may be at an address that is not public.")
    ] = False,
) -> None:
    """Let a tenant's responses use a server."""
    found = await store.get_tenant(tenant)
    server = await store.allow_mcp_server(found.id, url, allow_private=private)
    print(f"Responses of {found.name} may use {server.url}.")


@app.command("list")
@on_store
async def list_(store: Store, tenant: TenantName) -> None:
    """List the servers that a tenant's responses may use."""
    table = Table("url", "private", "allowed")
    for server in await store.list_mcp_servers((await store.get_tenant(tenant)).id):
        table.add_row(server.url, "yes" if server.allow_private else "", time_of(server.created_at))
    table.show()


@app.command()
@on_store
async def deny(store: Store, tenant: TenantName, url: Url) -> None:
    """Let a tenant's responses use a server no longer."""
    from gateway.errors import ConfigError
    from tenants.names import check_server_url

    found, url = await store.get_tenant(tenant), check_server_url(url)
    for server in await store.list_mcp_servers(found.id):
        if server.url == url:
            await store.delete_mcp_server(found.id, server.id)
            print(f"Responses of {found.name} may use {url} no longer.")
            return
    raise ConfigError(f"{found.name} may not use {url!r}; `sluice mcp list` shows what it may")
