"""Every route with every kind of key that may not use it, and the ids of another tenant.

Routes and WebSockets are taken from the table of routes: a new one is tried from its first day.
Keys that may use a route, with another tenant's ids, are tried in
``tests/gateway/test_isolation.py``; queries that ask for another tenant's rows, in
``tests/tenants/test_isolation.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

import pytest
from websockets.exceptions import InvalidStatus

from gateway.admin.provisioning import make_key
from gateway.routes import pages
from gateway.routes.table import OPERATIONS
from gateway.schemas.operation import SOCKET
from tenants.types import Scope
from tests.gateway.conftest import model_dir
from tests.gateway.owners import KINDS, PARAMETER, SECRET, Owner, Place, place
from tests.gateway.raw_http import Answer
from tests.gateway.serving import SECRETS, until
from tests.gateway.ws_client import connected
from tests.postgres import pg_dsn

__all__ = ["model_dir", "pg_dsn", "place"]
pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

PUBLIC = {
    *("/livez", "/readyz", "/openapi.json", "/asyncapi.json"),
    *("/auth/sign-in", "/auth/callback", "/auth/sign-out", "/auth/session"),
    *(operation.path for operation in pages.operations()),
}
SCOPES: tuple[Scope, ...] = get_args(Scope)


OF_ALL_TENANTS: list[Scope] = ["owner", "admin", "view", "billing"]
BILLED = re.compile(r"/tenants(/{tenant_id}(/(limits|projects|keys(/{key_id})?))?)?|/budgets")


def scopes_of(method: str, path: str) -> set[Scope]:
    """Those of which a key needs one at a route."""
    if path.startswith("/admin/v1/usage"):
        return {"usage", *OF_ALL_TENANTS}
    if path.startswith("/admin/v1/") or path == "/metrics":
        if method != "GET":
            is_a_tenant = path == "/admin/v1/tenants/{tenant_id}"
            return {*OF_ALL_TENANTS[: 1 if method == "DELETE" and is_a_tenant else 2]}
        is_billed = BILLED.fullmatch(path.removeprefix("/admin/v1")) is not None
        return {*OF_ALL_TENANTS[: 4 if is_billed else 3]}
    if path.startswith(("/v1/responses", "/v1/conversations")):
        return {"responses", "chat"}
    return {"chat"}


def routes(place: Place) -> Iterator[tuple[str, str, str]]:
    """(method, path template, path with the owner's ids) of all that need a key."""
    for operation in OPERATIONS:
        if operation.path not in PUBLIC and operation.method != SOCKET:
            path = filled(operation.path, place.owner)
            yield operation.method, operation.path, path


def sockets() -> list[str]:
    """The paths of all WebSockets."""
    return [operation.path for operation in OPERATIONS if operation.method == SOCKET]


def filled(template: str, owner: Owner) -> str:
    """With an id of the right kind for each parameter."""
    names = PARAMETER.findall(template)
    assert KINDS.keys() >= set(names), f"{template} takes an id of a kind that is not furnished"
    path = template
    for name in names:
        kind = KINDS[name]
        value = "anything" if kind is None else owner.ids[kind][0]
        path = PARAMETER.sub(value, path, count=1)
    return path


async def dead_keys(place: Place) -> dict[str, str | None]:
    """All scopes, and yet none may come in."""
    store, pepper = place.gateway.store, SECRETS.key_pepper
    tenant_id = place.stranger.tenant.id

    async def key(
        tenant_id: UUID = tenant_id, expires_at: datetime | None = None
    ) -> tuple[str, str]:
        made, text = await make_key(
            store, pepper, tenant_id, name="dead", scopes=list(SCOPES), expires_at=expires_at
        )
        return str(made.id), text

    _, good = await key()
    revoked_id, revoked = await key()
    disabled = await store.create_tenant("disabled")
    _, disabled_key = await key(disabled.id)
    _, expired = await key(expires_at=datetime.now(UTC) + timedelta(seconds=1.5))
    for method, path, body in (
        ("DELETE", f"/admin/v1/tenants/{tenant_id}/keys/{revoked_id}", None),
        ("PATCH", f"/admin/v1/tenants/{disabled.id}", {"disabled": True}),
    ):
        answer = await place.send(method, path, place.admin_key, body)
        assert answer.status == 200, answer.body

    async def is_dead(text: str) -> bool:
        return (await place.send("GET", "/v1/models", text)).status == 401

    for text in (revoked, disabled_key, expired):
        await until(lambda text=text: is_dead(text))  # type: ignore[misc]
    return {
        "none": None,
        "nonsense": "nonsense",
        "of another secret": good[:-20] + ("a" * 20 if good[-20:] != "a" * 20 else "b" * 20),
        "cut": good[:-1],
        "revoked": revoked,
        "expired": expired,
        "of a disabled tenant": disabled_key,
    }


async def send(place: Place, method: str, path: str, key: str | None) -> Answer:
    body: dict[str, str] | None = {} if method in ("POST", "PUT", "PATCH") else None
    if key is None:
        return await place.send(method, path, "x", body, authorization="")
    return await place.send(method, path, key, body)


async def test_a_dead_key_opens_no_route(place: Place) -> None:
    keys = await dead_keys(place)
    before = await place.snapshot()
    num_tried = 0
    for method, template, path in routes(place):
        for kind, key in keys.items():
            answer = await send(place, method, path, key)
            assert answer.status == 401, (kind, method, template, answer.body)
            assert SECRET.encode() not in answer.body
            num_tried += 1
    assert num_tried > 200
    for path in sockets():
        for kind, key in keys.items():
            if key is not None:
                assert await refused(place, path, key) == 401, (kind, path)
    assert await place.snapshot() == before


async def refused(place: Place, path: str, key: str) -> int:
    """The status of a handshake, or the code with which the socket is closed."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with connected(place.gateway, path=path, additional_headers=headers) as client:
            return await client.closed()
    except InvalidStatus as error:
        return error.response.status_code


async def test_a_key_opens_the_routes_of_its_scope_and_no_other(place: Place) -> None:
    """A key of one scope; also one of a project of its own."""
    store, tenant_id = place.gateway.store, place.stranger.tenant.id
    project = await store.create_project(tenant_id, "side")
    before = await place.snapshot()
    num_refused = 0
    for scope in SCOPES:
        for project_id in (None, project.id):
            _, key = await make_key(
                store,
                SECRETS.key_pepper,
                tenant_id,
                name=f"{scope} {project_id}",
                scopes=[scope],
                project_id=project_id,
            )
            for method, template, path in routes(place):
                if scope in scopes_of(method, template):
                    is_of_all = scope in OF_ALL_TENANTS
                    if is_of_all and (method != "GET" or project_id is not None):
                        continue  # It would change what is anybody's.
                    answer = await send(place, method, path, key)
                    assert answer.status not in (401, 403), (scope, method, template, answer.body)
                    assert answer.status < 500, (scope, method, template, answer.body)
                    if not is_of_all:
                        told = answer.body.replace(path.encode(), b"")
                        for one in filter(re.compile(r"\d").search, place.owner.everything()):
                            assert one in path or one.encode() not in told, (method, template, one)
                else:
                    answer = await send(place, method, path, key)
                    assert answer.status == 403, (scope, method, template, answer.body)
                    num_refused += 1
                assert SECRET.encode() not in answer.body
            for path in sockets():
                if scope not in scopes_of(SOCKET, path):
                    assert await refused(place, path, key) == 4403, (scope, path)
    assert num_refused > 150
    assert await place.snapshot() == before
