"""``/admin/v1`` over the wire: who may, what is answered, and what is written down."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from gateway.routes.table import OPERATIONS
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, RawClient, events, exchange, post
from tests.gateway.serving import Gateway, chat_body, encode, until

pytestmark = pytest.mark.asyncio


class Admin:
    """A client with a key of some scopes."""

    def __init__(self, gateway: Gateway, key: str) -> None:
        self._gateway = gateway
        self._key = key

    async def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        payload = b"" if body is None else encode(body)
        head = (
            f"{method} /admin/v1{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(payload)}\r\n\r\n"
        )
        return await exchange(self._gateway, head.encode() + payload)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self(method, path, body)
        assert answer.status in (200, 201), answer.body
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    async def error(self, status: int, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self(method, path, body)
        assert answer.status == status, (path, answer.body)
        return answer.error


async def ask(gateway: Gateway, key: str | None = None) -> Answer:
    """For a chat."""
    return await exchange(gateway, post(gateway, encode(chat_body()), key=key))


async def admin_of(gateway: Gateway) -> Admin:
    return Admin(gateway, await gateway.key("admin"))


async def test_a_tenant_from_its_birth_to_its_usage(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    tenant = await admin.ok("POST", "/tenants", {"name": "globex", "weight": 2})
    assert (tenant["object"], tenant["weight"], tenant["disabled_at"]) == ("tenant", 2.0, None)
    path = f"/tenants/{tenant['id']}"
    assert await admin.ok("GET", path) == tenant
    assert tenant in (await admin.ok("GET", "/tenants"))["data"]
    project = await admin.ok("POST", f"{path}/projects", {"name": "search"})
    key = await admin.ok("POST", f"{path}/keys", {"name": "app", "project_id": project["id"]})
    assert key["key"].startswith(f"sk-slc-{key['public_id']}-")
    listed = (await admin.ok("GET", f"{path}/keys"))["data"]
    assert [one["public_id"] for one in listed] == [key["public_id"]]
    assert "key" not in listed[0]

    answer = await ask(gateway, key["key"])
    assert answer.status == 200
    used = answer.json()["usage"]

    async def usage() -> list[Any]:
        found: list[Any] = (await admin.ok("GET", f"/usage?tenant_id={tenant['id']}"))["data"]
        return found

    await until(usage)
    (row,) = await usage()
    assert row["total_tokens"] == row["prompt_tokens"] + row["completion_tokens"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (
        used["prompt_tokens"],
        used["completion_tokens"],
    )
    assert (row["tenant_id"], row["project_id"]) == (tenant["id"], project["id"])
    assert row["key_id"] == key["id"]
    assert time.time() - 7200 < row["start_time"] <= time.time()


async def test_limits_take_effect(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    tenant_id = gateway.tenant.id
    limits = {"requests_per_minute": 1, "tokens_per_minute": 10_000, "max_concurrent": 2}
    put = await admin.ok("PUT", f"/tenants/{tenant_id}/limits", limits)
    assert put["limits"].items() >= limits.items()
    statuses = [(await ask(gateway)).status for _ in range(2)]
    assert statuses == [200, 429]
    (found,) = (await admin.ok("GET", f"/tenants/{tenant_id}/limits"))["data"]
    assert found["scope_kind"] == "tenant"
    error = await admin.error(400, "PUT", f"/tenants/{tenant_id}/limits", {"max_concurrent": 0})
    assert "max_concurrent" in error["message"]
    error = await admin.error(400, "PUT", f"/tenants/{tenant_id}/limits", {"rpm": 1})
    assert (error["code"], error["param"]) == ("unknown_parameter", "rpm")


async def test_limits_of_projects_and_keys(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    path = f"/tenants/{gateway.tenant.id}"
    (project,) = (await admin.ok("GET", f"{path}/projects"))["data"]
    key, *_ = (await admin.ok("GET", f"{path}/keys"))["data"]
    await admin.ok("PUT", f"{path}/projects/{project['id']}/limits", {"monthly_tokens": 5})
    await admin.ok("PUT", f"{path}/keys/{key['public_id']}/limits", {"max_queued": 5})
    found = (await admin.ok("GET", f"{path}/limits"))["data"]
    assert [(one["scope_kind"], one["scope_id"]) for one in found] == [
        ("project", project["id"]),
        ("key", key["id"]),
    ]


async def test_keys_are_rotated_and_revoked(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    path = f"/tenants/{gateway.tenant.id}/keys"
    key = await admin.ok("POST", path, {"scopes": ["chat", "usage"], "model_aliases": {"x": "y"}})
    new = await admin.ok("POST", f"{path}/{key['id']}/rotate", {"grace_seconds": 0})
    assert (new["replaces_key_id"], new["scopes"]) == (key["id"], ["chat", "usage"])
    assert new["key"] != key["key"]
    old = await admin.ok("GET", f"{path}/{key['public_id']}")
    assert old["revoke_at"] is not None
    assert (await ask(gateway, key["key"])).status == 401
    assert (await ask(gateway, new["key"])).status == 200
    revoked = await admin.ok("DELETE", f"{path}/{new['public_id']}")
    assert revoked["revoked_at"] is not None
    assert await admin.ok("POST", f"{path}/{new['public_id']}/revoke") == revoked
    assert (await ask(gateway, new["key"])).status == 401


async def test_a_key_that_would_never_open_anything_is_refused(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    path = f"/tenants/{gateway.tenant.id}/keys"
    now = int(time.time())
    for when in (0, now - 60, now, 10**15):
        error = await admin.error(400, "POST", path, {"expires_at": when})
        assert error["param"] == "expires_at"
    ends = int(time.time()) + 3
    key = await admin.ok("POST", path, {"expires_at": ends})
    assert key["expires_at"] == ends
    await asyncio.sleep(ends - time.time() + 0.05)
    error = await admin.error(400, "POST", f"{path}/{key['id']}/rotate")
    assert error["param"] == "expires_at"
    assert "make a new one" in error["message"]


async def test_a_tenant_is_changed_and_disabled(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    tenant = await admin.ok("POST", "/tenants", {"name": "globex"})
    path = f"/tenants/{tenant['id']}"
    changed = await admin.ok("PATCH", path, {"name": "initech", "disabled": True})
    assert (changed["name"], changed["weight"]) == ("initech", 1.0)
    assert changed["disabled_at"] is not None
    assert (await admin.ok("PATCH", path, {"disabled": False}))["disabled_at"] is None
    error = await admin.error(409, "PATCH", path, {"name": gateway.tenant.name})
    assert error["code"] == "already_exists"
    await admin.error(409, "POST", "/tenants", {"name": "initech"})
    await admin.error(400, "POST", "/tenants", {"name": "x", "weight": 0})
    await admin.error(400, "POST", "/tenants", {})
    error = await admin.error(400, "POST", f"{path}/keys", {"scopes": ["root"]})
    assert error["param"] == "scopes[0]"
    error = await admin.error(404, "POST", f"{path}/keys", {"project_id": "search"})
    assert "search" in error["message"]
    key = await admin.ok("POST", f"{path}/keys", {})
    for grace in (-1, 366 * 86400 + 1):
        error = await admin.error(
            400, "POST", f"{path}/keys/{key['id']}/rotate", {"grace_seconds": grace}
        )
        assert error["param"] == "grace_seconds"
    assert (await admin.ok("GET", f"{path}/keys/{key['id']}"))["revoke_at"] is None


async def test_only_admins_come_in(gateway: Gateway) -> None:
    """Every route: what exists answers 403 to a chat key, before it looks at anything."""
    chatting = Admin(gateway, gateway.api_key)
    using = Admin(gateway, await gateway.key("usage"))
    paths = {
        (operation.method, operation.path)
        for operation in OPERATIONS
        if operation.path.startswith("/admin/v1/")
    }
    assert len(paths) >= 20
    for method, path in paths:
        real = path.removeprefix("/admin/v1")
        for name in ("tenant_id", "project_id", "key_id", "stream_id"):
            real = real.replace(f"{{{name}}}", str(uuid4()))
        error = await chatting.error(403, method, real)
        assert error["code"] == "permission_denied"
        if not path.startswith("/admin/v1/usage"):
            await using.error(403, method, real)
    await chatting.error(403, "GET", "/nowhere")


async def test_ids_of_others_and_of_nobody_are_not_found(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    other = await admin.ok("POST", "/tenants", {"name": "other"})
    theirs = f"/tenants/{other['id']}"
    key = await admin.ok("POST", f"{theirs}/keys", {})
    project = await admin.ok("POST", f"{theirs}/projects", {"name": "p"})
    before = await admin.ok("GET", "/audit_log")
    mine = f"/tenants/{gateway.tenant.id}"
    for tenant in (mine, f"/tenants/{uuid4()}", "/tenants/nonsense"):
        for method, path, body in (
            ("GET", f"/keys/{key['id']}", None),
            ("GET", f"/keys/{key['public_id']}", None),
            ("DELETE", f"/keys/{key['public_id']}", None),
            ("POST", f"/keys/{key['public_id']}/revoke", None),
            ("POST", f"/keys/{key['public_id']}/rotate", {}),
            ("PUT", f"/keys/{key['public_id']}/limits", {}),
            ("PUT", f"/projects/{project['id']}/limits", {}),
            ("PATCH", f"/projects/{project['id']}", {"name": "q"}),
            ("POST", "/keys", {"project_id": project["id"]}),
            ("POST", "/keys", {"project_id": "nonsense"}),
        ):
            error = await admin.error(404, method, tenant + path, body)
            assert error["code"] == "not_found"
        if tenant != mine:
            for path in ("", "/keys", "/projects", "/limits"):
                await admin.error(404, "GET", tenant + path)
            await admin.error(404, "PATCH", tenant, {"weight": 2})
            await admin.error(404, "PUT", f"{tenant}/limits", {})
            await admin.error(404, "POST", f"{tenant}/projects", {"name": "x"})
    await admin.error(404, "GET", f"/usage?tenant_id={uuid4()}")
    await admin.error(404, "GET", f"/audit_log?tenant_id={uuid4()}")
    await admin.error(404, "GET", f"/streams?tenant_id={uuid4()}")
    await admin.error(404, "DELETE", f"/streams/{uuid4()}")
    assert await admin.ok("GET", "/audit_log") == before


async def test_the_usage_scope_shows_a_tenant_its_own(gateway: Gateway) -> None:
    await ask(gateway)
    await gateway.usage()
    own = Admin(gateway, await gateway.key("usage"))
    (row,) = (await own.ok("GET", "/usage?group_by=tenant&bucket_width=all"))["data"]
    assert row["tenant_id"] == str(gateway.tenant.id)
    most = await own.ok("GET", "/usage?group_by=tenant&bucket_width=all&order=tokens&limit=1")
    assert (most["data"], most["has_more"], most["next"]) == ([row], False, None)
    assert await own.ok("GET", f"/usage?tenant_id={gateway.tenant.id}")
    other = await gateway.store.create_tenant("other")
    await own.error(404, "GET", f"/usage?tenant_id={other.id}")


async def test_what_usage_cannot_be_asked_for(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    for query, param in (
        ("tenant_id=x", "tenant_id"),
        ("start_time=-1", "start_time"),
        ("end_time=1e3", "end_time"),
        ("start_time=9&end_time=8", "end_time"),
        ("group_by=colour", "group_by"),
        ("bucket_width=1w", "bucket_width"),
        ("order=cost", "order"),
        ("order=tokens&after=W251bGwsbnVsbF0", "after"),
        ("limit=0", "limit"),
        ("limit=100000", "limit"),
    ):
        error = await admin.error(400, "GET", f"/usage?{query}")
        assert error["param"] == param


async def test_what_a_route_does_not_read_is_refused(gateway: Gateway) -> None:
    """Else ``tenant=`` in place of ``tenant_id=`` would show the sums of all."""
    admin = await admin_of(gateway)
    reads = {"/usage": "tenant_id", "/audit_log": "after", "/streams": "tenant_id"}
    for path in ("/usage", "/audit_log", "/streams", "/tenants", "/engine"):
        error = await admin.error(400, "GET", f"{path}?tenant={gateway.tenant.id}")
        assert (error["param"], error["code"]) == ("tenant", "unknown_parameter")
        assert reads.get(path, "") in error["message"]
        await admin.ok("GET", path)


async def test_changes_are_the_key_s_that_made_them(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    *_, key = await gateway.store.list_keys(gateway.tenant.id)
    tenant = await admin.ok("POST", "/tenants", {"name": "globex"})
    await admin.ok("PATCH", f"/tenants/{tenant['id']}", {"weight": 3})
    page = await admin.ok("GET", f"/audit_log?tenant_id={tenant['id']}&limit=1")
    assert page["has_more"]
    (entry,) = page["data"]
    assert (entry["action"], entry["actor"]) == ("tenant.update", f"key {key.public_id}")
    assert (entry["before"]["weight"], entry["after"]["weight"]) == (1.0, 3.0)
    older = await admin.ok("GET", f"/audit_log?tenant_id={tenant['id']}&after={page['next']}")
    assert {one["action"] for one in older["data"]} == {"tenant.create", "project.create"}


async def test_running_streams_are_shown_and_killed(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda _: Play(text="x" * 900, interval_s=0.1)
    admin = await admin_of(gateway)
    client = await RawClient.connect(gateway)
    body = chat_body(stream=True, max_tokens=500)
    client.send(post(gateway, encode(body)))
    assert (await client.head()).status == 200
    for _ in range(3):
        await client.chunk()
    (stream,) = (await admin.ok("GET", "/streams"))["data"]
    assert (stream["tenant_id"], stream["state"]) == (str(gateway.tenant.id), "running")
    assert stream["is_here"]
    assert stream["generated_tokens"] >= 1
    state = await admin.ok("GET", "/engine")
    (load,) = state["tenants"]
    assert (load["name"], load["num_running"]) == (gateway.tenant.name, 1)
    assert state["ready"]
    assert state["stats"]["num_total_blocks"] >= 0
    other = await gateway.store.create_tenant("other")
    assert (await admin.ok("GET", f"/streams?tenant_id={other.id}"))["data"] == []

    assert (await admin("DELETE", f"/streams/{stream['id']}")).status == 204
    async with asyncio.timeout(30):  # it would run for 50
        rest = await client._chunks()
    await client.close()
    last = events(rest)[-1]
    assert last["error"]["code"] == "ended_by_administrator"
    assert (await admin.ok("GET", "/streams"))["data"] == []
    (entry, *_) = (await admin.ok("GET", "/audit_log"))["data"]
    assert (entry["action"], entry["object_id"]) == ("stream.kill", stream["id"])
    totals = await gateway.usage()
    assert totals.completion_tokens >= stream["generated_tokens"]


async def test_roles_of_all_tenants(gateway: Gateway) -> None:
    """What each may, beyond the route table: only an owner hands such keys out, replaces or revokes
    them, as an administrator could make itself one with them."""
    clients = {
        scope: Admin(gateway, await gateway.key(scope))
        for scope in ("billing", "view", "admin", "owner")
    }
    admin, owner = clients["admin"], clients["owner"]
    other = await owner.ok("POST", "/tenants", {"name": "globex", "weight": 1})
    path = f"/tenants/{other['id']}"
    for client in clients.values():
        for seen in (f"/usage?tenant_id={other['id']}", "/budgets", "/tenants", f"{path}/keys"):
            await client.ok("GET", seen)
    for scope in ("billing", "view", "admin", "owner"):
        body = {"name": "made", "scopes": ["chat", scope]}
        assert "owner" in (await admin.error(403, "POST", f"{path}/keys", body))["message"]
        made = await owner.ok("POST", f"{path}/keys", body)
        for step in (("POST", "/rotate"), ("POST", "/revoke"), ("DELETE", "")):
            await admin.error(403, step[0], f"{path}/keys/{made['public_id']}{step[1]}")
        await owner.ok("POST", f"{path}/keys/{made['public_id']}/rotate", {})
        await owner.ok("DELETE", f"{path}/keys/{made['public_id']}")
    # Keys that replaced them are good ones still: without its owners nobody would be one.
    assert "owner" in (await admin.error(403, "PATCH", path, {"disabled": True}))["message"]
    assert (await owner.ok("PATCH", path, {"disabled": True}))["disabled_at"]
    await admin.ok("PATCH", path, {"disabled": False})


async def test_a_tenant_is_deleted_by_an_owner(gateway: Gateway) -> None:
    admin, owner = await admin_of(gateway), Admin(gateway, await gateway.key("owner"))
    tenant = await admin.ok("POST", "/tenants", {"name": "globex"})
    path = f"/tenants/{tenant['id']}"
    key = await admin.ok("POST", f"{path}/keys", {"name": "app", "user_name": "Ada"})
    assert key["user_name"] == "Ada"
    changed = await admin.ok("PATCH", path, {"conversation_days": 7})
    assert changed["conversation_days"] == 7
    assert (await admin.ok("PATCH", path, {"weight": 2}))["conversation_days"] == 7
    assert (await admin.ok("PATCH", path, {"conversation_days": None}))["conversation_days"] is None
    assert (await ask(gateway, key["key"])).status == 200
    await admin.error(403, "DELETE", path)
    own = f"/tenants/{gateway.tenant.id}"
    assert "Your own key" in (await owner.error(400, "DELETE", own))["message"]
    deleted = await owner.ok("DELETE", path)
    assert (deleted["object"], deleted["name"]) == ("tenant.deleted", "globex")
    assert (await ask(gateway, key["key"])).status == 401
    await owner.error(404, "GET", path)
    await owner.error(404, "DELETE", path)
    assert (await owner.ok("POST", "/tenants", {"name": "globex"}))["id"] != tenant["id"]


async def test_who_was_refused_and_why(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    tenant = await admin.ok("POST", "/tenants", {"name": "globex"})
    path = f"/tenants/{tenant['id']}"
    key = await admin.ok("POST", f"{path}/keys", {"name": "app"})
    bad = encode({"model": "nobody", "messages": [{"role": "user", "content": "Hi"}]})
    assert (await exchange(gateway, post(gateway, bad, key=key["key"]))).status == 404
    await admin.ok("PUT", f"{path}/limits", {"monthly_tokens": 0})
    for _ in range(2):
        assert (await ask(gateway, key["key"])).status == 429
    await gateway.app.state.services.refused.flush()
    listed = await admin.ok("GET", f"/refusals?tenant_id={tenant['id']}")
    assert [(row["code"], row["times"]) for row in listed["data"]] == [
        ("insufficient_quota", 2),
        ("model_not_found", 1),
    ]
    assert listed["data"][0]["tenant_name"] == "globex"
    assert listed["data"][0]["key_name"] == f"app ({key['public_id']})"
    first = await admin.ok("GET", "/refusals?limit=1")
    assert (len(first["data"]), first["has_more"]) == (1, True)
    assert (await admin.ok("GET", f"/refusals?start_time={int(time.time()) + 7200}"))["data"] == []
