from __future__ import annotations

import asyncio
import contextlib
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants import keys
from tenants.authenticator import RETRY_S, Authenticator
from tenants.changes import EVERYTHING, Change
from tenants.errors import (
    DisabledTenant,
    ExpiredKey,
    InvalidValue,
    MalformedKey,
    RevokedKey,
    StoreUnavailable,
    UnknownKey,
)
from tenants.last_used import LastUsed
from tenants.memory import MemoryStore
from tenants.store import Store
from tenants.types import KeyRecord
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio

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


def build(store: Store, clock: Clock, **limits: Any) -> Authenticator:
    return Authenticator(
        store,
        PEPPER,
        ttl_s=TTL_S,
        negative_ttl_s=NEGATIVE_TTL_S,
        max_stale_s=MAX_STALE_S,
        clock=clock.monotonic,
        now=clock.now,
        **limits,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> WatchedStore:
    return WatchedStore()


class TestAnswers:
    async def test_good_key_gives_its_principal(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        assert await build(store, clock).authenticate(text) == principal

    async def test_each_key_gives_its_own_tenant(self, store: Store, clock: Clock) -> None:
        authenticator = build(store, clock)
        made = [await make_key(store, f"tenant {index}") for index in range(5)]
        for text, principal in made * 2:
            assert await authenticator.authenticate(text) == principal

    async def test_malformed_key_asks_nobody(self, watched: WatchedStore, clock: Clock) -> None:
        text, _ = await make_key(watched)
        for bad in (
            "",
            "sk-abc",
            text[:-1],
            text + "x",
            text.replace("slc", "abc"),
            "\0",
            "\ud800",
        ):
            with pytest.raises(MalformedKey):
                await build(watched, clock).authenticate(bad)
        assert watched.lookups == []

    async def test_unknown_key(self, store: Store, clock: Clock) -> None:
        stranger = keys.mint(PEPPER)
        with pytest.raises(UnknownKey, match=stranger.public_id) as caught:
            await build(store, clock).authenticate(stranger.text)
        assert stranger.text.split("-")[3] not in str(caught.value)

    async def test_right_public_id_with_wrong_secret(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        authenticator = build(store, clock)
        forged = forge(principal.key.public_id)
        for _ in range(2):  # cold, then cached
            with pytest.raises(UnknownKey):
                await authenticator.authenticate(forged)
            assert await authenticator.authenticate(text) == principal

    async def test_other_pepper_knows_nobody(self, store: Store) -> None:
        text, _ = await make_key(store)
        with pytest.raises(UnknownKey):
            await Authenticator(store, b"another pepper, as long").authenticate(text)

    async def test_short_pepper_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="pepper"):
            Authenticator(MemoryStore(), b"short")

    async def test_only_the_holder_learns_of_revocation(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        await store.revoke_key(principal.key.public_id)
        authenticator = build(store, clock)
        with pytest.raises(RevokedKey, match=principal.key.public_id):
            await authenticator.authenticate(text)
        with pytest.raises(UnknownKey):
            await authenticator.authenticate(forge(principal.key.public_id))

    async def test_replaced_key_ends_with_its_grace(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        await store.rotate_key(
            principal.key.public_id,
            new_public_id="B" * 12,
            key_hash=bytes(32),
            grace=timedelta(hours=1),
        )
        authenticator = build(store, clock)
        record = await store.find_key(principal.key.public_id)
        assert record is not None
        revoke_at = record.principal.key.revoke_at
        assert revoke_at is not None
        clock.elapsed_s += (revoke_at - clock.now()).total_seconds() - 0.001
        assert (await authenticator.authenticate(text)).key.id == principal.key.id
        clock.elapsed_s += 0.002
        with pytest.raises(RevokedKey, match=principal.key.public_id):
            await authenticator.authenticate(text)

    async def test_the_moment_of_its_end_is_after_a_keys_life(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        _, principal = await make_key(watched)
        authenticator = build(watched, clock)
        ends = {"revoke_at": RevokedKey, "expires_at": ExpiredKey}
        for field, error in ends.items():
            for seconds, is_over in ((0, True), (1, False)):
                end = clock.now() + timedelta(seconds=seconds)
                key = msgspec.structs.replace(principal.key, **{field: end})
                with pytest.raises(error) if is_over else contextlib.nullcontext():
                    authenticator._judge(msgspec.structs.replace(principal, key=key))

    async def test_a_key_that_was_proven_is_checked_by_its_id(
        self, store: Store, clock: Clock
    ) -> None:
        _, principal = await make_key(store)
        public_id = principal.key.public_id
        assert await build(store, clock).check(public_id) == principal
        with pytest.raises(UnknownKey):
            await build(store, clock).check("A" * 12)
        await store.revoke_key(public_id)
        with pytest.raises(RevokedKey):
            await build(store, clock).check(public_id)

    async def test_disabled_tenant(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        await store.update_tenant(principal.tenant.id, disabled=True)
        with pytest.raises(DisabledTenant, match=principal.key.public_id):
            await build(store, clock).authenticate(text)
        await store.update_tenant(principal.tenant.id, disabled=False)
        assert await build(store, clock).authenticate(text) == principal

    async def test_expiry_is_seen_at_once_though_cached(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store, expires_at=START + timedelta(seconds=5))
        authenticator = build(store, clock)
        assert await authenticator.authenticate(text) == principal
        clock.elapsed_s += 4.999
        assert await authenticator.authenticate(text) == principal
        clock.elapsed_s += 0.001
        with pytest.raises(ExpiredKey, match=principal.key.public_id):
            await authenticator.authenticate(text)


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
            with pytest.raises(UnknownKey):
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
        with pytest.raises(RevokedKey):
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
        with pytest.raises(RevokedKey):
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
        with pytest.raises(RevokedKey):
            await authenticator.authenticate(made[0][0])
        await authenticator.authenticate(made[1][0])
        authenticator.forget()
        with pytest.raises(RevokedKey):
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
        with pytest.raises(RevokedKey):
            await authenticator.authenticate(text)

    async def test_new_key_works_within_the_negative_ttl(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock)
        tenant = await watched.create_tenant("acme")
        minted = keys.mint(PEPPER)
        for _ in range(5):
            with pytest.raises(UnknownKey):
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
        assert Authenticator(MemoryStore(), PEPPER)._negative_ttl_s <= 2.0

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
            with pytest.raises(UnknownKey):
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
        with pytest.raises(UnknownKey):
            await authenticator.authenticate(text)
        watched.away = True
        clock.elapsed_s += NEGATIVE_TTL_S
        with pytest.raises((UnknownKey, StoreUnavailable)):
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
        with pytest.raises(ExpiredKey):
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


class TestChanges:
    """What a ``ChangeListener`` tells; over PostgreSQL: ``test_changes``."""

    async def test_a_key_that_changed_is_asked_for_again_and_no_other(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock)
        made = [await make_key(watched, name) for name in ("one", "two")]
        for text, _ in made:
            await authenticator.authenticate(text)
        changed = made[0][1].key.public_id
        watched.lookups.clear()
        authenticator.apply(Change(public_id=changed))
        for text, _ in made:
            await authenticator.authenticate(text)
        assert watched.lookups == [changed]

    async def test_a_tenant_that_changed_has_all_its_keys_asked_for_again(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        authenticator = build(watched, clock)
        (text, one), (other_text, _) = [await make_key(watched, name) for name in ("one", "two")]
        for presented in (text, other_text):
            await authenticator.authenticate(presented)
        await watched.update_tenant(one.tenant.id, disabled=True)
        watched.lookups.clear()
        authenticator.apply(Change(tenant_id=one.tenant.id))
        with pytest.raises(DisabledTenant):
            await authenticator.authenticate(text)
        await authenticator.authenticate(other_text)
        assert watched.lookups == [one.key.public_id]

    @pytest.mark.parametrize("of", ["key", "tenant", "everything"])
    async def test_what_was_read_before_the_change_is_not_kept(
        self, watched: WatchedStore, clock: Clock, of: str
    ) -> None:
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        watched.gate = asyncio.Event()
        slow = asyncio.create_task(authenticator.authenticate(text))
        for _ in range(3):
            await asyncio.sleep(0)
        await watched.revoke_key(principal.key.public_id)
        changes = {
            "key": Change(public_id=principal.key.public_id),
            "tenant": Change(tenant_id=principal.tenant.id),
            "everything": EVERYTHING,
        }
        authenticator.apply(changes[of])
        watched.gate.set()
        await slow
        with pytest.raises(RevokedKey):
            await authenticator.authenticate(text)

    @pytest.mark.parametrize("told", ["of the key", "of all", "to forget"])
    async def test_a_key_that_was_unknown_works_as_soon_as_it_is_told_of(
        self, watched: WatchedStore, clock: Clock, told: str
    ) -> None:
        text, principal = await make_key(watched)
        record = watched._keys.pop(principal.key.public_id)
        authenticator = build(watched, clock)
        with pytest.raises(UnknownKey):
            await authenticator.authenticate(text)
        watched._keys[principal.key.public_id] = record
        with pytest.raises(UnknownKey):
            await authenticator.authenticate(text)
        if told == "of the key":
            authenticator.apply(Change(public_id=principal.key.public_id))
        elif told == "of all":
            authenticator.apply(EVERYTHING)
            clock.elapsed_s += 0.001
        else:
            authenticator.forget()
        assert await authenticator.authenticate(text) == principal

    async def test_when_all_may_have_changed_the_rows_there_are_bridge_an_outage(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        """The listener lost its connection: probably because the database is away."""
        text, principal = await make_key(watched)
        authenticator = build(watched, clock)
        await authenticator.authenticate(text)
        authenticator.apply(EVERYTHING)
        watched.away = True
        assert await authenticator.authenticate(text) == principal
        watched.away = False
        clock.elapsed_s += RETRY_S
        await watched.revoke_key(principal.key.public_id)
        with pytest.raises(RevokedKey):
            await authenticator.authenticate(text)

    async def test_whether_a_key_has_ended_is_told_without_asking(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        text, principal = await make_key(watched, expires_at=START + timedelta(seconds=10))
        authenticator = build(watched, clock)
        assert not authenticator.has_ended(principal), "one that is not cached, too"
        await authenticator.authenticate(text)
        assert not authenticator.has_ended(principal)
        await watched.revoke_key(principal.key.public_id)
        assert not authenticator.has_ended(principal), "nobody has told"
        authenticator.forget()
        with pytest.raises(RevokedKey):
            await authenticator.authenticate(text)
        watched.lookups.clear()
        assert authenticator.has_ended(principal)
        authenticator.forget()
        assert not authenticator.has_ended(principal)
        clock.elapsed_s += 10
        assert authenticator.has_ended(principal), "it expires by itself"
        assert watched.lookups == []


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


async def test_each_use_is_noted_and_no_refusal(watched: WatchedStore, clock: Clock) -> None:
    last_used = LastUsed(watched, now=clock.now)
    authenticator = build(watched, clock, last_used=last_used)
    text, principal = await make_key(watched)
    revoked, other = await make_key(watched, "other")
    await watched.revoke_key(other.key.public_id)
    clock.elapsed_s += 5
    await authenticator.authenticate(text)
    with pytest.raises(RevokedKey):
        await authenticator.authenticate(revoked)
    await last_used.flush()
    (key,) = await watched.list_keys(principal.tenant.id)
    assert key.last_used_at == clock.now()
    (key,) = await watched.list_keys(other.tenant.id)
    assert key.last_used_at is None


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
            except RevokedKey:
                assert revoked_at is not None
            else:
                # The row was read before the revocation, so it is older than that.
                limit = MAX_STALE_S if store.away else max(TTL_S, RETRY_S)
                since = 0.0 if revoked_at is None else clock.elapsed_s - revoked_at
                assert since < limit + RETRY_S


def forge(public_id: str) -> str:
    """A key with somebody's public id, a right checksum and a guessed secret."""
    body = f"sk-slc-{public_id}-" + "A" * 40
    return f"{body}-{keys._checksum(body)}"
