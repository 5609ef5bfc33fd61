"""The admin API of adapters and what clients see of them, over an engine that plays along."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from engine.text.tokenizer import Tokenizer
from tenants.changes import Change
from tenants.keys import mint
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import exchange, get, post
from tests.gateway.routes.test_admin import Admin, admin_of
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

pytestmark = pytest.mark.asyncio


class Setup(NamedTuple):
    gateway: Gateway
    double: EngineDouble
    admin: Admin
    folder: Path

    @property
    def path(self) -> str:
        return f"/tenants/{self.gateway.tenant.id}/adapters"

    async def load(self, name: str = "support", path: str = "acme/support") -> dict[str, Any]:
        made: dict[str, Any] = await self.admin.ok("POST", self.path, {"name": name, "path": path})
        return made

    async def another_tenant(self, **fields: Any) -> str:
        """Its key."""
        tenant = await self.gateway.store.create_tenant(f"t{uuid4()}")
        return await self.key(tenant.id, **fields)

    async def key(self, tenant_id: UUID, **fields: Any) -> str:
        minted = mint(SECRETS.key_pepper)
        await self.gateway.store.create_key(
            tenant_id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="k",
            scopes=["chat"],
            **fields,
        )
        return minted.text


@pytest_asyncio.fixture
async def setup(model_dir: Path, tmp_path: Path) -> AsyncIterator[Setup]:
    for name in ("acme/support", "acme/sales", "acme/bad"):
        folder = tmp_path / "adapters" / name
        folder.mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (folder / file).touch()
    config = make_config(
        model_dir,
        engine={"enable_lora": True},
        models={"adapters_dir": str(tmp_path / "adapters")},
    )
    double = EngineDouble(Tokenizer.load(model_dir))
    async with served(config, double_client(config, double)) as gateway:
        yield Setup(gateway, double, await admin_of(gateway), tmp_path)


async def ask(setup: Setup, model: str, key: str | None = None, **fields: Any) -> Any:
    body = encode(chat_body(model=model, **fields))
    return await exchange(setup.gateway, post(setup.gateway, body, key=key))


async def test_from_loading_to_unloading(setup: Setup) -> None:
    made = await setup.load()
    assert made["object"] == "adapter"
    assert (made["name"], made["path"], made["parent"]) == ("support", "acme/support", MODEL)
    assert (made["rank"], made["base_model"], made["digest"]) == (8, "some/base", "digest")
    assert (await setup.admin.ok("GET", setup.path))["data"] == [made]
    (ref,) = setup.double.loaded
    assert ref.path == str(setup.folder / "adapters/acme/support")
    assert ref.name == UUID(made["id"]).hex

    answer = await ask(setup, "support")
    assert answer.status == 200
    assert answer.json()["model"] == "support"
    asked = setup.double.requests[-1].adapter
    assert asked is not None
    assert (asked.name, asked.path, asked.digest) == (ref.name, ref.path, "digest")
    await ask(setup, MODEL)
    assert setup.double.requests[-1].adapter is None

    gone = await setup.admin.ok("DELETE", f"{setup.path}/support")
    assert gone == {"id": made["id"], "name": "support", "deleted": True, "object": gone["object"]}
    assert (await ask(setup, "support")).status == 404
    assert (await setup.admin.ok("GET", setup.path))["data"] == []
    await until(lambda: setup.double.unloaded == [ref.name])
    assert (await setup.load())["id"] != made["id"]
    assert (await ask(setup, "support")).status == 200


async def test_models_list_it_for_its_tenant_alone(setup: Setup) -> None:
    made = await setup.load()
    other = await setup.another_tenant()

    async def listed(key: str) -> list[Any]:
        answer = await get(setup.gateway, "/v1/models", authorization=f"Bearer {key}")
        found: list[Any] = answer.json()["data"]
        return found

    base, adapter = await listed(setup.gateway.api_key)
    assert (base["id"], base["parent"]) == (MODEL, None)
    assert (adapter["id"], adapter["parent"]) == ("support", MODEL)
    assert (adapter["owned_by"], adapter["created"]) == ("acme", made["created_at"])
    assert [model["id"] for model in await listed(other)] == [MODEL]
    path = "/v1/models/support"
    mine = await get(setup.gateway, path, authorization=f"Bearer {setup.gateway.api_key}")
    assert mine.json() == adapter
    theirs = await get(setup.gateway, path, authorization=f"Bearer {other}")
    nobodys = await get(setup.gateway, path + "x", authorization=f"Bearer {other}")
    assert (theirs.status, nobodys.status) == (404, 404)
    assert theirs.error["message"] == nobodys.error["message"].replace("supportx", "support")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", chat_body()),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/tokenize", {"prompt": "hi"}),
    ],
)
async def test_another_tenants_is_like_one_that_does_not_exist(
    setup: Setup, route: str, body: dict[str, Any]
) -> None:
    await setup.load()
    other = await setup.another_tenant()
    setup.double.script = lambda _: Play(text="ok")

    async def send(model: str, key: str) -> Any:
        raw = encode(body | {"model": model})
        return await exchange(setup.gateway, post(setup.gateway, raw, path=route, key=key))

    mine = await send("support", setup.gateway.api_key)
    assert mine.status == 200
    if route != "/v1/tokenize":
        assert mine.json()["model"] == "support"
    theirs, nobodys = await send("support", other), await send("supporx", other)
    assert theirs.status == nobodys.status == 404
    assert theirs.error == {
        **nobodys.error,
        "message": nobodys.error["message"].replace("supporx", "support"),
    }


async def test_on_a_websocket(setup: Setup) -> None:
    await setup.load()
    async with ready(setup.gateway) as socket:
        await socket.chat("t", "hi", model="support")
        events = await socket.turn("t")
    assert events[-1]["type"] != "error", events
    asked = setup.double.requests[-1].adapter
    assert asked is not None


async def test_usage_and_metrics_carry_its_name(setup: Setup) -> None:
    await setup.load()
    await ask(setup, "support")
    await ask(setup, MODEL)
    await setup.gateway.usage(2)
    rows = (await setup.admin.ok("GET", "/usage?group_by=model"))["data"]
    assert sorted(row["model"] for row in rows) == ["support", MODEL]
    key = f"Bearer {await setup.gateway.key('admin')}"
    text = (await get(setup.gateway, "/metrics", authorization=key)).body.decode()
    assert 'sluice_generations_total{model="support",status="stop"} 1.0' in text


async def test_keys_are_bound_to_it(setup: Setup) -> None:
    await setup.load()
    bound = await setup.key(setup.gateway.tenant.id, allowed_models=["support"])
    assert (await ask(setup, "support", bound)).status == 200
    refused = await ask(setup, MODEL, bound)
    assert refused.status == 403
    base_only = await setup.key(setup.gateway.tenant.id, allowed_models=[MODEL])
    assert (await ask(setup, "support", base_only)).status == 403
    aliased = await setup.key(setup.gateway.tenant.id, model_aliases={"gpt-4": "support"})
    assert (await ask(setup, "gpt-4", aliased)).json()["model"] == "support"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../outside", "Must be a folder below models.adapters_dir."),
        ("acme/../../outside", "Must be a folder below models.adapters_dir."),
        ("/etc", "Must be a folder below models.adapters_dir."),
        ("", "Must be a folder below models.adapters_dir."),
        (".", "Must be a folder below models.adapters_dir."),
        ("link", "Must be a folder below models.adapters_dir."),
        ("linked", "adapter_config.json is a link that leads out"),
        ("nowhere", "There is no folder 'nowhere'"),
        ("acme/support/adapter_config.json", "There is no folder"),
        ("a\0b", "Not a path."),
        ("x" * 5000, "Not a path."),
    ],
)
async def test_paths_that_are_refused(setup: Setup, path: str, message: str) -> None:
    outside = setup.folder / "outside"
    outside.mkdir()
    (outside / "adapter_config.json").touch()
    root = setup.folder / "adapters"
    (root / "link").symlink_to(outside)
    (root / "linked").mkdir()
    (root / "linked/adapter_config.json").symlink_to(outside / "adapter_config.json")
    error = await setup.admin.error(400, "POST", setup.path, {"name": "x", "path": path})
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == "path"
    assert setup.double.loaded == []


async def test_an_absolute_path_inside_is_fine(setup: Setup) -> None:
    made = await setup.load(path=str(setup.folder / "adapters" / "acme" / "support"))
    assert made["path"] == "acme/support"


async def test_what_the_engine_refuses_leaves_nothing(setup: Setup) -> None:
    body = {"name": "x", "path": "acme/bad"}
    error = await setup.admin.error(400, "POST", setup.path, body)
    assert error["message"] == "path: r is 99, but max_lora_rank is 16"
    assert (error["code"], error["param"]) == ("invalid_adapter", "path")
    assert (await setup.admin.ok("GET", setup.path))["data"] == []
    await until(lambda: len(setup.double.unloaded) == 1)


async def test_names_and_tenants_that_are_refused(setup: Setup) -> None:
    await setup.load()
    body = {"name": "support", "path": "acme/sales"}
    error = await setup.admin.error(409, "POST", setup.path, body)
    assert "named 'support' already" in error["message"]
    await setup.admin.error(409, "POST", setup.path, body | {"name": MODEL})
    await setup.admin.error(400, "POST", setup.path, body | {"name": " "})
    error = await setup.admin.error(400, "POST", setup.path, body | {"rank": 3})
    assert error["param"] == "rank"
    for method, payload in (("POST", body), ("GET", None)):
        await setup.admin.error(404, method, f"/tenants/{uuid4()}/adapters", payload)
    error = await setup.admin.error(404, "DELETE", f"{setup.path}/sales")
    assert error["message"] == "The tenant has no adapter 'sales'."
    assert len(setup.double.loaded) == 1


async def test_admins_alone(setup: Setup) -> None:
    user = Admin(setup.gateway, setup.gateway.api_key)
    for method in ("POST", "GET"):
        await user.error(403, method, setup.path, {"name": "x", "path": "acme/sales"})
    await user.error(403, "DELETE", f"{setup.path}/support")


async def test_the_same_name_for_two_tenants(setup: Setup) -> None:
    await setup.load(path="acme/support")
    other = await setup.another_tenant()
    (tenant,) = [t for t in await setup.gateway.store.list_tenants() if t.name != "acme"]
    body = {"name": "support", "path": "acme/sales"}
    await setup.admin.ok("POST", f"/tenants/{tenant.id}/adapters", body)
    for key, path in ((None, "support"), (other, "sales")):
        assert (await ask(setup, "support", key)).status == 200
        asked = setup.double.requests[-1].adapter
        assert asked is not None
        assert asked.path.endswith(f"acme/{path}")


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [("adapter_unloaded", 404, "model_not_found"), ("adapter_unavailable", 503, None)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_finds_out_later(
    setup: Setup, code: str, status: int, said: str | None, stream: bool
) -> None:
    await setup.load()
    setup.double.script = lambda _: Play(error="/srv/secret/path", error_code=code)
    answer = await ask(setup, "support", stream=stream)
    assert answer.status == status
    assert answer.error["code"] == said or code
    assert "secret" not in answer.error["message"]


async def test_one_deleted_by_another_worker_is_forgotten_here(setup: Setup) -> None:
    made = await setup.load()
    adapter_id = UUID(made["id"])
    await ask(setup, "support")
    await setup.gateway.store.delete_adapter(setup.gateway.tenant.id, adapter_id)
    on_change = setup.gateway.app.state.services.revocations.on_change
    on_change(Change(tenant_id=setup.gateway.tenant.id))
    on_change(Change(adapter_id=adapter_id))
    assert (await ask(setup, "support")).status == 404
    await until(lambda: setup.double.unloaded == [adapter_id.hex])


async def test_while_the_engine_is_away(setup: Setup) -> None:
    made = await setup.load()
    setup.double.crash()
    body = {"name": "sales", "path": "acme/sales"}
    assert (await setup.admin("POST", setup.path, body)).status == 503
    await setup.admin.ok("DELETE", f"{setup.path}/{made['id']}")
    assert (await setup.admin.ok("GET", setup.path))["data"] == []
    await until(lambda: setup.gateway.engine.ready)
    await setup.load()


async def test_a_server_without_adapters(gateway: Gateway) -> None:
    admin = await admin_of(gateway)
    path = f"/tenants/{gateway.tenant.id}/adapters"
    error = await admin.error(400, "POST", path, {"name": "x", "path": "y"})
    assert "set engine.enable_lora and models.adapters_dir" in error["message"]
    assert (await admin.ok("GET", path))["data"] == []


async def test_from_the_command_line(setup: Setup) -> None:
    async def sluice(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "adapter", *arguments),
            env={
                **os.environ,
                "SLUICE_API_KEY": setup.admin._key,
                "PYTHONPATH": str(Path(__file__).parents[3]),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode().strip()

    url = ("--url", setup.gateway.url)
    assert await sluice("load", "acme", "support", "acme/support", *url) == (
        0,
        "Loaded support (rank 8, made for some/base) for acme.",
    )
    code, out = await sluice("list", "acme", *url)
    assert code == 0
    assert out.split("\t")[:5] == ["support", MODEL, "8", "acme/support", "some/base"]
    code, out = await sluice("load", "acme", "bad", "acme/bad", *url)
    assert (code, out.splitlines()) == (
        1,
        [f"sluice: {setup.gateway.url}: path: r is 99, but max_lora_rank is 16"],
    )
    assert await sluice("unload", "acme", "support", *url) == (0, "Unloaded support of acme.")
    code, out = await sluice("unload", "nobody", "support", *url)
    assert (code, out) == (
        1,
        "sluice: there is no tenant 'nobody'; `sluice tenant list` shows them all",
    )
