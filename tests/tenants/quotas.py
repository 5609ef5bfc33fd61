"""Quotas over a store that is watched, and what tests ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID, uuid4

from tenants.errors import StoreUnavailable
from tenants.limits import Balance, Price, QuotaAnswer, QuotaRequest
from tenants.quota import Hold, Quota
from tenants.store import Store
from tenants.types import Principal
from tenants.usage import Ledger
from tests.memory_store.store import MemoryStore
from tests.tenants.reserving import Clock, put
from tests.tenants.samples import make_event, make_key


class Timed(Protocol):
    """A store on a clock moved by hand."""

    time: Clock


class WatchedStore(MemoryStore):
    """Counts what is asked about quota, and can be away or slow."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(now=self.time)
        self.away = False
        self.gate: asyncio.Event | None = None
        self.num_reserves = 0
        self.num_extends = 0
        self.patience_s = 0.0
        self.num_releases = 0

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        self.num_releases += 1
        return await super().release(tenant_id, request_id)

    async def balances(self, scope_ids: Sequence[UUID]) -> Sequence[Balance]:
        if self.away:
            raise StoreUnavailable("away")
        return await super().balances(scope_ids)

    async def reserve(self, request: QuotaRequest) -> QuotaAnswer:
        self.num_reserves += 1
        if self.away:
            raise StoreUnavailable("away")
        answer = await super().reserve(request)
        if self.gate is not None:
            await self.gate.wait()
        return answer

    async def extend(
        self,
        tenant_id: UUID,
        request_id: UUID,
        *,
        tokens: int,
        generated: int,
        lease: timedelta,
        patience_s: float = 0.0,
    ) -> int | None:
        self.num_extends += 1
        self.patience_s = patience_s
        if self.away:
            raise StoreUnavailable("away")
        granted = await super().extend(
            tenant_id, request_id, tokens=tokens, generated=generated, lease=lease
        )
        if self.gate is not None:
            await self.gate.wait()
        return granted


async def make(store: Store, kind: str = "tenant", **limits: object) -> Principal:
    """A principal with these limits, as the authenticator would give it."""
    _, who = await make_key(store, str(uuid4()))
    if limits:
        await put(store, who, kind, **limits)
    record = await store.find_key(who.key.public_id)
    assert record is not None
    return record.principal


async def take(
    quota: Quota,
    who: Principal,
    prompt: int = 10,
    most: int = 1000,
    *,
    price: Price | None = None,
) -> Hold:
    return await quota.reserve(
        who, request_id=uuid4(), model="demo", prompt_tokens=prompt, max_tokens=most, price=price
    )


def seconds_of(store: Timed) -> Callable[[], float]:
    """The store's clock as a process would have it."""
    return lambda: store.time.now.timestamp()


async def settle(store: Store, who: Principal, hold: Hold, prompt: int = 10) -> None:
    event = make_event(
        who.key,
        request_id=hold.request_id,
        prompt_tokens=prompt,
        cached_tokens=0,
        completion_tokens=hold.generated,
    )
    await Ledger(store).settle(event)
    await hold.close()


async def more(hold: Hold, tokens: int = 256) -> int:
    """What ``allowed`` is once a question for more is answered."""
    hold.ask(tokens)
    if hold._extending is not None:
        await asyncio.wait([hold._extending])
    return hold.allowed
