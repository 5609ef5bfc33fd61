"""``sluice tenant``: creates, lists and changes tenants."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from gateway.commands.database import ConfigOption, DataDirOption, with_store
from gateway.commands.limits import limits

app = typer.Typer(help="Create, list, change and limit tenants.", no_args_is_help=True)
app.command()(limits)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command()
def create(
    name: TenantName,
    weight: Annotated[float, typer.Option(help="Share of the engine, relative to others'.")] = 1.0,
    priority: Annotated[int, typer.Option(help="Priority class; lower goes first.")] = 0,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a tenant."""
    tenant = with_store(
        config, data_dir, lambda store: store.create_tenant(name, weight=weight, priority=priority)
    )
    print(
        f"Created tenant {tenant.name} ({tenant.id}). "
        f"`sluice key create {quote(tenant.name)}` makes a key."
    )


@app.command("list")
def list_(
    search: Annotated[str | None, typer.Option(help="A part of the name.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """List tenants by name."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of

    tenants = with_store(config, data_dir, lambda store: store.list_tenants(search=search))
    table = Table("name", "id", "weight", "priority", "created", "disabled")
    for tenant in tenants:
        table.add_row(
            *(tenant.name, str(tenant.id), f"{tenant.weight:g}", str(tenant.priority)),
            *(time_of(tenant.created_at), time_of(tenant.disabled_at)),
        )
    show(table)


@app.command()
def update(
    name: TenantName,
    rename: Annotated[str | None, typer.Option(help="New name.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share of the engine.")] = None,
    priority: Annotated[int | None, typer.Option(help="Priority class; lower goes first.")] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Refuse all its keys, or accept them again."),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Change what is given of a tenant. Disabling it ends its running requests."""
    from tenants.store import Store
    from tenants.types import Tenant

    async def work(store: Store) -> Tenant:
        tenant = await store.get_tenant(name)
        return await store.update_tenant(
            tenant.id, name=rename, weight=weight, priority=priority, disabled=disabled
        )

    tenant = with_store(config, data_dir, work)
    state = "disabled" if tenant.disabled_at is not None else "enabled"
    print(f"{tenant.name}: weight {tenant.weight:g}, priority {tenant.priority}, {state}.")
