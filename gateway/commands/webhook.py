"""``sluice webhook``: where events are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from gateway.commands.database import on_store
from gateway.commands.tables import Table, time_of

if TYPE_CHECKING:
    from tenants.store import Store

app = typer.Typer(help="Create, list, test, rotate and delete webhooks.", no_args_is_help=True)

WebhookId = Annotated[UUID, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]


@app.command()
@on_store
async def create(
    store: Store,
    pepper: bytes,
    url: Annotated[str, typer.Argument(help="Where events are sent.")],
    tenant: Annotated[
        str | None,
        typer.Option(help="Whose events; by default those of all tenants and of the engines."),
    ] = None,
    event: Annotated[
        list[str] | None, typer.Option(help="A type of events; may be repeated. By default all.")
    ] = None,
) -> None:
    """Create a webhook; print its id, and the secret that its signatures are checked with."""
    from gateway import outbound
    from gateway.admin.webhooks import secret_of
    from gateway.errors import SetupError

    try:
        outbound.check_url(url)
    except ValueError as error:
        raise SetupError(f"the URL {error}") from None
    tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
    made = await store.webhooks.create(tenant_id, url, event or ())
    print(made.id, secret_of(made, pepper))


@app.command("list")
@on_store
async def list_(
    store: Store,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List webhooks."""
    tenant_id = None if tenant is None else (await store.get_tenant(tenant)).id
    found = await store.webhooks.all(tenant_id)
    names = await store.names({one.tenant_id for one in found if one.tenant_id is not None})
    table = Table("webhook", "tenant", "events", "url", "created", "disabled")
    for one in found:
        whose = "all" if one.tenant_id is None else names[one.tenant_id]
        table.add_row(
            *(str(one.id), whose, " ".join(one.events) or "all", one.url),
            *(time_of(one.created_at), time_of(one.disabled_at)),
        )
    table.show()


@app.command()
@on_store
async def deliveries(
    store: Store,
    webhook: WebhookId,
    limit: Annotated[int, typer.Option(min=1, help="The most to list.")] = 20,
) -> None:
    """List what a webhook was sent in the last week, the newest first."""
    table = Table("event", "type", "state", "attempts", "last answer", "created")
    for one in await store.webhooks.deliveries(webhook, limit=limit):
        table.add_row(
            *(f"evt_{one.event_id.hex}", one.type, one.state, str(one.num_attempts)),
            *(one.last_answer or "", time_of(one.created_at)),
        )
    table.show()


@app.command()
@on_store
async def test(store: Store, webhook: WebhookId) -> None:
    """Send a webhook an event, by a running server."""
    event_id = await store.webhooks.test(webhook)
    print(f"evt_{event_id.hex} is sent; `sluice webhook deliveries {webhook}` says how it went.")


@app.command()
@on_store
async def rotate(store: Store, pepper: bytes, webhook: WebhookId) -> None:
    """Print another secret for a webhook. The old one signs too, for a day."""
    from gateway.admin.webhooks import secret_of

    print(secret_of(await store.webhooks.rotate(webhook), pepper))


@app.command()
@on_store
async def enable(store: Store, webhook: WebhookId) -> None:
    """Send events to a webhook again that was disabled."""
    await store.webhooks.update(webhook, disabled=False)
    print(f"Enabled {webhook}.")


@app.command()
@on_store
async def delete(store: Store, webhook: WebhookId) -> None:
    """Delete a webhook, with the events that wait for it."""
    await store.webhooks.delete(webhook)
    print(f"Deleted {webhook}.")
