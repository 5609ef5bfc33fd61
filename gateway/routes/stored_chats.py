"""Stored chat completions: list, retrieve, change and delete, and what was asked.

Another tenant's chat is a 404, as is an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.admission.field_checks import check_metadata
from gateway.errors import InvalidRequestError, NotFound, quoted
from gateway.routes.http import json_answer, query_number
from gateway.schemas.stored_chats import DeletedChat, StoredList, UpdateChat
from gateway.services import Services
from tenants.chats import StoredChat

MAX_LIMIT = 100


async def list_all(services: Services, request: Request) -> Response:
    tenant_id, params = context.principal_of(request.scope).tenant.id, request.query_params
    metadata = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    check_metadata(metadata)
    after, limit, is_descending = _page(request)
    store = services.chats.store
    if after is not None and await store.find(tenant_id, after) is None:
        raise InvalidRequestError("There is no such completion among them.", param="after")
    found = await store.list(
        tenant_id,
        model=params.get("model"),
        metadata=metadata,
        after=after,
        limit=limit + 1,
        is_descending=is_descending,
    )
    return _listing([_shown(chat) for chat in found], limit)


async def retrieve(services: Services, request: Request) -> Response:
    return json_answer(_shown(await _find(services, request)))


async def messages(services: Services, request: Request) -> Response:
    chat = await _find(services, request)
    after, limit, is_descending = _page(request)
    asked = msgspec.json.decode(chat.messages)
    found = [_message(chat.id, place, message) for place, message in enumerate(asked)]
    if is_descending:
        found.reverse()
    if after is not None:
        ids = [message["id"] for message in found]
        if after not in ids:
            raise InvalidRequestError("There is no such message among them.", param="after")
        found = found[ids.index(after) + 1 :]
    return _listing(found[: limit + 1], limit)


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


def _page(request: Request) -> tuple[str | None, int, bool]:
    """``after``, ``limit``, and whether the order is ``desc``."""
    order = request.query_params.get("order", "asc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("Must be asc or desc.", param="order")
    limit = query_number(request, "limit", 20, most=MAX_LIMIT)
    assert limit is not None
    return request.query_params.get("after"), limit, order == "desc"


def _shown(chat: StoredChat) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.json.decode(chat.body)
    return whole | {"metadata": chat.metadata}


def _message(chat_id: str, place: int, message: dict[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if isinstance(parts, list):
        message = message | {"content": None, "content_parts": parts}
    return {"id": f"{chat_id}-{place}", "content": None, **message}


def _listing(found: Sequence[dict[str, Any]], limit: int) -> Response:
    shown = list(found[:limit])
    return json_answer(
        StoredList(
            data=shown,
            first_id=shown[0]["id"] if shown else None,
            last_id=shown[-1]["id"] if shown else None,
            has_more=len(found) > limit,
        )
    )
