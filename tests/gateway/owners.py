"""Two tenants of one gateway, of which one owns something of every kind that has an id."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from gateway.config import TenantsConfig
from gateway.routes.table import OPERATIONS
from tenants.keys import mint
from tenants.limits import Limits
from tenants.store import Store
from tenants.types import Tenant
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, RawClient, exchange, post, upload
from tests.gateway.serving import (
    MODEL,
    SECRETS,
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    until,
)

SECRET = "the heron lands at midnight"
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
KINDS: dict[str, str | None] = {
    "completion_id": "chat",
    "server_id": "MCP server",
    "response_id": "response",
    "conversation_id": "conversation",
    "item_id": "item",
    "file_id": "file",
    "batch_id": "batch",
    "stream_id": "stream",
    "model": "adapter name",
    "tenant_id": "tenant",
    "project_id": "project",
    "key_id": "key",
    "adapter": "adapter name",
    "engine_id": None,
    "webhook_id": None,
}
"""Parameters of paths, and what they name; None: an administrator's, whosever they are."""


@dataclass
class Owner:
    """A tenant with something of every kind."""

    tenant: Tenant
    api_key: str
    public_id: str
    ids: dict[str, list[str]] = field(default_factory=dict)

    def everything(self) -> list[str]:
        return [one for kind, ids in sorted(self.ids.items()) for one in ids if kind != "tenant"]


@dataclass
class Place:
    gateway: Gateway
    double: EngineDouble
    admin_key: str
    owner: Owner
    stranger: Owner

    async def send(
        self, method: str, path: str, key: str, body: Any = None, **headers: str
    ) -> Answer:
        data = b"" if body is None else encode(body)
        request = post(self.gateway, data, path=path, key=key, **headers)
        return await exchange(self.gateway, request.replace(b"POST", method.encode(), 1))

    async def snapshot(self) -> dict[str, Any]:
        """What the owner has, as the database and the engine know it."""
        store, tenant_id = self.gateway.store, self.owner.tenant.id
        return {
            "tenant": await store.get_tenant(tenant_id),
            "keys": [
                msgspec.structs.replace(key, last_used_at=None)
                for key in await store.list_keys(tenant_id)
            ],
            "projects": await store.list_projects(tenant_id),
            "limits": await store.list_limits(tenant_id),
            "adapters": await store.list_adapters(tenant_id),
            "audit": await store.list_audit(tenant_id),
            "items": await store.conversations.items(
                tenant_id, self.owner.ids["conversation"][0], limit=10
            ),
            "files": await store.files.list(tenant_id, limit=10),
            "batches": await store.batch_queue.list(tenant_id, limit=10, after=None),
            "chats": await store.chats.list(tenant_id, limit=10),
            "servers": await store.list_mcp_servers(tenant_id),
            "running": sorted(self.double.running),
        }


async def make_owner(gateway: Gateway, name: str) -> Owner:
    store = gateway.store
    tenant, minted = await store.create_tenant(name), mint(SECRETS.key_pepper)
    key = await store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name=name,
        scopes=["chat", "responses", "usage"],
    )
    (project,) = await store.list_projects(tenant.id)
    await store.put_limits(tenant.id, "tenant", tenant.id, Limits(max_concurrent=50))
    ids = {"tenant": [str(tenant.id)], "project": [str(project.id)]}
    return Owner(tenant, minted.text, key.public_id, ids | {"key": [str(key.id), key.public_id]})


async def furnish(place: Place) -> None:
    """Stored and running responses, ended and running streams, an adapter."""
    owner, double = place.owner, place.double
    path = f"/admin/v1/tenants/{owner.tenant.id}/adapters"
    body = {"name": "support", "path": "acme/support"}
    adapter = (await place.send("POST", path, place.admin_key, body)).json()
    owner.ids["adapter name"] = [adapter["name"], adapter["id"]]
    responses, streams = [], []
    for text, ends in ((SECRET, True), (SECRET * 90, False)):
        double.script = lambda _, text=text, ends=ends: Play(  # type: ignore[misc]
            text=text, interval_s=0.0 if ends else 0.5
        )
        made = await place.send(
            "POST", "/v1/responses", owner.api_key,
            {"model": MODEL, "input": SECRET, "background": not ends},
        )  # fmt: skip
        responses.append(made.json()["id"])
        client = await RawClient.connect(place.gateway)
        chat = chat_body(SECRET, stream=True)
        client.send(post(place.gateway, encode(chat), key=owner.api_key, x_sluice_resumable="1"))
        streams.append((await client.head()).headers["x-sluice-stream-id"])
        await client.chunk()
        client.reset()
    items = {"items": [{"role": "user", "content": SECRET}]}
    made = (await place.send("POST", "/v1/conversations", owner.api_key, items)).json()["id"]
    listed = await place.send("GET", f"/v1/conversations/{made}/items", owner.api_key)
    owner.ids |= {"conversation": [made], "item": [listed.json()["first_id"]]}
    file = upload(place.gateway, SECRET.encode(), key=owner.api_key)
    owner.ids["file"] = [(await exchange(place.gateway, file)).json()["id"]]
    batch = {
        "input_file_id": owner.ids["file"][0],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"secret": SECRET},
    }
    made = (await place.send("POST", "/v1/batches", owner.api_key, batch)).json()["id"]
    owner.ids["batch"] = [made]

    async def has_ended() -> bool:  # The secret is no line of a batch.
        shown = await place.send("GET", f"/v1/batches/{made}", owner.api_key)
        return bool(shown.json()["status"] == "failed")

    await until(has_ended)
    double.script = lambda _: Play(text=SECRET)
    stored = chat_body(SECRET, store=True)
    kept = await place.send("POST", "/v1/chat/completions", owner.api_key, stored)
    owner.ids |= {"response": responses, "stream": streams, "chat": [kept.json()["id"]]}
    server = await place.gateway.store.allow_mcp_server(owner.tenant.id, "https://a.example/mcp")
    owner.ids["MCP server"] = [str(server.id)]

    async def two_run() -> bool:
        listed = await place.send("GET", "/admin/v1/streams", place.admin_key)
        owner.ids["request"] = [row["id"] for row in listed.json()["data"]]
        return len(owner.ids["request"]) == 2

    await until(two_run)


@pytest_asyncio.fixture
async def place(model_dir: Path, tmp_path: Path, pg_dsn: str) -> AsyncIterator[Place]:
    folder = tmp_path / "adapters" / "acme" / "support"
    folder.mkdir(parents=True)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / file).touch()
    config = make_config(
        model_dir,
        engine={"enable_lora": True},
        models={"adapters_dir": str(tmp_path / "adapters")},
        shutdown_timeout_s=0.2,  # what runs would go on for minutes
        resume_grace_s=600.0,  # however long the tests take
    )
    config = msgspec.structs.replace(config, tenants=TenantsConfig(dsn=pg_dsn))
    double = EngineDouble(Tokenizer.load(model_dir))
    store = await Store.connect(pg_dsn)
    async with served(config, double_client(config, double), store=store) as gateway:
        owner = await make_owner(gateway, "owner")
        stranger = await make_owner(gateway, "stranger")
        place = Place(gateway, double, await gateway.key("owner"), owner, stranger)
        await furnish(place)
        yield place


def routes_with_ids(*, admin: bool) -> list[tuple[str, str]]:
    """(method, path template) of all that take an id in their path."""
    found = []
    for operation in OPERATIONS:
        path, names = operation.path, PARAMETER.findall(operation.path)
        assert KINDS.keys() >= set(names), f"{path} takes an id of a kind that is not furnished"
        if names and path.startswith("/admin/") is admin:
            found.append((operation.method, path))
    return found
