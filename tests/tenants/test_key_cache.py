"""The cache of keys: what it asks the store, how long a row is used, and a store that is away."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants import keys
from tenants.authenticator import RETRY_S, CacheBounds
from tenants.errors import (
    AuthenticationFailed,
    StoreUnavailable,
)
from tests.tenants.authenticating import (
    MAX_STALE_S,
    NEGATIVE_TTL_S,
    START,
    TTL_S,
    Clock,
    WatchedStore,
    build,
    forge,
)
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> WatchedStore:
    return WatchedStore()


class TestCache:
    async def test_known_key_asks_once_per_ttl(self, watched: WatchedStore, clock: Clock) -> None:
        text, _ = await make_key(watched)
        authenticator = build(watched, clock)
        for _ in range(3):
            for _ in range(10):
                await authenticator.authenticate(text)
                clock.elapsed_s += TTL_S / 10
        assert len(watched.lookups) == 3

    async def test_wrong_secrets_of_a_known_key_ask_nobody(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        for _ in range(20):
            with pytest.raises(AuthenticationFailed, match="unknown"):
                await authenticator.authenticate(forge(principal.key.public_id))
        assert len(watched.lookups) == 1

    async def test_use_does_not_lengthen_a_row_s_life(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        await watched.revoke_key(principal.key.public_id)
        for _ in range(9):
            clock.elapsed_s += TTL_S / 10
            await authenticator.authenticate(text)
        clock.elapsed_s += TTL_S / 10
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(text)

    async def test_age_counts_from_before_the_query(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        watched.gate = asyncio.Event()
        slow = asyncio.create_task(authenticator.authenticate(text))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await watched.revoke_key(principal.key.public_id)
        clock.elapsed_s += TTL_S
        watched.gate.set()
        await slow
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(text)

    async def test_forget_makes_revocation_visible_at_once(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        made = [await make_key(watched, name) for name in ("one", "two")]
        authenticator = build(watched, clock)
        for text, principal in made:
            await authenticator.authenticate(text)
            await watched.revoke_key(principal.key.public_id)
        authenticator.forget(made[0][1].key.public_id)
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(made[0][0])
        await authenticator.authenticate(made[1][0])
        authenticator.forget()
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(made[1][0])

    async def test_forget_reaches_a_lookup_under_way(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        watched.gate = asyncio.Event()
        slow = asyncio.create_task(authenticator.authenticate(text))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await watched.revoke_key(principal.key.public_id)
        authenticator.forget(principal.key.public_id)
        watched.gate.set()
        await slow
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(text)

    async def test_new_key_works_within_the_negative_ttl(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock)
        tenant = await watched.create_tenant("acme")
        minted = keys.mint(PEPPER)
        for _ in range(5):
            with pytest.raises(AuthenticationFailed, match="unknown"):
                await authenticator.authenticate(minted.text)
        assert len(watched.lookups) == 1
        key = await watched.create_key(
            tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="x",
            scopes=["chat"],
        )
        clock.elapsed_s += NEGATIVE_TTL_S
        assert (await authenticator.authenticate(minted.text)).key == key

    async def test_default_negative_ttl_is_at_most_two_seconds(self) -> None:
        assert CacheBounds().negative_ttl_s <= 2.0

    async def test_cold_key_of_many_requests_asks_once(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        found = await asyncio.gather(*(authenticator.authenticate(text) for _ in range(50)))
        assert found == [principal] * 50
        assert len(watched.lookups) == 1

    async def test_cancelled_request_does_not_fail_the_others(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        watched.gate = asyncio.Event()
        first, second = (asyncio.create_task(authenticator.authenticate(text)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        watched.gate.set()
        assert await second == principal
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_strangers_neither_grow_nor_evict(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, _ = await make_key(watched)
        authenticator = build(watched, clock, max_entries=4, max_negative_entries=8)
        await authenticator.authenticate(text)
        for _ in range(100):
            with pytest.raises(AuthenticationFailed, match="unknown"):
                await authenticator.authenticate(keys.mint(PEPPER).text)
        assert len(authenticator._unknown) == 8
        assert authenticator._lookups == {}
        await authenticator.authenticate(text)
        assert len(watched.lookups) == 101

    async def test_least_recently_used_key_leaves_first(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock, max_entries=2)
        texts = [(await make_key(watched, f"t{index}"))[0] for index in range(3)]
        for index in (0, 1, 0, 2, 0):
            await authenticator.authenticate(texts[index])
        assert len(authenticator._known) == 2
        assert len(watched.lookups) == 3
        await authenticator.authenticate(texts[1])
        assert len(watched.lookups) == 4

    async def test_a_row_that_was_read_again_counts_as_used(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock, max_entries=2)
        texts = [(await make_key(watched, f"t{index}"))[0] for index in range(3)]
        for index in (0, 1):
            await authenticator.authenticate(texts[index])
        clock.elapsed_s += TTL_S
        for index in (0, 2, 0):
            await authenticator.authenticate(texts[index])
        assert len(watched.lookups) == 4, "the first was read twice, and stayed"


class TestOutage:
    async def test_a_key_that_is_gone_does_not_come_back_with_an_outage(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, _ = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        watched._keys.clear()
        clock.elapsed_s += TTL_S
        with pytest.raises(AuthenticationFailed, match="unknown"):
            await authenticator.authenticate(text)
        watched.away = True
        clock.elapsed_s += NEGATIVE_TTL_S
        with pytest.raises((AuthenticationFailed, StoreUnavailable)):
            await authenticator.authenticate(text)

    async def test_known_key_works_from_a_stale_row_for_a_while(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        watched.away = True
        clock.elapsed_s += MAX_STALE_S - 0.001
        assert await authenticator.authenticate(text) == principal
        clock.elapsed_s += 0.001
        with pytest.raises(StoreUnavailable):
            await authenticator.authenticate(text)

    async def test_store_that_is_away_is_left_alone_for_a_moment(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, _ = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        watched.away = True
        clock.elapsed_s += TTL_S
        for _ in range(10):
            await authenticator.authenticate(text)
        assert len(watched.lookups) == 2
        watched.away = False
        clock.elapsed_s += RETRY_S
        await authenticator.authenticate(text)
        await authenticator.authenticate(text)
        assert len(watched.lookups) == 3

    async def test_stale_row_still_expires(self, watched: WatchedStore, clock: Clock) -> None:
        text, _ = await make_key(watched, expires_at=START + timedelta(seconds=40))
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        watched.away = True
        clock.elapsed_s += 40
        with pytest.raises(AuthenticationFailed, match="has expired"):
            await authenticator.authenticate(text)

    async def test_uncached_key_is_not_called_unknown(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        watched.away = True
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await authenticator.authenticate(text)
        watched.away = False
        assert await authenticator.authenticate(text) == principal


async def test_a_lookup_that_fails_when_nobody_waits_any_more_makes_no_noise(
    watched: WatchedStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    text, _ = await make_key(watched)
    go_on = asyncio.Event()

    async def fails(public_id: str) -> None:
        await go_on.wait()
        raise StoreUnavailable("away")

    monkeypatch.setattr(watched, "find_key", fails)
    asking = asyncio.create_task(build(watched, clock).authenticate(text))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go_on.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert broken == []


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("arx"), st.floats(0, 20)), max_size=30))
async def test_revocation_is_visible_within_the_ttl(steps: list[tuple[str, float]]) -> None:
    """Whatever the order of uses, revocation and outages: past its row's life a key is dead."""
    store, clock = WatchedStore(), Clock()
    text, principal = await make_key(store)
    authenticator = build(store, clock)
    revoked_at: float | None = None
    for action, wait_s in steps:
        clock.elapsed_s += wait_s
        if action == "r":
            await store.revoke_key(principal.key.public_id)
            revoked_at = clock.elapsed_s if revoked_at is None else revoked_at
        elif action == "x":
            store.away = not store.away
        else:
            try:
                await authenticator.authenticate(text)
            except StoreUnavailable:
                assert store.away
            except AuthenticationFailed:
                assert revoked_at is not None
            else:
                # The row was read before the revocation, so it is older than that.
                limit = MAX_STALE_S if store.away else max(TTL_S, RETRY_S)
                since = 0.0 if revoked_at is None else clock.elapsed_s - revoked_at
                assert since < limit + RETRY_S
