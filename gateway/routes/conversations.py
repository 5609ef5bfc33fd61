"""``/v1/conversations``: create, retrieve, change and delete, and their items.

Another tenant's conversation is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.field_checks import check_metadata
from gateway.errors import NotFound, quoted
from gateway.responses.conversations import new_items, not_found
from gateway.responses.items import bare
from gateway.routes.http import json_answer
from gateway.routes.paging import IdPage, id_listing, id_page, nothing_before, search_of
from gateway.schemas.conversations import (
    AddItems,
    ConversationList,
    ConversationObject,
    CreateConversation,
    DeletedConversation,
    UpdateConversation,
)
from gateway.schemas.responses import InputItemList
from gateway.services import Services
from tenants.conversations import Conversation


async def create(services: Services, request: Request, body: CreateConversation) -> Response:
    principal = context.principal_of(request.scope)
    services.conversations.check_kept(principal.tenant)
    key, items = principal.key, new_items(body.items or ())
    return _answer(await services.conversations.create(key, _encoded(body.metadata), items))


async def list_all(services: Services, request: Request) -> Response:
    key, store = context.principal_of(request.scope).key, services.conversations.store
    page, search = id_page(request), search_of(request)
    if page.after is not None and await store.find(key.tenant_id, page.after) is None:
        raise nothing_before()
    found = await store.list(
        key.tenant_id, key.id, search=search, after=page.after, limit=page.fetched
    )
    return id_listing(ConversationList, found, page, _shown, attrgetter("id"))


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
    tenant, name = context.principal_of(request.scope).tenant, _id(request)
    tenant_id = tenant.id
    services.conversations.check_kept(tenant)
    await services.conversations.find(tenant_id, name)
    items = new_items(body.items)
    await services.conversations.add(tenant_id, name, items)
    added = [msgspec.json.encode(bare(item)) for item in items]
    return _listing(added, IdPage(None, len(added), is_descending=False))


async def list_items(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    await services.conversations.find(tenant_id, name)
    page, store = id_page(request), services.conversations.store
    if page.after is not None and await store.find_item(tenant_id, name, page.after) is None:
        raise nothing_before()
    found = await store.items(
        tenant_id,
        name,
        limit=page.fetched,
        after=page.after,
        is_descending=page.is_descending,
    )
    return _listing(found, page)


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
    return json_answer(_shown(conversation))


def _shown(conversation: Conversation) -> ConversationObject:
    metadata = msgspec.json.decode(conversation.metadata)
    return ConversationObject.of(conversation, metadata=metadata)


class _Named(msgspec.Struct):
    id: str


_named = msgspec.json.Decoder(_Named)


def _listing(bodies: Sequence[bytes], page: IdPage) -> Response:
    return id_listing(InputItemList, bodies, page, msgspec.Raw, lambda raw: _named.decode(raw).id)


def _no_item(item_id: str) -> NotFound:
    return NotFound(f"There is no item {quoted(item_id)}.")
