"""``sluice project``: the projects of a tenant, which its keys belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from tenants.store import Store

app = typer.Typer(help="Create, list and rename a tenant's projects.", no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command()
@on_store
async def create(
    store: Store,
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="The project's name.")],
) -> None:
    """Create a project."""
    project = await store.create_project((await store.get_tenant(tenant)).id, name)
    print(f"Created project {project.name} ({project.id}).")


@app.command("list")
@on_store
async def list_(store: Store, tenant: TenantName) -> None:
    """List a tenant's projects."""
    table = Table("name", "id", "default", "created")
    for project in await store.list_projects((await store.get_tenant(tenant)).id):
        default = "yes" if project.is_default else ""
        table.add_row(project.name, str(project.id), default, time_of(project.created_at))
    table.show()


@app.command()
@on_store
async def rename(
    store: Store,
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="The project's name.")],
    new_name: Annotated[str, typer.Argument(help="The new name.")],
) -> None:
    """Give a project another name."""
    from tenants.errors import ObjectNotFound

    tenant_id = (await store.get_tenant(tenant)).id
    projects = await store.list_projects(tenant_id)
    found = next((project for project in projects if project.name == name), None)
    if found is None:
        raise ObjectNotFound("project", name)
    project = await store.rename_project(tenant_id, found.id, new_name)
    print(f"Renamed {name} to {project.name}.")
