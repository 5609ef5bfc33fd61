"""Commands for operators: ``sluice bootstrap``, ``usage``, ``audit`` and ``stream``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast
from uuid import UUID

import typer

from gateway.commands.database import on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from tenants.store import Store
    from tenants.types import (
        AuditEntry,
        UsageBucket,
        UsageEvent,
        UsageGroup,
    )

streams = typer.Typer(help="List running requests and end them.", no_args_is_help=True)

OptionalTenant = Annotated[
    str | None, typer.Argument(metavar="[TENANT]", help="A tenant's name; by default all.")
]


def _check_names(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """Refuse an unknown name, of several with commas in between, before the database is asked."""
    from gateway.admin.exports import MEDIA_TYPES
    from gateway.errors import SetupError
    from tenants.types import USAGE_BUCKETS, USAGE_GROUPS

    known = {"by": USAGE_GROUPS, "per": USAGE_BUCKETS, "form": tuple(MEDIA_TYPES)}[
        parameter.name or ""
    ]
    for name in filter(None, (text or "").split(",")):
        if name not in known:
            raise SetupError(f"{parameter.opts[0]}: {name!r} is none of {', '.join(known)}")
    return text


@on_store
async def bootstrap(
    store: Store,
    pepper: bytes,
    tenant: Annotated[
        str, typer.Option(help="The key's tenant; created if it does not exist.")
    ] = "admin",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "first admin",
) -> None:
    """Make the first admin key and print it. Works once: that key makes all others."""
    from gateway.admin import provisioning

    print(await provisioning.bootstrap(store, pepper, tenant_name=tenant, name=name))


@on_store
async def usage(
    store: Store,
    tenant: OptionalTenant = None,
    days: Annotated[float, typer.Option(help="Days to look back.", min=0, max=36_500)] = 30,
    by: Annotated[
        str,
        typer.Option(
            callback=_check_names, help="Group by: any of tenant, project, key and model."
        ),
    ] = "tenant,model",
    per: Annotated[
        str, typer.Option(callback=_check_names, help="Period of each row: hour, day or total.")
    ] = "total",
    rows: Annotated[bool, typer.Option("--rows", help="Show the newest requests.")] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", callback=_check_names, help="Write all single requests as csv or jsonl."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Requests that --rows shows.", min=1)] = 50,
) -> None:
    """Show usage: sums, or with --rows the single requests of the ledger."""
    if rows or form is not None:
        await _show_rows(store, tenant, days, form, limit)
        return
    groups = cast("list[UsageGroup]", [name for name in by.split(",") if name])
    now = datetime.now(UTC)
    sums = await store.sum_usage(
        await _id_of(store, tenant),
        (now - timedelta(days=days), now + timedelta(seconds=1)),
        group_by=groups,
        bucket=cast("UsageBucket", per),
    )
    shown = {getattr(row, f"{name}_id") for row in sums for name in groups if name != "model"}
    names = await store.names(shown)
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")
    numbers = tuple(name.replace("_", " ") for name in counts)
    table = Table(*(["from"] if per != "total" else []), *groups, numbers=numbers)
    for row in sums:
        ids = [getattr(row, name if name == "model" else f"{name}_id") for name in groups]
        cells = [value if isinstance(value, str) else names.get(value, str(value)) for value in ids]
        at = [time_of(row.start)] if per != "total" else []
        table.add_row(*at, *cells, *(f"{getattr(row, name):,}" for name in counts))
    table.show()


@on_store
async def audit(
    store: Store,
    tenant: OptionalTenant = None,
    limit: Annotated[int, typer.Option(help="Rows to show, the newest first.", min=1)] = 50,
    search: Annotated[
        str | None, typer.Option(help="A part of who changed it, what was done or the object's id.")
    ] = None,
) -> None:
    """Show who changed what."""
    entries = await store.list_audit(await _id_of(store, tenant), search=search, limit=limit)
    names = await store.names({entry.tenant_id for entry in entries})
    table = Table("time", "actor", "action", "tenant", "object", "changed")
    for entry in entries:
        table.add_row(
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            *(entry.actor, entry.action, names.get(entry.tenant_id, str(entry.tenant_id))),
            *(entry.object_id, _difference(entry)),
        )
    table.show()


@streams.command("list")
@on_store
async def list_streams(store: Store, tenant: OptionalTenant = None) -> None:
    """List the running requests of all workers; without limits, those that run for a second."""
    table = Table("id", "tenant", "key", "model", "state", "prompt", "generated", "since")
    for row in await store.list_running(await _id_of(store, tenant)):
        table.add_row(
            *(str(row.request_id), row.tenant_name, f"{row.key_name} ({row.public_id})"),
            *(row.model, row.state, f"{row.prompt_tokens:,}", f"{row.generated_tokens:,}"),
            f"{row.created_at:%H:%M:%S}",
        )
    table.show()


@streams.command()
@on_store
async def kill(
    store: Store,
    request_id: Annotated[UUID, typer.Argument(help="The id that `sluice stream list` shows.")],
) -> None:
    """End a running request, whichever worker has it; what it generated is charged."""
    from gateway.errors import SetupError

    running = await store.list_running()
    found = next((row for row in running if row.request_id == request_id), None)
    if found is None:
        raise SetupError(f"no request {request_id} runs; `sluice stream list` shows those that do")
    await store.kill_request(found.tenant_id, request_id)
    print(f"Told all workers to end {request_id}.")


async def _id_of(store: Store, tenant: str | None) -> UUID | None:
    return None if tenant is None else (await store.get_tenant(tenant)).id


async def _show_rows(
    store: Store, tenant: str | None, days: float, form: str | None, limit: int
) -> None:
    """Print single requests: a table of the newest, or all in a format, as they are read."""
    from gateway.admin.exports import exported
    from tenants.types import UsageFilter

    now = datetime.now(UTC)
    start, end = now - timedelta(days=days), now + timedelta(seconds=1)
    wanted = UsageFilter(start=start, end=end, tenant_id=await _id_of(store, tenant))
    if form is not None:
        async for lines in exported(store, wanted, form):
            sys.stdout.write(lines)
        return
    rows = await store.list_usage(wanted, limit=limit)
    names = await store.names({one for row in rows for one in _ids(row)})
    columns = ("time", "id", "tenant", "key", "model", "endpoint", "status", "end user")
    numbers = ("prompt tokens", "cached tokens", "completion tokens", "cost micro")
    table = Table(*columns, numbers=numbers)
    for row in rows:
        table.add_row(
            *(f"{row.created_at:%Y-%m-%d %H:%M:%S}", str(row.request_id)),
            *(names.get(one, str(one)) for one in _ids(row)),
            *(row.model, row.endpoint or "", row.status, row.end_user or ""),
            *(f"{row.prompt_tokens:,}", f"{row.cached_tokens:,}", f"{row.completion_tokens:,}"),
            f"{row.cost_micro:,}",
        )
    table.show()


def _ids(row: UsageEvent) -> tuple[UUID, UUID]:
    return row.tenant_id, row.key_id


def _difference(entry: AuditEntry) -> str:
    before, after = entry.before or {}, entry.after or {}
    if not before or not after:
        return ""
    return ", ".join(
        f"{name}: {before.get(name)} → {after.get(name)}"
        for name in after
        if before.get(name) != after.get(name)
    )
