"""Every place that takes an id, with another tenant's: as if there were nothing of that name.

Routes are taken from the application itself: one that is new and takes an id is tried here from its
first day, and one that takes an id of a new kind fails until that kind is furnished.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from gateway.config import TenantsConfig
from tenants.keys import mint
from tenants.limits import Limits
from tenants.postgres import PostgresStore
from tenants.types import Tenant
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import Answer, RawClient, exchange, post
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
from tests.gateway.ws_client import ready

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

SECRET = "the heron lands at midnight"
PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
KINDS = {
    "response_id": "response",
    "stream_id": "stream",
    "model": "adapter name",
    "tenant_id": "tenant",
    "project_id": "project",
    "key_id": "key",
    "adapter": "adapter name",
    "path": None,  # what is no route at all
}
"""Parameters of paths, and what they name."""
BODIES: dict[str, Any] = {"PATCH": {"name": "taken over"}}


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
    for text, ends in ((SECRET, True), (SECRET * 9, False)):
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
    owner.ids |= {"response": responses, "stream": streams}

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
    )
    config = msgspec.structs.replace(config, tenants=TenantsConfig(dsn=pg_dsn))
    double = EngineDouble(Tokenizer.load(model_dir))
    store = await PostgresStore.connect(pg_dsn)
    async with served(config, double_client(config, double), store=store) as gateway:
        owner = await make_owner(gateway, "owner")
        stranger = await make_owner(gateway, "stranger")
        place = Place(gateway, double, await gateway.key("admin"), owner, stranger)
        await furnish(place)
        yield place


def routes_with_ids(gateway: Gateway, *, admin: bool) -> list[tuple[str, str]]:
    """(method, path template) of all that take an id in their path."""
    found = []
    for route in gateway.app.routes:
        path = getattr(route, "path", "")
        names = PARAMETER.findall(path)
        assert KINDS.keys() >= set(names), f"{path} takes an id of a kind that is not furnished"
        if names and path.startswith("/admin/") is admin:
            methods = sorted((getattr(route, "methods", None) or set()) - {"HEAD"})
            found += [(method, path) for method in methods]
    return found


def unmask(answer: Answer, *names: str) -> bytes:
    """The body without the ids that were asked for."""
    body = answer.body
    for name in names:
        body = body.replace(name.encode(), b"ID")
    return body


async def test_no_path_reaches_what_is_anothers(place: Place) -> None:
    """Each of the owner's ids in each place; and told as what never was, word for word."""
    before = await place.snapshot()
    num_tried = 0
    for method, path in routes_with_ids(place.gateway, admin=False):
        for name in place.owner.everything():
            answer = await place.send(method, PARAMETER.sub(name, path), place.stranger.api_key)
            assert answer.status == 404, (method, path, name, answer.body)
            assert SECRET.encode() not in answer.body
            unknown = name[:-4] + ("0000" if name[-4:] != "0000" else "1111")
            nothing = await place.send(method, PARAMETER.sub(unknown, path), place.stranger.api_key)
            assert (nothing.status, unmask(nothing, unknown)) == (404, unmask(answer, name))
            num_tried += 1
    assert num_tried >= 7 * 11
    assert await place.snapshot() == before


async def test_no_admin_path_mixes_tenants(place: Place) -> None:
    """Below the stranger's tenant nothing of the owner's is found, nor below one that is none."""
    before = await place.snapshot()
    num_tried = 0
    for method, path in routes_with_ids(place.gateway, admin=True):
        names = PARAMETER.findall(path)
        if "tenant_id" not in names:
            continue  # the streams: an administrator's, whosever they are
        tenants = [str(uuid4()), "nonsense"]
        others: list[tuple[str, ...]] = [()]
        if len(names) > 1:
            tenants.append(str(place.stranger.tenant.id))
            others = list(itertools.product(place.owner.everything(), repeat=len(names) - 1))
        body = None if method in ("GET", "DELETE") else BODIES.get(method, {})
        if (method, path) == ("POST", "/admin/v1/tenants/{tenant_id}/adapters"):
            body = {"name": "support", "path": "acme/support"}
        if path.endswith("/projects") and method == "POST":
            body = {"name": "new"}
        for tenant_id, rest in itertools.product(tenants, others):
            values = iter((tenant_id, *rest))
            real = PARAMETER.sub(lambda _, values=values: next(values), path)  # type: ignore[misc]
            answer = await place.send(method, real, place.admin_key, body)
            assert answer.status == 404, (method, real, answer.body)
            num_tried += 1
    assert num_tried > 200
    assert await place.snapshot() == before
    for kind in ("streams", "usage", "audit_log"):
        answer = await place.send("GET", f"/admin/v1/{kind}?tenant_id={uuid4()}", place.admin_key)
        assert (answer.status, answer.error["param"]) == (404, "tenant_id")
    answer = await place.send("DELETE", f"/admin/v1/streams/{uuid4()}", place.admin_key)
    assert answer.status == 404


async def test_no_body_names_what_is_anothers(place: Place) -> None:
    before, key = await place.snapshot(), place.stranger.api_key
    place.double.script = lambda _: Play(text="fine")
    for response_id in place.owner.ids["response"]:
        for fields in (
            {"input": "x", "previous_response_id": response_id},
            {
                "input": [
                    {"type": "item_reference", "id": response_id.replace("resp", "msg") + "_0"}
                ]
            },
        ):
            answer = await place.send("POST", "/v1/responses", key, {"model": MODEL} | fields)
            assert answer.status == 400
            assert SECRET.encode() not in answer.body
    for name in place.owner.ids["adapter name"]:
        for path, body in (
            ("/v1/chat/completions", chat_body()),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/tokenize", {"prompt": "x"}),
        ):
            answer = await place.send("POST", path, key, body | {"model": name})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    answer = await place.send("GET", f"/admin/v1/usage?tenant_id={place.owner.tenant.id}", key)
    assert answer.status == 404
    answer = await place.send("GET", "/admin/v1/usage", key)
    assert {row["tenant_id"] for row in answer.json()["data"]} <= {str(place.stranger.tenant.id)}
    assert await place.snapshot() == before


async def test_an_idempotency_key_is_each_tenants_own(place: Place) -> None:
    place.double.script = lambda _: Play(text=SECRET)
    body, name = chat_body(SECRET), str(uuid4())
    mine = await place.send(
        "POST", "/v1/chat/completions", place.owner.api_key, body, idempotency_key=name
    )
    place.double.script = lambda _: Play(text="something else")
    for text in (SECRET, "another question"):
        theirs = await place.send(
            "POST", "/v1/chat/completions", place.stranger.api_key, chat_body(text),
            idempotency_key=f"{name}{text[:1]}",
        )  # fmt: skip
        assert theirs.status == 200
    theirs = await place.send(
        "POST", "/v1/chat/completions", place.stranger.api_key, body, idempotency_key=name
    )
    assert theirs.status == 200
    assert "idempotent-replayed" not in theirs.headers
    assert theirs.json()["id"] != mine.json()["id"]
    assert SECRET.encode() not in theirs.body


async def test_no_socket_reaches_what_is_anothers(place: Place) -> None:
    before = await place.snapshot()
    async with ready(place.gateway, api_key=place.stranger.api_key) as socket:
        for number, stream_id in enumerate(place.owner.everything()):
            await socket.send(type="resume", id=f"t{number}", stream_id=stream_id, last_seq=-1)
            frame = await socket.receive()
            assert (frame["type"], frame["status"]) == ("error", 404), frame
            assert SECRET not in str(frame)
        await socket.send(type="cancel", id="t0")
    assert await place.snapshot() == before


async def test_what_the_owner_asks_for_is_there(place: Place) -> None:
    """The ids above are good ones: for their owner each opens something."""
    owner = place.owner
    for response_id in owner.ids["response"]:
        assert (
            await place.send("GET", f"/v1/responses/{response_id}", owner.api_key)
        ).status == 200
    done, running = owner.ids["stream"]
    assert (await place.send("GET", f"/v1/streams/{done}", owner.api_key)).status == 200
    assert (await place.send("DELETE", f"/v1/streams/{running}", owner.api_key)).status == 204
    name = owner.ids["adapter name"][0]
    assert (await place.send("GET", f"/v1/models/{name}", owner.api_key)).status == 200
    for request_id in map(UUID, owner.ids["request"]):
        await place.send("DELETE", f"/admin/v1/streams/{request_id}", place.admin_key)
    await until(lambda: not place.double.running)
