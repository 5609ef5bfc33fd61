"""Authenticates API keys, with a cache so that the store is not asked for every request.

What was used least recently is evicted. A revocation takes effect at once if a ``ChangeListener``
reports it, otherwise within ``CacheBounds.ttl_s``. Expiry is checked at every call. While the store
is away, a key that is not cached is answered with ``StoreUnavailable``, never as unknown.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from tenants.changes import EVERYTHING, Change
from tenants.errors import (
    AuthenticationFailed,
    StoreUnavailable,
)
from tenants.keys import check_pepper, hash_key, parse
from tenants.last_used import LastUsed
from tenants.names import KEY_HASH_BYTES
from tenants.store import Store
from tenants.types import KeyRecord, Principal

RETRY_S = 1.0
"""How long a store that did not answer is not asked again, if there is a usable row."""

_NOBODY = bytes(KEY_HASH_BYTES)
"""Compared with if the key is unknown, so that unknown keys take as long as known ones."""


class _Entry(NamedTuple):
    record: KeyRecord | None
    fetched_at: float


class CacheBounds(NamedTuple):
    """For how long keys are cached, and how many."""

    ttl_s: float = 30.0
    negative_ttl_s: float = 2.0
    """For public ids that are unknown."""
    max_stale_s: float = 60.0
    """While the store is away; at least ``ttl_s``."""
    max_entries: int = 10_000
    max_negative_entries: int = 1_000


DEFAULT_BOUNDS = CacheBounds()


class Authenticator:
    """Finds the principals of API keys. One per process; safe for concurrent tasks."""

    def __init__(
        self,
        store: Store,
        pepper: bytes,
        bounds: CacheBounds = DEFAULT_BOUNDS,
        *,
        last_used: LastUsed | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._pepper = check_pepper(pepper)
        self._bounds = bounds._replace(max_stale_s=max(bounds.max_stale_s, bounds.ttl_s))
        self._last_used = last_used
        self._clock = clock
        self._now = now
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._unknown: OrderedDict[str, _Entry] = OrderedDict()
        self._away_until = -math.inf
        self._distrusted_at = -math.inf
        # Concurrent requests with a key that is not cached share one query.
        self._lookups: dict[str, asyncio.Task[KeyRecord | None]] = {}

    async def authenticate(self, text: str) -> Principal:
        """The principal of a key.

        Raises ``AuthenticationFailed`` (before any query if the key is malformed), or
        ``StoreUnavailable`` if the store is away and the key is not cached. Without the right
        secret, any existing key is reported as unknown.
        """
        parsed = parse(text)
        record = await self._find(parsed.public_id)
        key_hash = hash_key(text, self._pepper)
        expected = _NOBODY if record is None else record.key_hash
        if not hmac.compare_digest(key_hash, expected) or record is None:
            raise AuthenticationFailed("unknown", parsed.public_id)
        principal = self._judge(record.principal)
        if self._last_used is not None:
            self._last_used.note(principal.key.id)
        return principal

    async def check(self, public_id: str) -> Principal:
        """The principal of a key that was authenticated before. Raises as ``authenticate`` if it
        is no longer valid."""
        record = await self._find(public_id)
        if record is None:
            raise AuthenticationFailed("unknown", public_id)
        return self._judge(record.principal)

    def has_ended(self, principal: Principal) -> bool:
        """Whether the key is no longer valid, as far as the cache knows.

        The store is not asked: changes by administrators arrive through ``apply``.
        """
        entry = self._known.get(principal.key.public_id)
        known = None if entry is None else entry.record
        try:
            self._judge(principal if known is None else known.principal)
        except AuthenticationFailed:
            return True
        return False

    def forget(self, public_id: str | None = None) -> None:
        """Drop this key from the cache, or all keys, so that the store is asked again."""
        if public_id is None:
            self._known.clear()
            self._unknown.clear()
            self._lookups.clear()
            return
        self._known.pop(public_id, None)
        self._unknown.pop(public_id, None)
        self._lookups.pop(public_id, None)

    def distrust(self) -> None:
        """Ask the store again for every key. While it is away, cached rows are still used."""
        self._distrusted_at = self._clock()
        self._lookups.clear()

    def apply(self, change: Change) -> None:
        """Drop what has changed. It is the ``on_change`` of a ``ChangeListener``."""
        if change == EVERYTHING:
            self.distrust()
            return
        if change.tenant_id is None:
            self.forget(change.public_id)
            return
        # Lookups in flight may have read a row before the change, and of which tenant is not known
        # yet.
        self._lookups.clear()
        for public_id, entry in list(self._known.items()):
            assert entry.record is not None
            if entry.record.principal.tenant.id == change.tenant_id:
                del self._known[public_id]

    def _judge(self, principal: Principal) -> Principal:
        key, now = principal.key, self._now()
        if key.revoked_at is not None or (key.revoke_at is not None and key.revoke_at <= now):
            raise AuthenticationFailed("revoked", key.public_id)
        if key.expires_at is not None and key.expires_at <= now:
            raise AuthenticationFailed("expired", key.public_id)
        if principal.tenant.disabled_at is not None:
            raise AuthenticationFailed("disabled", key.public_id)
        return principal

    async def _find(self, public_id: str) -> KeyRecord | None:
        entry = self._cached(public_id)
        if entry is not None:
            return entry.record
        stale = self._known.get(public_id)
        usable = stale is not None and self._clock() - stale.fetched_at < self._bounds.max_stale_s
        if stale is not None and usable and self._clock() < self._away_until:
            return stale.record
        try:
            return await asyncio.shield(self._lookup(public_id))
        except StoreUnavailable:
            self._away_until = self._clock() + RETRY_S
            if stale is None or not usable:
                raise
            return stale.record

    def _cached(self, public_id: str) -> _Entry | None:
        """A fresh entry, which becomes the one used most recently; None if there is none."""
        bounds = self._bounds
        for cache, ttl_s in ((self._known, bounds.ttl_s), (self._unknown, bounds.negative_ttl_s)):
            entry = cache.get(public_id)
            if entry is None or entry.fetched_at <= self._distrusted_at:
                continue
            if self._clock() - entry.fetched_at < ttl_s:
                cache.move_to_end(public_id)
                return entry
        return None

    def _lookup(self, public_id: str) -> asyncio.Task[KeyRecord | None]:
        task = self._lookups.get(public_id)
        if task is None:
            task = asyncio.create_task(self._store_lookup(public_id), name=f"find_key {public_id}")
            self._lookups[public_id] = task
            task.add_done_callback(lambda done: self._end_lookup(public_id, done))
        return task

    async def _store_lookup(self, public_id: str) -> KeyRecord | None:
        # The age counts from before the query, because the row may change while it is under way.
        fetched_at = self._clock()
        record = await self._store.find_key(public_id)
        if self._lookups.get(public_id) is asyncio.current_task():
            self._keep(public_id, _Entry(record, fetched_at))
        return record

    def _end_lookup(self, public_id: str, task: asyncio.Task[KeyRecord | None]) -> None:
        if self._lookups.get(public_id) is task:
            del self._lookups[public_id]
        if not task.cancelled():
            task.exception()  # All callers may have been cancelled; asyncio would log it then.

    def _keep(self, public_id: str, entry: _Entry) -> None:
        if entry.record is None:
            self._known.pop(public_id, None)
            cache, max_entries = self._unknown, self._bounds.max_negative_entries
        else:
            self._unknown.pop(public_id, None)
            cache, max_entries = self._known, self._bounds.max_entries
        cache[public_id] = entry
        cache.move_to_end(public_id)
        while len(cache) > max_entries:
            cache.popitem(last=False)
