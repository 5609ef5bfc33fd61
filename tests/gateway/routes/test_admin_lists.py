"""What all lists of ``/admin/v1`` have in common, and the requests of the ledger."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID, uuid4

import msgspec
import pytest

from gateway.admin import exports
from gateway.routes.table import OPERATIONS
from gateway.schemas.admin import ListObject
from tenants.limits import Limits
from tenants.request_ids import new_request_id
from tenants.shared import EngineRecord
from tenants.types import Tenant
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import exchange, post
from tests.gateway.routes.test_admin import Admin, admin_of
from tests.gateway.serving import MODEL, Gateway, encode
from tests.gateway.ws_client import ready
from tests.tenants.reserving import ask
from tests.tenants.samples import make_event

pytestmark = pytest.mark.asyncio

NUM_ROWS = 5


class List(NamedTuple):
    path: str
    search: str
    """A part of what some rows have, and others do not."""


async def furnish(gateway: Gateway) -> tuple[Tenant, list[List]]:
    """At least ``NUM_ROWS`` rows in each list; some have "even" in their names."""
    store = gateway.store
    tenant = await store.create_tenant("Acme even")
    for number in range(NUM_ROWS):
        word = "EVEN" if number % 2 == 0 else "odd"
        other = await store.create_tenant(f"{word} {number}")
        await store.create_project(tenant.id, f"{word} {number}")
        key = await store.create_key(
            tenant.id,
            public_id=f"{word}{number}".rjust(12, "x"),
            key_hash=bytes(32),
            name=f"key {number}",
            scopes=["chat"],
        )
        elsewhere = await store.create_key(
            other.id, public_id=uuid4().hex[:12], key_hash=bytes(32), name="k", scopes=["chat"]
        )
        await store.put_limits(tenant.id, "key", key.id, Limits(max_concurrent=9))
        await store.create_adapter(
            tenant.id,
            adapter_id=uuid4(),
            name=f"{word}-{number}",
            parent="m",
            path="p",
            base_model=None,
            rank=1,
            digest="d",
        )
        await store.allow_mcp_server(
            tenant.id, f"https://{word}.example/{number}", allow_private=False
        )
        await store.reserve(ask(key, model=f"model {word}"))
        await store.webhooks.create(other.id, f"https://{word.lower()}.example/{number}", ())
        engine = EngineRecord(
            id=f"{word}-{number}",
            model="m",
            config_hash="c",
            text_hash="t",
            protocol=1,
            version="1",
            capacity=1,
            epoch=1,
            state="ready",
        )
        assert await store.shared.register_engine(engine, timedelta(hours=1)) == "ok"
        for who in (key, elsewhere):
            await store.record_usage(make_event(who, request_id=new_request_id()))
    one = f"/tenants/{tenant.id}"
    return tenant, [
        List("/tenants", "even"),
        List(f"{one}/projects", "even"),
        List(f"{one}/keys", "even"),
        List(f"{one}/adapters", "even"),
        List(f"{one}/mcp_servers", "even"),
        List(f"{one}/limits", "key"),
        List("/streams", "even"),
        List("/fleet", "even"),
        List("/webhooks", "even"),
        List("/usage?group_by=tenant,key&bucket_width=all", "even"),
        List("/usage?group_by=tenant,project,key,model&bucket_width=1h", "even"),
        List("/audit_log", "adapter.create"),
        List(f"/audit_log?tenant_id={tenant.id}", "tenant"),
        List("/usage/requests", ""),
        List(f"/usage/requests?tenant_id={tenant.id}", ""),
    ]


def with_query(path: str, **query: object) -> str:
    given = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    return f"{path}{'&' if '?' in path else '?'}{given}"


async def pages(admin: Admin, path: str, limit: int) -> list[Any]:
    """All rows of a list, page by page."""
    rows: list[Any] = []
    page = await admin.ok("GET", with_query(path, limit=limit))
    while True:
        assert page["object"] == "list"
        assert page["has_more"] == (page["next"] is not None)
        assert len(page["data"]) == limit or not page["has_more"]
        rows += page["data"]
        if not page["has_more"]:
            return rows
        page = await admin.ok("GET", with_query(path, limit=limit, after=page["next"]))


async def test_every_list_is_read_in_pages_and_searched(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    _, lists = await furnish(gateway)
    for path, search in lists:
        everything = (await admin.ok("GET", path))["data"]
        assert len(everything) >= NUM_ROWS, path
        for limit in (1, 2, len(everything), 1000):
            assert await pages(admin, path, limit) == everything, (path, limit)
        if search:
            some = await pages(admin, with_query(path, search=search), 2)
            assert 0 < len(some) < len(everything) or path.endswith(("limits", "/streams")), path
            assert [row for row in everything if row in some] == some, path
            assert (await admin.ok("GET", with_query(path, search="nobody")))["data"] == []
        for name, value in (("limit", 0), ("limit", "x"), ("after", "!"), ("after", "e30")):
            error = await admin.error(400, "GET", with_query(path, **{name: value}))
            assert error["param"] == name, path


async def test_every_route_that_lists_takes_the_same_parameters(gateway: Gateway) -> None:
    """So that a new one cannot answer with everything at once."""
    admin = await admin_of(gateway)
    tenant, lists = await furnish(gateway)
    known = {path.partition("?")[0].replace(str(tenant.id), "{tenant_id}") for path, _ in lists}
    for operation in OPERATIONS:
        path = operation.path.removeprefix("/admin/v1")
        if (
            operation.method != "GET"
            or path in (operation.path, "/", "/budgets", "/refusals")  # the greatest alone
            or re.search("{(key|webhook)_id}", path)
        ):
            continue
        answer = await admin.ok("GET", path.replace("{tenant_id}", str(tenant.id)))
        assert (answer["object"] == "list") == (path in known), path
        assert (operation.answer is ListObject) == (path in known), path


async def test_single_requests_are_found_by_what_they_are(gateway: Gateway) -> None:
    admin, store = await admin_of(gateway), gateway.store
    (key,) = await store.list_keys(gateway.tenant.id, search=None, limit=1)
    now = datetime.now(UTC)
    events = [
        make_event(key, request_id=new_request_id(), model="a", created_at=now),
        make_event(key, request_id=new_request_id(), status="error", end_user='=1,"x"'),
        make_event(key, request_id=new_request_id(), created_at=now - timedelta(days=3)),
    ]
    for event in events:
        await store.record_usage(event)

    async def found(query: str) -> list[int]:
        ids = [str(event.request_id) for event in events]
        rows = (await admin.ok("GET", f"/usage/requests?{query}"))["data"]
        return sorted(ids.index(row["id"]) for row in rows)

    assert await found("") == [0, 1, 2]
    assert await found("model=a") == [0]
    assert await found("status=error") == [1]
    assert await found(f"key_id={key.id}&start_time={int(now.timestamp()) - 3600}") == [0, 1]
    assert await found(f"key_id={uuid4()}") == []
    assert await found(f"end_user={quote(str(events[1].end_user))}") == [1]
    (row,) = (await admin.ok("GET", "/usage/requests?model=a"))["data"]
    assert (row["prompt_tokens"], row["tenant_id"]) == (100, str(gateway.tenant.id))
    for query, param in (("status=x", "status"), ("format=xml", "format"), ("model=%00", "model")):
        assert (await admin.error(400, "GET", f"/usage/requests?{query}"))["param"] == param
    other = await store.create_tenant("other")
    own = Admin(gateway, await gateway.key("usage"))
    await own.error(404, "GET", f"/usage/requests?tenant_id={other.id}")
    assert len((await own.ok("GET", "/usage/requests"))["data"]) == 3


async def test_the_ledger_names_the_endpoint_of_each_request(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda _: Play(text="hi")
    admin, everything = await admin_of(gateway), await gateway.key("chat", "responses")
    text: dict[str, Any] = {"model": MODEL, "max_tokens": 1}
    message = {"messages": [{"role": "user", "content": "hi"}], **text}
    for path, body in (
        ("/v1/chat/completions", message),
        ("/v1/completions", {"prompt": "hi", **text}),
        ("/v1/messages", message),
        ("/v1/responses", {"input": "hi", "model": MODEL}),
    ):
        sent = post(gateway, encode(body), path=path, key=everything)
        assert (await exchange(gateway, sent)).status == 200
    async with ready(gateway) as client:
        await client.chat("turn")
        await client.turn("turn")
    await gateway.usage(5)
    rows = (await admin.ok("GET", "/usage/requests"))["data"]
    assert [row["endpoint"] for row in reversed(rows)] == [
        "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/chat",
    ]  # fmt: skip
    (found,) = (await admin.ok("GET", "/usage/requests?endpoint=/v1/messages"))["data"]
    assert found == rows[2]
    assert b",/v1/messages\n" in (await admin("GET", "/usage/requests?format=csv")).body


async def test_requests_are_exported_whole_and_a_page_at_a_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "PAGE_ROWS", 3)
    admin, store = await admin_of(gateway), gateway.store
    (key,) = await store.list_keys(gateway.tenant.id, limit=1)
    for number in range(10):
        user = '=HYPERLINK("x"), a' if number == 4 else None
        await store.record_usage(
            make_event(key, request_id=new_request_id(), completion_tokens=number, end_user=user)
        )
    fetched: list[int] = []
    list_usage = store.list_usage

    async def counted(*args: Any, **kwargs: Any) -> Any:
        rows = await list_usage(*args, **kwargs)
        fetched.append(len(rows))
        return rows

    monkeypatch.setattr(store, "list_usage", counted)
    listed = (await admin.ok("GET", "/usage/requests"))["data"]
    fetched.clear()
    lines = await admin("GET", "/usage/requests?format=jsonl")
    assert lines.headers["content-type"] == "application/jsonl"
    assert [msgspec.json.decode(line) for line in lines.body.splitlines()] == listed
    assert fetched == [3, 3, 3, 1]
    table = await admin("GET", "/usage/requests?format=csv")
    assert "attachment" in table.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(table.body.decode(), newline="")))
    assert [row["completion_tokens"] for row in rows] == [str(n) for n in reversed(range(10))]
    assert rows[5]["end_user"] == "'" + '=HYPERLINK("x"), a'
    assert UUID(rows[0]["id"])
