"""``sluice key``: the API keys of a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gateway.commands.database import on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from tenants.store import Store
    from tenants.types import Scope

app = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]
PublicId = Annotated[str, typer.Argument(help="The 12 characters after sk-slc-.")]


@app.command()
@on_store
async def create(
    store: Store,
    pepper: bytes,
    tenant: TenantName,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="chat (default), responses or usage, of its tenant; billing, view, admin or "
            "owner, of all tenants; may be repeated."
        ),
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
    user: Annotated[
        str | None,
        typer.Option(help="Who will use it: all keys of a user find the same conversations."),
    ] = None,
) -> None:
    """Create a key and print it. It is shown only this once."""
    from gateway.admin import provisioning

    expires_at = None if expires_in_days is None else _days_from_now(expires_in_days)
    text = await provisioning.create_key(
        store,
        pepper,
        tenant,
        project=project,
        name=name,
        scopes=cast("list[Scope]", scope or ["chat"]),  # the store refuses what is no scope
        expires_at=expires_at,
        allowed_models=model or (),
        model_aliases=_aliases(model_alias or ()),
        user_name=user,
    )
    print(text)


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
@on_store
async def list_(
    store: Store,
    tenant: TenantName,
    search: Annotated[str | None, typer.Option(help="A part of the name or the public id.")] = None,
) -> None:
    """List a tenant's keys, without their secrets, which are not stored."""
    tenant_id = (await store.get_tenant(tenant)).id
    names = {project.id: project.name for project in await store.list_projects(tenant_id)}
    columns = ("public id", "name", "scopes", "created", "expires", "revoked", "last used")
    table = Table(*columns, "user", "project", "models")
    for key in await store.list_keys(tenant_id, search=search):
        ends_at = key.revoked_at or key.revoke_at
        dates = (key.created_at, key.expires_at, ends_at, key.last_used_at)
        aliases = (f"{alias}={model}" for alias, model in key.model_aliases.items())
        table.add_row(
            *(key.public_id, key.name, " ".join(key.scopes), *map(time_of, dates)),
            key.user_name or "",
            *(names[key.project_id], " ".join((*key.allowed_models, *aliases))),
        )
    table.show()


@app.command()
@on_store
async def rotate(
    store: Store,
    pepper: bytes,
    public_id: PublicId,
    grace_hours: Annotated[
        float, typer.Option("--grace", help="Hours for which the old key keeps working.")
    ] = 24.0,
) -> None:
    """Replace a key by a new one with the same rights, and print it. It is shown only this once."""
    from gateway.admin import provisioning
    from gateway.errors import SetupError

    try:
        grace = timedelta(hours=grace_hours)
    except (OverflowError, ValueError):
        raise SetupError(f"--grace: {grace_hours:g} is no number of hours") from None
    print(await provisioning.rotate_key(store, pepper, public_id=public_id, grace=grace))


@app.command()
@on_store
async def revoke(store: Store, public_id: PublicId) -> None:
    """Revoke a key for good."""
    key = await store.revoke_key(public_id)
    print(f"Revoked {key.public_id} ({key.name}).")
