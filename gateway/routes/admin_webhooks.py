"""``/admin/v1/webhooks``: where events are sent, of tenants and of the deployment."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway import outbound
from gateway.admin.webhooks import secret_of
from gateway.errors import InvalidRequestError
from gateway.routes.http import id_of, parse_id, query_tenant, secret_answer
from gateway.routes.paging import listing, listing_of_all, page_of
from gateway.schemas.admin import (
    CreateWebhook,
    DeliveryObject,
    RotateKey,
    UpdateWebhook,
    WebhookObject,
    WebhookTest,
)
from gateway.services import Services
from tenants.errors import ObjectNotFound


async def create(services: Services, request: Request, body: CreateWebhook) -> Response:
    tenant_id = None if body.tenant_id is None else parse_id(body.tenant_id)
    if body.tenant_id is not None and tenant_id is None:
        raise ObjectNotFound("tenant", body.tenant_id)
    made = await services.store.webhooks.create(tenant_id, _checked(body.url), body.events)
    secret = secret_of(made, services.secrets.key_pepper)
    return secret_answer(WebhookObject.of(made, secret=secret), 201)


async def list_all(services: Services, request: Request) -> Response:
    tenant_id = await query_tenant(request, services.store)
    return listing_of_all(
        await services.store.webhooks.all(tenant_id),
        page_of(request, tuple[datetime, UUID]),
        lambda webhook: (webhook.created_at, webhook.id),
        WebhookObject.of,
        lambda webhook: webhook.url,
    )


async def update(services: Services, request: Request, body: UpdateWebhook) -> Response:
    changed = await services.store.webhooks.update(
        id_of(request, "webhook_id"),
        url=None if body.url is None else _checked(body.url),
        events=body.events,
        disabled=body.disabled,
    )
    return secret_answer(WebhookObject.of(changed))


async def delete(services: Services, request: Request) -> Response:
    await services.store.webhooks.delete(id_of(request, "webhook_id"))
    return Response(status_code=204)


async def rotate(services: Services, request: Request, body: RotateKey) -> Response:
    if not 0 <= body.grace_seconds <= 366 * 86400:
        raise InvalidRequestError("Must be 0 seconds to 366 days.", param="grace_seconds")
    changed = await services.store.webhooks.rotate(
        id_of(request, "webhook_id"), timedelta(seconds=body.grace_seconds)
    )
    secret = secret_of(changed, services.secrets.key_pepper)
    return secret_answer(WebhookObject.of(changed, secret=secret))


async def test(services: Services, request: Request) -> Response:
    event_id = await services.store.webhooks.test(id_of(request, "webhook_id"))
    return secret_answer(WebhookTest(event_id=f"evt_{event_id.hex}"), 202)


async def deliveries(services: Services, request: Request) -> Response:
    page = page_of(request, tuple[datetime, UUID])
    found = await services.store.webhooks.deliveries(
        id_of(request, "webhook_id"), after=page.after, limit=page.fetched
    )
    return listing(
        found,
        page,
        lambda one: (one.created_at, one.event_id),
        lambda one: DeliveryObject.of(one, event_id=f"evt_{one.event_id.hex}"),
    )


def _checked(url: str) -> str:
    try:
        return outbound.check_url(url)
    except ValueError as error:
        raise InvalidRequestError(f"It {error}.", param="url") from None
