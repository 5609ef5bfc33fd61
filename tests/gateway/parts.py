"""The gateway's parts without a server in front of them: over a memory store and the double."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from engine.text.tokenizer import Tokenizer
from gateway.admission.request import of_chat
from gateway.config import Config
from gateway.generation.generation import Generation
from gateway.schemas.chat import ChatCompletionRequest
from gateway.services import Services, create_services
from tenants.store import Store
from tenants.types import Principal
from tests.gateway.engine_double import EngineDouble
from tests.gateway.serving import SECRETS, chat_body, double_client, encode, make_config
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_key


@dataclass
class Parts:
    """Services, their engine, and somebody who asks."""

    services: Services
    double: EngineDouble
    principal: Principal

    async def begin(self, text: str = "hi", **fields: Any) -> Generation:
        """A request that runs. Raises as ``Admission`` does."""
        request = msgspec.json.decode(encode(chat_body(text, **fields)), type=ChatCompletionRequest)
        asked = of_chat(request, request_id=uuid4(), principal=self.principal)
        admitted = await self.services.admission.admit(asked)
        return self.services.generations.begin(admitted)

    async def answer(self, generation: Generation) -> str:
        """Reads to the end, as a route does. Raises ``ApiError``."""
        try:
            async with aclosing(generation.deltas()) as deltas:
                return "".join([delta.content async for delta in deltas])
        finally:
            generation.close()


def with_journal(config: Config, folder: Path) -> Config:
    tenants = msgspec.structs.replace(config.tenants, journal_dir=str(folder))
    return msgspec.structs.replace(config, tenants=tenants)


@asynccontextmanager
async def parts(
    model_dir: Path,
    journal: Path,
    *,
    store: Store | None = None,
    tenant_name: str = "acme",
    **server: Any,
) -> AsyncIterator[Parts]:
    """Not started; closed at the end, whatever the test has done of it."""
    store = store or MemoryStore()
    config = with_journal(make_config(model_dir, **server), journal)
    double = EngineDouble(Tokenizer.load(model_dir))
    engine = double_client(config, double)
    await engine.start()
    _, principal = await make_key(store, tenant_name)
    services = create_services(config, engine=engine, store=store, secrets=SECRETS)
    try:
        yield Parts(services, double, principal)
    finally:
        await services.lifecycle.close()
