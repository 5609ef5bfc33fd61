"""Stored chat completions: list, retrieve, change and delete, and what was asked.

Another tenant's chat is a 404, as is an unknown one.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.field_checks import check_metadata
from gateway.errors import NotFound, quoted
from gateway.routes.http import json_answer
from gateway.routes.paging import id_listing, id_page, nothing_before, of_all
from gateway.schemas.stored_chats import DeletedChat, StoredList, UpdateChat
from gateway.services import Services
from tenants.chats import StoredChat


async def list_all(services: Services, request: Request) -> Response:
    tenant_id, params = context.principal_of(request.scope).tenant.id, request.query_params
    metadata = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    check_metadata(metadata)
    page, store = id_page(request, order="asc"), services.chats.store
    if page.after is not None and await store.find(tenant_id, page.after) is None:
        raise nothing_before()
    found = await store.list(
        tenant_id,
        model=params.get("model"),
        metadata=metadata,
        after=page.after,
        limit=page.fetched,
        is_descending=page.is_descending,
    )
    return id_listing(StoredList, found, page, _shown, itemgetter("id"))


async def retrieve(services: Services, request: Request) -> Response:
    return json_answer(_shown(await _find(services, request)))


async def messages(services: Services, request: Request) -> Response:
    chat = await _find(services, request)
    page, asked = id_page(request, order="asc"), msgspec.json.decode(chat.messages)
    said = [_message(chat.id, place, message) for place, message in enumerate(asked)]
    return id_listing(StoredList, of_all(said, page), page, dict, itemgetter("id"))


async def update(services: Services, request: Request, body: UpdateChat) -> Response:
    check_metadata(body.metadata)
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    changed = await services.chats.store.update(tenant_id, name, body.metadata or {})
    if changed is None:
        raise _not_found(name)
    return json_answer(_shown(changed))


async def delete(services: Services, request: Request) -> Response:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    if not await services.chats.store.delete(tenant_id, name):
        raise _not_found(name)
    return json_answer(DeletedChat(id=name))


async def _find(services: Services, request: Request) -> StoredChat:
    tenant_id, name = context.principal_of(request.scope).tenant.id, _id(request)
    found = await services.chats.store.find(tenant_id, name)
    if found is None:
        raise _not_found(name)
    return found


def _id(request: Request) -> str:
    name: str = request.path_params["completion_id"]
    return name


def _not_found(name: str) -> NotFound:
    return NotFound(f"There is no stored chat completion {quoted(name)}.")


def _shown(chat: StoredChat) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.json.decode(chat.body)
    return whole | {"metadata": chat.metadata}


def _message(chat_id: str, place: int, message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if isinstance(parts, list):
        message = message | {"content": None, "content_parts": parts}
    return {"id": f"{chat_id}-{place}", "content": None, **message}
