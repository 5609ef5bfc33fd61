"""Generations over an engine double, and a store that remembers what it was told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer
from gateway.admission.admitted import Admitted
from gateway.admission.model import Model
from gateway.config import parse
from gateway.generation.compliance import ComplianceChecks
from gateway.generation.delta import Delta
from gateway.generation.flushes import Flushes
from gateway.generation.generation import Generation, Generations
from gateway.metrics.metrics import Metrics
from gateway.prompts.threads import PromptThreads
from tenants.errors import StoreUnavailable
from tenants.journal import Journal
from tenants.keys import mint
from tenants.quota import Quota
from tenants.types import Principal, UsageEvent
from tenants.usage import Ledger
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.holds import free_hold
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore


class RecordingStore(MemoryStore):
    """Remembers every event it was given, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[UsageEvent] = []
        self.away = False

    async def record_usage(self, event: UsageEvent) -> bool:
        if self.away:
            raise StoreUnavailable("gone")
        self.events.append(event)
        return await super().record_usage(event)


@dataclass
class Bench:
    generations: Generations
    model: Model
    double: EngineDouble
    store: RecordingStore
    principal: Principal
    ledger: Ledger
    quota: Quota
    tokens: list[int] = field(default_factory=lambda: [1, 2, 3])

    def begin(self, **fields: object) -> Generation:
        values: dict[str, object] = {
            "id": uuid4(),
            "principal": self.principal,
            "model": "tiny",
            "base": self.model,
            "prompts": [self.tokens],
            "params": SamplingParams(max_tokens=1000),
            "stop": (),
            "num_choices": 1,
            "make_parser": None,
            "skip_special_tokens": True,
            "cache_salt": "",
        }
        values |= fields
        if "hold" not in values:
            values["hold"] = free_hold(self.quota, self.principal, values["id"])
        return self.generations.begin(Admitted(**values))  # type: ignore[arg-type]

    async def event(self) -> UsageEvent:
        """The one event there is."""
        await until(lambda: self.store.events)
        (event,) = self.store.events
        return event


@asynccontextmanager
async def bench(
    model_dir: Path,
    *,
    flush_interval_s: float = 0.0,
    max_queued: int = 100,
    journal: Journal | None = None,
    checks: ComplianceChecks | None = None,
    **options: float,
) -> AsyncIterator[Bench]:
    tokenizer = Tokenizer.load(model_dir)
    double = EngineDouble(tokenizer, script=lambda prompt: Play(text="hello"))
    engine = Fleet(
        [
            EngineClient(
                EngineConfig(model=str(model_dir)),
                transport=double,
                max_num_queued_reqs=max_queued,
                **options,  # type: ignore[arg-type]
            )
        ],
        failover_wait_s=0.0,
    )
    await engine.start()
    store = RecordingStore()
    tenant = await store.create_tenant("acme")
    minted = mint(b"p" * 32)
    key = await store.create_key(
        tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name="key",
        scopes=["chat"],
    )
    ledger = Ledger(store, journal=journal)
    quota = Quota(store)
    generations = Generations(
        ledger=ledger,
        quota=quota,
        metrics=Metrics(),
        flushes=Flushes(flush_interval_s),
        checks=checks,
    )
    model = Model.load(parse({"engine": {"model": str(model_dir)}}), engine, PromptThreads())
    yield Bench(generations, model, double, store, Principal(tenant=tenant, key=key), ledger, quota)
    await engine.close()
    model.compiler.close()
    assert await generations.drain(5) == 0
    generations.close()
    assert await ledger.drain(5) == 0
    assert not len(generations)


async def read(generation: Generation) -> list[Delta]:
    async with aclosing(generation.deltas()) as deltas:
        return [delta async for delta in deltas]
