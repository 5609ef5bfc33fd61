"""``/v1/conversations``: create, retrieve, change and delete, and their items.

Another tenant's conversation is a 404, as is an unknown one.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.field_checks import check_metadata
from gateway.errors import InvalidRequestError, NotFound, quoted
from gateway.responses.conversations import new_items, not_found
from gateway.responses.items import bare
from gateway.routes.http import json_answer, query_number
from gateway.schemas.conversations import (
    AddItems,
    ConversationObject,
    CreateConversation,
    DeletedConversation,
    UpdateConversation,
)
from gateway.schemas.responses import InputItemList, Item
from gateway.services import Services
from tenants.conversations import Conversation

MAX_LIMIT = 100


async def create(services: Services, request: Request, body: CreateConversation) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    items = new_items(body.items or ())
    made = await services.conversations.create(tenant_id, _encoded(body.metadata), items)
    return _answer(made)


async def retrieve(services: Services, request: Request) -> Response:
    tenant_id = context.principal_of(request.scope).tenant.id
    return _answer(await services.conversations.find(tenant_id, _id(request)))


async def update(services: Services, request: Request, body: UpdateConversation) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    changed = await services.conversations.store.update(tenant_id, name, _encoded(body.metadata))
    if changed is None:
        raise not_found(name)
    return _answer(changed)


async def delete(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    if not await services.conversations.store.delete(tenant_id, name):
        raise not_found(name)
    return json_answer(DeletedConversation(id=name))


async def add_items(services: Services, request: Request, body: AddItems) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    await services.conversations.find(tenant_id, name)
    items = new_items(body.items)
    await services.conversations.add(tenant_id, name, items)
    return json_answer(_page([*map(_raw, items)], has_more=False))


async def list_items(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    await services.conversations.find(tenant_id, name)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("Must be asc or desc.", param="order")
    limit = query_number(request, "limit", 20, most=MAX_LIMIT)
    assert limit is not None
    after, store = request.query_params.get("after"), services.conversations.store
    if after is not None and await store.find_item(tenant_id, name, after) is None:
        raise InvalidRequestError("There is no such item among them.", param="after")
    found = await store.items(
        tenant_id, name, limit=limit + 1, after=after, is_descending=order == "desc"
    )
    rows = [msgspec.Raw(body) for body in found[:limit]]
    return json_answer(_page(rows, has_more=len(found) > limit))


async def retrieve_item(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    await services.conversations.find(tenant_id, name)
    item_id: str = request.path_params["item_id"]
    found = await services.conversations.store.find_item(tenant_id, name, item_id)
    if found is None:
        raise _no_item(item_id)
    return Response(found, media_type="application/json")


async def delete_item(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    await services.conversations.find(tenant_id, name)
    item_id: str = request.path_params["item_id"]
    changed = await services.conversations.store.delete_item(tenant_id, name, item_id)
    if changed is None:
        raise _no_item(item_id)
    return _answer(changed)


def _id(request: Request) -> str:
    name: str = request.path_params["conversation_id"]
    return name


def _encoded(metadata: dict[str, str] | None) -> bytes:
    check_metadata(metadata)
    return msgspec.json.encode(metadata or {})


def _answer(conversation: Conversation) -> Response:
    return json_answer(
        ConversationObject(
            id=conversation.id,
            created_at=int(conversation.created_at.timestamp()),
            metadata=msgspec.json.decode(conversation.metadata),
        )
    )


def _raw(item: Item) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(bare(item)))


class _Named(msgspec.Struct):
    id: str


_named = msgspec.json.Decoder(_Named)


def _page(rows: list[msgspec.Raw], *, has_more: bool) -> InputItemList:
    return InputItemList(
        data=rows,
        first_id=_named.decode(rows[0]).id if rows else None,
        last_id=_named.decode(rows[-1]).id if rows else None,
        has_more=has_more,
    )


def _no_item(item_id: str) -> NotFound:
    return NotFound(f"There is no item {quoted(item_id)}.")
