"""Commands for operators: ``sluice bootstrap``, ``usage``, ``audit`` and ``stream``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast
from uuid import UUID

import typer

from gateway.commands.database import ConfigOption, DataDirOption, with_pepper, with_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenants.store import Store
    from tenants.types import (
        AuditEntry,
        RunningRequest,
        UsageBucket,
        UsageEvent,
        UsageGroup,
        UsageSum,
    )

streams = typer.Typer(help="List running requests and end them.", no_args_is_help=True)

OptionalTenant = Annotated[
    str | None, typer.Argument(metavar="[TENANT]", help="A tenant's name; by default all.")
]


def bootstrap(
    tenant: Annotated[
        str, typer.Option(help="The key's tenant; created if it does not exist.")
    ] = "admin",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "first admin",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Make the first admin key and print it. Works once: that key makes all others."""
    from gateway.admin import provisioning

    make = partial(provisioning.bootstrap, tenant_name=tenant, name=name)
    print(with_pepper(config, data_dir, make))


def usage(
    tenant: OptionalTenant = None,
    days: Annotated[float, typer.Option(help="Days to look back.", min=0, max=36_500)] = 30,
    by: Annotated[
        str, typer.Option(help="Group by: any of tenant, project, key and model.")
    ] = "tenant,model",
    per: Annotated[str, typer.Option(help="Period of each row: hour, day or total.")] = "total",
    rows: Annotated[bool, typer.Option("--rows", help="Show the newest requests.")] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", help="Write all single requests as csv or jsonl."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Requests that --rows shows.", min=1)] = 50,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show usage: sums, or with --rows the single requests of the ledger."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of
    from tenants.types import USAGE_BUCKETS, USAGE_GROUPS

    if rows or form is not None:
        _show_rows(tenant, days, form, limit, config, data_dir)
        return
    groups = cast("list[UsageGroup]", [name for name in by.split(",") if name])
    _check("--by", groups, USAGE_GROUPS)
    _check("--per", [per], USAGE_BUCKETS)
    now = datetime.now(UTC)

    async def work(store: Store) -> tuple[Sequence[UsageSum], Mapping[UUID, str]]:
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        sums = await store.sum_usage(
            tenant_id,
            now - timedelta(days=days),
            now + timedelta(seconds=1),
            group_by=groups,
            bucket=cast("UsageBucket", per),
        )
        ids = {getattr(row, f"{name}_id") for row in sums for name in groups if name != "model"}
        return sums, await store.names(ids)

    sums, names = with_store(config, data_dir, work)
    table = Table(*(["from"] if per != "total" else []), *groups)
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")
    for title in counts:
        table.add_column(title.replace("_", " "), justify="right")
    for row in sums:
        ids = [getattr(row, name if name == "model" else f"{name}_id") for name in groups]
        cells = [value if isinstance(value, str) else names.get(value, str(value)) for value in ids]
        at = [time_of(row.start)] if per != "total" else []
        table.add_row(*at, *cells, *(f"{getattr(row, name):,}" for name in counts))
    show(table)


def audit(
    tenant: OptionalTenant = None,
    limit: Annotated[int, typer.Option(help="Rows to show, the newest first.", min=1)] = 50,
    search: Annotated[
        str | None, typer.Option(help="A part of who changed it, what was done or the object's id.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show who changed what."""
    from rich.table import Table

    from gateway.commands.tables import show

    async def work(store: Store) -> tuple[Sequence[AuditEntry], Mapping[UUID, str]]:
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        entries = await store.list_audit(tenant_id, search=search, limit=limit)
        return entries, await store.names({entry.tenant_id for entry in entries})

    entries, names = with_store(config, data_dir, work)
    table = Table("time", "actor", "action", "tenant", "object", "changed")
    for entry in entries:
        table.add_row(
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            *(entry.actor, entry.action, names.get(entry.tenant_id, str(entry.tenant_id))),
            *(entry.object_id, _difference(entry)),
        )
    show(table)


@streams.command("list")
def list_streams(
    tenant: OptionalTenant = None, config: ConfigOption = None, data_dir: DataDirOption = None
) -> None:
    """List the running requests of all workers; without limits, those that run for a second."""
    from rich.table import Table

    from gateway.commands.tables import show

    async def work(store: Store) -> Sequence[RunningRequest]:
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        return await store.list_running(tenant_id)

    running = with_store(config, data_dir, work)
    table = Table("id", "tenant", "key", "model", "state", "prompt", "generated", "since")
    for row in running:
        table.add_row(
            *(str(row.request_id), row.tenant_name, f"{row.key_name} ({row.public_id})"),
            *(row.model, row.state, f"{row.prompt_tokens:,}", f"{row.generated_tokens:,}"),
            f"{row.created_at:%H:%M:%S}",
        )
    show(table)


@streams.command()
def kill(
    request_id: Annotated[UUID, typer.Argument(help="The id that `sluice stream list` shows.")],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """End a running request, whichever worker has it; what it generated is charged."""
    from gateway.errors import SetupError

    async def work(store: Store) -> bool:
        for row in await store.list_running():
            if row.request_id == request_id:
                await store.kill_request(row.tenant_id, request_id)
                return True
        return False

    found = with_store(config, data_dir, work)
    if not found:
        raise SetupError(f"no request {request_id} runs; `sluice stream list` shows those that do")
    print(f"Told all workers to end {request_id}.")


def _check(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    from gateway.errors import SetupError

    for value in values:
        if value not in known:
            raise SetupError(f"{option}: {value!r} is none of {', '.join(known)}")


def _show_rows(
    tenant: str | None,
    days: float,
    form: str | None,
    limit: int,
    config: Path | None,
    data_dir: Path | None,
) -> None:
    """Print single requests: a table of the newest, or all in a format, as they are read."""
    from rich.table import Table

    from gateway.admin.exports import EXPORTS
    from gateway.commands.tables import show
    from tenants.types import UsageFilter

    if form is not None:
        _check("--format", [form], list(EXPORTS))
    now = datetime.now(UTC)
    start, end = now - timedelta(days=days), now + timedelta(seconds=1)

    async def work(store: Store) -> tuple[Sequence[UsageEvent], Mapping[UUID, str]]:
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        wanted = UsageFilter(start=start, end=end, tenant_id=tenant_id)
        if form is None:
            found = await store.list_usage(wanted, limit=limit)
            return found, await store.names({one for row in found for one in _ids(row)})
        async for lines in EXPORTS[form].lines(store, wanted):
            sys.stdout.write(lines)
        return (), {}

    rows, names = with_store(config, data_dir, work)
    if form is not None:
        return
    table = Table("time", "id", "tenant", "key", "model", "status", "end user")
    for title in ("prompt tokens", "cached tokens", "completion tokens", "cost micro"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            *(f"{row.created_at:%Y-%m-%d %H:%M:%S}", str(row.request_id)),
            *(names.get(one, str(one)) for one in _ids(row)),
            *(row.model, row.status, row.end_user or ""),
            *(f"{row.prompt_tokens:,}", f"{row.cached_tokens:,}", f"{row.completion_tokens:,}"),
            f"{row.cost_micro:,}",
        )
    show(table)


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
