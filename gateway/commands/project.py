"""``sluice project``: the projects of a tenant, which its keys belong to."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.database import ConfigOption, DataDirOption, with_store

app = typer.Typer(help="Create, list and rename a tenant's projects.", no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command()
def create(
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="The project's name.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a project."""
    from tenants.store import Store
    from tenants.types import Project

    async def work(store: Store) -> Project:
        return await store.create_project((await store.get_tenant(tenant)).id, name)

    project = with_store(config, data_dir, work)
    print(f"Created project {project.name} ({project.id}).")


@app.command("list")
def list_(tenant: TenantName, config: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """List a tenant's projects."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of
    from tenants.store import Store
    from tenants.types import Project

    async def work(store: Store) -> list[Project]:
        return list(await store.list_projects((await store.get_tenant(tenant)).id))

    projects = with_store(config, data_dir, work)
    table = Table("name", "id", "default", "created")
    for project in projects:
        default = "yes" if project.is_default else ""
        table.add_row(project.name, str(project.id), default, time_of(project.created_at))
    show(table)


@app.command()
def rename(
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="The project's name.")],
    new_name: Annotated[str, typer.Argument(help="The new name.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Give a project another name."""
    from tenants.errors import ObjectNotFound
    from tenants.store import Store
    from tenants.types import Project

    async def work(store: Store) -> Project:
        tenant_id = (await store.get_tenant(tenant)).id
        for project in await store.list_projects(tenant_id):
            if project.name == name:
                return await store.rename_project(tenant_id, project.id, new_name)
        raise ObjectNotFound("project", name)

    project = with_store(config, data_dir, work)
    print(f"Renamed {name} to {project.name}.")
