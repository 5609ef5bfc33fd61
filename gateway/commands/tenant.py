"""``sluice tenant``: creates, lists and changes tenants."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.database import on_store
from gateway.commands.limits import limits
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from msgspec import UnsetType

    from tenants.store import Store

app = typer.Typer(help="Create, list, change and limit tenants.", no_args_is_help=True)
app.command()(limits)

TenantName = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command()
@on_store
async def create(
    store: Store,
    name: TenantName,
    weight: Annotated[float, typer.Option(help="Share of the engine, relative to others'.")] = 1.0,
    priority: Annotated[int, typer.Option(help="Priority class; lower goes first.")] = 0,
) -> None:
    """Create a tenant."""
    tenant = await store.create_tenant(name, weight=weight, priority=priority)
    print(
        f"Created tenant {tenant.name} ({tenant.id}). "
        f"`sluice key create {quote(tenant.name)}` makes a key."
    )


@app.command("list")
@on_store
async def list_(
    store: Store,
    search: Annotated[str | None, typer.Option(help="A part of the name.")] = None,
) -> None:
    """List tenants by name."""
    table = Table("name", "id", "weight", "priority", "created", "disabled", "conversation days")
    for tenant in await store.list_tenants(search=search):
        table.add_row(
            *(tenant.name, str(tenant.id), f"{tenant.weight:g}", str(tenant.priority)),
            *(time_of(tenant.created_at), time_of(tenant.disabled_at)),
            "" if tenant.conversation_days is None else str(tenant.conversation_days),
        )
    table.show()


@app.command()
@on_store
async def update(
    store: Store,
    name: TenantName,
    rename: Annotated[str | None, typer.Option(help="New name.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share of the engine.")] = None,
    priority: Annotated[int | None, typer.Option(help="Priority class; lower goes first.")] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Refuse all its keys, or accept them again."),
    ] = None,
    conversation_days: Annotated[
        str | None,
        typer.Option(
            help="Days for which conversations are kept after their last use; 0: none are; "
            "default: as the settings say."
        ),
    ] = None,
) -> None:
    """Change what is given of a tenant. Disabling it ends its running requests."""
    tenant = await store.update_tenant(
        (await store.get_tenant(name)).id,
        name=rename,
        weight=weight,
        priority=priority,
        disabled=disabled,
        conversation_days=_days(conversation_days),
    )
    state = "disabled" if tenant.disabled_at is not None else "enabled"
    print(f"{tenant.name}: weight {tenant.weight:g}, priority {tenant.priority}, {state}.")


def _days(text: str | None) -> int | UnsetType | None:
    from msgspec import UNSET

    from gateway.errors import SetupError

    if text is None or text == "default":
        return UNSET if text is None else None
    if not text.isdecimal():
        raise SetupError(f"--conversation-days: {text!r} is neither a number of days nor default")
    return int(text)


@app.command()
@on_store
async def delete(
    store: Store,
    name: TenantName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a tenant and all that it has stored: conversations, responses, files, batches,
    adapters, limits. Its keys are revoked. The ledger and the audit log stay."""
    tenant = await store.get_tenant(name)
    if not yes:
        typer.confirm(f"Delete {tenant.name} with all that it has stored?", abort=True)
    await store.delete_tenant(tenant.id)
    print(f"Deleted {tenant.name} ({tenant.id}).")
