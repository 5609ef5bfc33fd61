"""``sluice key``: the API keys of a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import typer

from gateway.commands.database import ConfigOption, DataDirOption, with_pepper, with_store

app = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]
PublicId = Annotated[str, typer.Argument(help="The 12 characters after sk-slc-.")]


@app.command()
def create(
    tenant: TenantName,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="chat (default), responses, usage or admin; may be repeated."),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="The key's project; created if it does not exist.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model the key may use; may be repeated. By default all."),
    ] = None,
    model_alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ALIAS=MODEL", help="A name the key may use for a model; may be repeated."
        ),
    ] = None,
    expires_in_days: Annotated[
        float | None, typer.Option(help="Days until the key expires; by default it never does.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a key and print it. It is shown only this once."""
    from gateway.admin import provisioning

    expires_at = None if expires_in_days is None else _days_from_now(expires_in_days)
    aliases = _aliases(model_alias or ())
    make = partial(
        provisioning.create_key,
        tenant_name=tenant,
        name=name,
        scopes=scope or ["chat"],
        expires_at=expires_at,
        project=project,
        allowed_models=model or (),
        model_aliases=aliases,
    )
    print(with_pepper(config, data_dir, make))


def _days_from_now(days: float) -> datetime:
    from gateway.errors import SetupError

    try:
        return datetime.now(UTC) + timedelta(days=days)
    except (OverflowError, ValueError):
        raise SetupError(f"--expires-in-days: {days:g} is no number of days") from None


def _aliases(given: Iterable[str]) -> dict[str, str]:
    from gateway.errors import SetupError

    pairs = [text.partition("=") for text in given]
    for alias, _, model in pairs:
        if not alias or not model:
            raise SetupError("--model-alias: give ALIAS=MODEL")
    return {alias: model for alias, _, model in pairs}


@app.command("list")
def list_(
    tenant: TenantName,
    search: Annotated[str | None, typer.Option(help="A part of the name or the public id.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """List a tenant's keys, without their secrets, which are not stored."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of
    from tenants.store import Store
    from tenants.types import ApiKey, Project

    async def work(store: Store) -> tuple[Sequence[ApiKey], Sequence[Project]]:
        tenant_id = (await store.get_tenant(tenant)).id
        keys = await store.list_keys(tenant_id, search=search)
        return keys, await store.list_projects(tenant_id)

    keys, projects = with_store(config, data_dir, work)
    names = {project.id: project.name for project in projects}
    table = Table("public id", "name", "scopes", "created", "expires", "revoked", "last used")
    table.add_column("project")
    table.add_column("models")
    for key in keys:
        ends_at = key.revoked_at or key.revoke_at
        dates = (key.created_at, key.expires_at, ends_at, key.last_used_at)
        aliases = (f"{alias}={model}" for alias, model in key.model_aliases.items())
        table.add_row(
            *(key.public_id, key.name, " ".join(key.scopes), *map(time_of, dates)),
            *(names[key.project_id], " ".join((*key.allowed_models, *aliases))),
        )
    show(table)


@app.command()
def rotate(
    public_id: PublicId,
    grace_hours: Annotated[
        float, typer.Option("--grace", help="Hours for which the old key keeps working.")
    ] = 24.0,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Replace a key by a new one with the same rights, and print it. It is shown only this once."""
    from gateway.admin import provisioning
    from gateway.errors import SetupError

    try:
        grace = timedelta(hours=grace_hours)
    except (OverflowError, ValueError):
        raise SetupError(f"--grace: {grace_hours:g} is no number of hours") from None
    replace = partial(provisioning.rotate_key, public_id=public_id, grace=grace)
    print(with_pepper(config, data_dir, replace))


@app.command()
def revoke(
    public_id: PublicId,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a key for good."""
    key = with_store(config, data_dir, lambda store: store.revoke_key(public_id))
    print(f"Revoked {key.public_id} ({key.name}).")
