"""The gateway on a real port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.text.tokenizer import Tokenizer
from gateway import config as configuration
from gateway import secrets
from gateway.app import create_app
from gateway.config import Config
from gateway.oidc.sign_in import SignIn
from gateway.processes.server import Server, bind, url_of
from tenants.keys import mint
from tenants.store import Store
from tenants.types import Scope, Tenant, UsageSum
from tests.gateway.engine_double import EngineDouble
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore

if TYPE_CHECKING:  # it takes most of a second, which programs that are no clients need not wait for
    from openai import AsyncOpenAI

SECRETS = secrets.generate()
MODEL = "tiny"


_TLS = ssl.create_default_context()


@dataclass
class Gateway:
    """A running server and what a test needs of it."""

    url: str
    api_key: str
    tenant: Tenant
    store: Store
    app: Starlette
    server: Server
    engine: Fleet

    @property
    def authenticator(self) -> SignIn:
        found: SignIn = self.app.state.services.authenticator
        return found

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/chat"

    @property
    def host(self) -> str:
        return self.url.rpartition("/")[2].rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def openai(self, **options: Any) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if "http_client" not in options:
            # Each client would read all certificates anew, which takes longer than most tests.
            options["http_client"] = DefaultAsyncHttpxClient(verify=_TLS)
        merged: dict[str, Any] = {"api_key": self.api_key, "max_retries": 0, **options}
        return AsyncOpenAI(base_url=f"{self.url}/v1", **merged)

    async def key(self, *scopes: Scope) -> str:
        minted = mint(SECRETS.key_pepper)
        await self.store.create_key(
            self.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="another",
            scopes=scopes,
        )
        return minted.text

    async def usage(self, requests: int = 1) -> UsageSum:
        """The ledger's sums, once it holds so many requests."""
        totals = UsageSum()

        async def settled() -> bool:
            nonlocal totals
            totals = await usage_totals(self.store, self.tenant.id)
            return totals.requests >= requests

        await until(settled)
        return totals


MOMENT_S = 1.0
"""Until the engine has dropped what a client left: under 0.1 where nothing else is computed."""


def make_config(
    model_dir: Path,
    *,
    engine: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
    **server: Any,
) -> Config:
    document = {
        "engine": {"model": str(model_dir)} | dict(engine or {}),
        "models": {"served_model_name": MODEL} | dict(models or {}),
        "server": {"port": 0, "flush_interval_ms": 0, "shutdown_timeout_s": 5.0} | server,
        "images": dict(images or {}),
    }
    return configuration.parse(document)


class PromptServer(Server):
    """Looks more often than every 100 ms whether it should end: tests start and stop many."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 (uvicorn's flag is no event)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(
    config: Config,
    engine: Fleet | Fleets,
    *,
    store: Store | None = None,
    started: bool = True,
    beside: Gateway | None = None,
) -> AsyncIterator[Gateway]:
    """Serve until the block ends; then nothing is left running.

    ``beside``: another worker, whose tenant and key are this one's too.
    """
    store = store or MemoryStore()
    tenant = await store.create_tenant("acme") if beside is None else beside.tenant
    if started:
        await engine.start()
    journal = tempfile.TemporaryDirectory(prefix="sluice-test-")
    tenants = msgspec.structs.replace(config.tenants, journal_dir=journal.name)
    config = msgspec.structs.replace(config, tenants=tenants)
    app = create_app(config, engine=engine, store=store, secrets=SECRETS)
    listener = bind(config.server)
    server = PromptServer(app, config.server)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    first = engine if isinstance(engine, Fleet) else next(iter(engine.values()))
    gateway = Gateway(url_of(listener), "", tenant, store, app, server, first)
    gateway.api_key = await gateway.key("chat") if beside is None else beside.api_key
    try:
        await until(lambda: server.started or serving.done())
        yield gateway
    finally:
        server.should_exit = True
        await serving
        listener.close()
        journal.cleanup()


def double_client(
    config: Config, *doubles: EngineDouble, failover_wait_s: float = 0.0, **options: Any
) -> Fleet:
    """Engines that play scripts. When one dies, its streams fail at once unless another is ready,
    or ``failover_wait_s`` is set."""
    return Fleet(
        [
            EngineClient(config.engine, transport=double, name=str(number), **options)
            for number, double in enumerate(doubles)
        ],
        failover_wait_s=failover_wait_s,
    )


@asynccontextmanager
async def served_double(
    model_dir: Path, *, max_model_len: int = 2048, **server: Any
) -> AsyncIterator[tuple[Gateway, EngineDouble]]:
    """The usual case: a memory store and the engine double."""
    config = make_config(model_dir, **server)
    double = EngineDouble(Tokenizer.load(model_dir), max_model_len=max_model_len)
    async with served(config, double_client(config, double)) as gateway:
        yield gateway, double


async def until(condition: Callable[[], Any], *, within_s: float = 30.0) -> None:
    """Wait for ``condition``, a function or a coroutine function."""
    async with asyncio.timeout(within_s):
        while True:
            holds = condition()
            if asyncio.iscoroutine(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(0.005)


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)
