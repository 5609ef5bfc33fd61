"""Common to all routes of ``/admin/v1``: who may call them, on whose behalf, and how errors are
reported.

Every handler runs behind ``admin_route``: the key needs the scope that it names, every change is
written to the audit log under that key's public id, and bodies and ids are checked before the store
is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import context
from gateway.errors import InvalidRequestError, NotFound, quoted
from gateway.routes.answers import check_media_type
from gateway.transport.bodies import decode
from tenants.access import require_scope
from tenants.audit import acting_as
from tenants.errors import TenantNotFound
from tenants.store import Store
from tenants.types import Scope

PREFIX = "/admin/v1"

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


def admin_route(
    path: str,
    method: str,
    handler: Handler,
    *,
    scope: Scope = "admin",
    query: Collection[str] = (),
) -> Route:
    """A route below ``/admin/v1`` for keys with ``scope``.

    ``query``: the parameters that it reads. All others are refused: a misspelt ``tenant_id`` would
    show the sums of all tenants as one tenant's.
    """

    async def guarded(request: Request) -> Response:
        key = context.principal_of(request.scope).key
        require_scope(key, scope)
        for name in request.query_params:
            if name not in query:
                known = f"; this route takes {', '.join(query)}" if query else ""
                raise InvalidRequestError(
                    f"Unknown parameter: {quoted(name)}{known}.",
                    param=name,
                    code="unknown_parameter",
                )
        with acting_as(f"key {key.public_id}"):
            return await handler(request)

    return Route(PREFIX + path, guarded, methods=[method])


async def body_of(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The decoded body; an empty one counts as ``{}``."""
    check_media_type(request)
    return decode(decoder, await request.body() or b"{}")


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer that no cache may keep: it may hold a key."""
    return Response(
        msgspec.json.encode(value),
        status,
        {"cache-control": "no-store"},
        media_type="application/json",
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
        except TenantNotFound as exc:
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
