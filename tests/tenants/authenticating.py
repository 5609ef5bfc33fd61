"""Authenticators on a clock moved by hand, over a store that is watched."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from tenants import keys
from tenants.authenticator import Authenticator, CacheBounds
from tenants.errors import StoreUnavailable
from tenants.last_used import LastUsed
from tenants.store import Store
from tenants.types import KeyRecord
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import PEPPER

TTL_S, NEGATIVE_TTL_S, MAX_STALE_S = 30.0, 2.0, 60.0
START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """Both of the authenticator's clocks, moved by hand."""

    def __init__(self) -> None:
        self.elapsed_s = 1000.0

    def monotonic(self) -> float:
        return self.elapsed_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s - 1000.0)


class WatchedStore(MemoryStore):
    """Counts the lookups, and can be away or slow."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups: list[str] = []
        self.away = False
        self.gate: asyncio.Event | None = None

    async def find_key(self, public_id: str) -> KeyRecord | None:
        self.lookups.append(public_id)
        if self.away:
            raise StoreUnavailable("away")
        record = await super().find_key(public_id)
        if self.gate is not None:
            await self.gate.wait()
        return record


def build(
    store: Store, clock: Clock, *, last_used: LastUsed | None = None, **bounds: int
) -> Authenticator:
    return Authenticator(
        store,
        PEPPER,
        CacheBounds(TTL_S, NEGATIVE_TTL_S, MAX_STALE_S, **bounds),
        last_used=last_used,
        clock=clock.monotonic,
        now=clock.now,
    )


def forge(public_id: str) -> str:
    """A key with somebody's public id, a right checksum and a guessed secret."""
    body = f"sk-slc-{public_id}-" + "A" * 40
    return f"{body}-{keys._checksum(body)}"
