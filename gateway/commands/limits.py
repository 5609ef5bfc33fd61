"""``sluice tenant limits``: shows the limits of a tenant's scopes, and changes those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import OptionInfo

from gateway.commands.database import on_store
from gateway.commands.tables import Table

if TYPE_CHECKING:
    from tenants.limits import Limits, ScopeKind
    from tenants.store import Store
    from tenants.types import Tenant

COLUMNS = (
    ("requests_per_minute", "requests/min"),
    ("tokens_per_minute", "tokens/min"),
    ("max_concurrent", "concurrent"),
    ("max_queued", "queued"),
    ("monthly_tokens", "tokens/month"),
    ("monthly_cost_micro", "cost/month (micro)"),
    ("priority", "priority"),
    ("weight", "weight"),
    ("max_cached_blocks", "cached blocks"),
)
"""Fields of ``tenants.limits.Limits``, and their names in the table."""
NONE = "none"


def _limit(meaning: str) -> OptionInfo:
    option: OptionInfo = typer.Option(metavar=f"N|{NONE}", help=meaning)
    return option


Text = str | None


@on_store
async def limits(
    store: Store,
    tenant: Annotated[str, typer.Argument(help="The tenant's name.")],
    project: Annotated[Text, typer.Option(help="The limits of this project.")] = None,
    key: Annotated[Text, typer.Option(help="The limits of the key with this public id.")] = None,
    requests_per_minute: Annotated[Text, _limit("Requests started per minute.")] = None,
    tokens_per_minute: Annotated[Text, _limit("Prompt and answer tokens per minute.")] = None,
    max_concurrent: Annotated[Text, _limit("Requests running at once.")] = None,
    max_queued: Annotated[
        Text, _limit("Requests that may wait until they can run; by default none.")
    ] = None,
    monthly_tokens: Annotated[Text, _limit("Tokens per calendar month (UTC).")] = None,
    monthly_cost_micro: Annotated[
        Text, _limit("Cost per calendar month, in millionths of the prices' currency.")
    ] = None,
    priority: Annotated[Text, _limit("Priority class; lower goes first.")] = None,
    weight: Annotated[Text, _limit("Share of a busy engine, relative to others'.")] = None,
    max_cached_blocks: Annotated[Text, _limit("Blocks left in the prefix cache.")] = None,
) -> None:
    """Show the limits of a tenant and its projects and keys, or change those that are given.

    The tenant's own are changed, unless a project or key is named. ``none`` removes a limit.
    """
    from gateway.errors import ConfigError

    if project is not None and key is not None:
        raise ConfigError("--project and --key name two scopes; give one of them")
    given = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "max_concurrent": max_concurrent,
        "max_queued": max_queued,
        "monthly_tokens": monthly_tokens,
        "monthly_cost_micro": monthly_cost_micro,
        "priority": priority,
        "weight": weight,
        "max_cached_blocks": max_cached_blocks,
    }
    changes = {name: _number(name, text) for name, text in given.items() if text is not None}
    found = await store.get_tenant(tenant)
    if changes:
        await _change(store, found, project, key, changes)
    _show(await _rows(store, found))


def _number(name: str, text: str) -> int | float | None:
    from gateway.errors import ConfigError

    if text == NONE:
        return None
    try:
        return float(text) if name == "weight" else int(text)
    except ValueError:
        option = "--" + name.replace("_", "-")
        raise ConfigError(f"{option}: {text!r} is neither a number nor {NONE}") from None


async def _change(
    store: Store,
    tenant: Tenant,
    project: str | None,
    key: str | None,
    changes: dict[str, int | float | None],
) -> None:
    import msgspec

    from tenants.errors import ObjectNotFound
    from tenants.limits import Limits

    kind: ScopeKind = "tenant"
    scope_id = tenant.id
    if project is not None:
        kind = "project"
        projects = await store.list_projects(tenant.id, search=project)
        named = [one.id for one in projects if one.name == project]
        if not named:
            raise ObjectNotFound("project", project)
        scope_id = named[0]
    elif key is not None:
        kind = "key"
        keys = await store.list_keys(tenant.id, search=key)
        named = [one.id for one in keys if one.public_id == key]
        if not named:
            raise ObjectNotFound("key", key)
        scope_id = named[0]
    policies = await store.list_limits(tenant.id)
    now = next((one.limits for one in policies if one.scope_id == scope_id), Limits())
    await store.put_limits(tenant.id, kind, scope_id, msgspec.structs.replace(now, **changes))


async def _rows(store: Store, tenant: Tenant) -> list[tuple[str, str, Limits]]:
    names = {tenant.id: tenant.name}
    names |= {project.id: project.name for project in await store.list_projects(tenant.id)}
    names |= {key.id: key.public_id for key in await store.list_keys(tenant.id)}
    policies = await store.list_limits(tenant.id)
    return [(policy.scope_kind, names[policy.scope_id], policy.limits) for policy in policies]


def _show(rows: list[tuple[str, str, Limits]]) -> None:
    table = Table("scope", "name", numbers=tuple(title for _, title in COLUMNS))
    for kind, name, found in rows:
        values = (getattr(found, field) for field, _ in COLUMNS)
        table.add_row(kind, name, *("" if value is None else f"{value:,}" for value in values))
    table.show()
