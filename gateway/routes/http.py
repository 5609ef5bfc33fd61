"""What handlers share: reading a request's parameters, and answering with JSON."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import context
from gateway.errors import InvalidRequestError, NotFound, UnsupportedMediaType, quoted
from gateway.transport.disconnect import until_disconnect
from tenants.errors import ObjectNotFound
from tenants.store import Store

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of what is done for a client. Raises ``ClientDisconnect`` once it has left."""
    return await until_disconnect(request.receive, work, context.of(request.scope).disconnect)


def json_answer(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def secret_answer(value: Any, status: int = 200) -> Response:
    """A JSON answer that no cache may keep: it may hold a key."""
    return Response(
        msgspec.json.encode(value),
        status,
        {"cache-control": "no-store"},
        media_type="application/json",
    )


def check_media_type(request: Request) -> None:
    """Raise ``UnsupportedMediaType`` unless the body is JSON. A body without a type is taken for
    JSON.

    Compressed bodies are refused, because limits are checked before a body is decompressed.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0]
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "Send the body as JSON, with the header content-type: application/json."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(
            "Send the body as it is, without the header content-encoding.",
            param="content-encoding",
        )


def id_of(request: Request, name: str) -> UUID:
    """An id in the path. Raises ``NotFound`` for what cannot be one."""
    found = parse_id(request.path_params[name])
    if found is None:
        what = name.removesuffix("_id")
        raise NotFound(f"There is no {what} {quoted(request.path_params[name])}.", param=name)
    return found


def query_id(request: Request, name: str) -> UUID | None:
    """An id in the query, if given. Raises ``InvalidRequestError``."""
    text = request.query_params.get(name)
    if text is None:
        return None
    found = parse_id(text)
    if found is None:
        raise InvalidRequestError(f"Must be an id, is {quoted(text)}.", param=name)
    return found


async def query_tenant(request: Request, store: Store) -> UUID | None:
    """``tenant_id`` in the query, if given. Raises ``NotFound`` where there is no such tenant."""
    tenant_id = query_id(request, "tenant_id")
    if tenant_id is not None:
        try:
            await store.get_tenant(tenant_id)
        except ObjectNotFound as exc:
            raise NotFound(str(exc), param="tenant_id") from None
    return tenant_id


def query_number(request: Request, name: str, default: int | None, *, most: int) -> int | None:
    """A whole number in the query, 1 to ``most``. Raises ``InvalidRequestError``."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and 1 <= int(text) <= most):
        raise InvalidRequestError(
            f"Must be a number from 1 to {most}, is {quoted(text)}.", param=name
        )
    return int(text)


def moment(value: int, name: str) -> datetime:
    """Unix seconds as a time. Raises ``InvalidRequestError``."""
    try:
        return datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidRequestError(f"{value} is no Unix time in seconds.", param=name) from None


def parse_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
