"""``sluice tenant``: who may use the server."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.database import ConfigOption, DataDirOption, opened, with_store

app = typer.Typer(help="Create and list tenants.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    weight: Annotated[float, typer.Option(help="Share of the engine, relative to others'.")] = 1.0,
    priority: Annotated[int, typer.Option(help="Priority class; lower goes first.")] = 0,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a tenant."""
    with opened(config, data_dir) as database:
        tenant = with_store(
            database, lambda store: store.create_tenant(name, weight=weight, priority=priority)
        )
    print(f"Created tenant {tenant.name} ({tenant.id}). `sluice key create` makes keys.")


@app.command("list")
def list_(config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """List all tenants."""
    from rich.table import Table

    from gateway.commands.tables import show

    with opened(config, data_dir) as database:
        tenants = with_store(database, lambda store: store.list_tenants())
    table = Table("name", "id", "weight", "priority", "created")
    for tenant in tenants:
        created = f"{tenant.created_at:%Y-%m-%d %H:%M}"
        table.add_row(
            tenant.name, str(tenant.id), f"{tenant.weight:g}", str(tenant.priority), created
        )
    show(table)
