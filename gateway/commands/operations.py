"""Commands for operators: ``sluice bootstrap``, ``usage``, ``audit`` and ``stream``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast
from uuid import UUID

import typer

from gateway.commands.database import ConfigOption, DataDirOption, opened, with_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tenants.store import Store
    from tenants.types import (
        AuditEntry,
        RunningRequest,
        Tenant,
        UsageBucket,
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
    from gateway import secrets
    from gateway.admin import provisioning

    with opened(config, data_dir) as database:
        pepper = secrets.load(database.secrets_file).key_pepper
        text = with_store(
            database, lambda store: provisioning.bootstrap(store, pepper, tenant, name=name)
        )
    print(text)


def usage(
    tenant: OptionalTenant = None,
    days: Annotated[float, typer.Option(help="Days to look back.", min=0, max=36_500)] = 30,
    by: Annotated[
        str, typer.Option(help="Group by: any of tenant, project, key and model.")
    ] = "tenant,model",
    per: Annotated[str, typer.Option(help="Period of each row: hour, day or total.")] = "total",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show usage, from the ledger's hourly sums."""
    from rich.table import Table

    from gateway.commands.tables import show, time_of
    from tenants.types import USAGE_BUCKETS, USAGE_GROUPS

    groups = cast("list[UsageGroup]", [name for name in by.split(",") if name])
    _check("--by", groups, USAGE_GROUPS)
    _check("--per", [per], USAGE_BUCKETS)
    now = datetime.now(UTC)

    async def work(store: Store) -> tuple[Sequence[UsageSum], dict[UUID, str]]:
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        sums = await store.sum_usage(
            tenant_id,
            now - timedelta(days=days),
            now + timedelta(seconds=1),
            group_by=groups,
            bucket=cast("UsageBucket", per),
        )
        return sums, await _names(store, await _tenants(store, sums, tenant_id))

    with opened(config, data_dir) as database:
        sums, names = with_store(database, work)
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
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show who changed what."""
    from rich.table import Table

    from gateway.commands.tables import show

    async def work(store: Store) -> tuple[Sequence[AuditEntry], dict[UUID, str]]:
        tenants = await store.list_tenants()
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        entries = await store.list_audit(tenant_id, limit=limit)
        return entries, {one.id: one.name for one in tenants}

    with opened(config, data_dir) as database:
        entries, names = with_store(database, work)
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

    async def work(store: Store) -> tuple[Sequence[RunningRequest], dict[UUID, str]]:
        tenants = await store.list_tenants()
        tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
        running = await store.list_running(tenant_id)
        return running, await _names(store, tenants)

    with opened(config, data_dir) as database:
        running, names = with_store(database, work)
    table = Table("id", "tenant", "key", "model", "state", "prompt", "generated", "since")
    for row in running:
        table.add_row(
            *(str(row.request_id), names[row.tenant_id], names.get(row.key_id, str(row.key_id))),
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

    with opened(config, data_dir) as database:
        found = with_store(database, work)
    if not found:
        raise SetupError(f"no request {request_id} runs; `sluice stream list` shows those that do")
    print(f"Told all workers to end {request_id}.")


def _check(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    from gateway.errors import SetupError

    for value in values:
        if value not in known:
            raise SetupError(f"{option}: {value!r} is none of {', '.join(known)}")


async def _tenants(
    store: Store, sums: Iterable[UsageSum], tenant_id: UUID | None
) -> Sequence[Tenant]:
    """The ids of the tenants whose names a table needs."""
    wanted = {row.tenant_id for row in sums} | {tenant_id}
    everybody = {row.project_id or row.key_id for row in sums} != {None} and tenant_id is None
    return [one for one in await store.list_tenants() if everybody or one.id in wanted]


async def _names(store: Store, tenants: Sequence[Tenant]) -> dict[UUID, str]:
    """The names of tenants, projects and keys in a table."""
    names: dict[UUID, str] = {}
    for tenant in tenants:
        names[tenant.id] = tenant.name
        names |= {project.id: project.name for project in await store.list_projects(tenant.id)}
        names |= {
            key.id: f"{key.name} ({key.public_id})" for key in await store.list_keys(tenant.id)
        }
    return names


def _difference(entry: AuditEntry) -> str:
    before, after = entry.before or {}, entry.after or {}
    if not before or not after:
        return ""
    return ", ".join(
        f"{name}: {before.get(name)} → {after.get(name)}"
        for name in after
        if before.get(name) != after.get(name)
    )
