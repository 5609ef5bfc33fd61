from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import msgspec
import pytest

from tenants import keys
from tenants.authenticator import RETRY_S, Authenticator
from tenants.changes import EVERYTHING, Change
from tenants.errors import (
    AuthenticationFailed,
    InvalidValue,
)
from tenants.last_used import LastUsed
from tenants.store import Store
from tests.memory_store.store import MemoryStore
from tests.tenants.authenticating import START, Clock, WatchedStore, build, forge
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio


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
            with pytest.raises(AuthenticationFailed, match="malformed"):
                await build(watched, clock).authenticate(bad)
        assert watched.lookups == []

    async def test_unknown_key(self, store: Store, clock: Clock) -> None:
        stranger = keys.mint(PEPPER)
        with pytest.raises(
            AuthenticationFailed, match=f"{stranger.public_id} is unknown"
        ) as caught:
            await build(store, clock).authenticate(stranger.text)
        assert stranger.text.split("-")[3] not in str(caught.value)

    async def test_right_public_id_with_wrong_secret(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        authenticator = build(store, clock)
        forged = forge(principal.key.public_id)
        for _ in range(2):  # cold, then cached
            with pytest.raises(AuthenticationFailed, match="unknown"):
                await authenticator.authenticate(forged)
            assert await authenticator.authenticate(text) == principal

    async def test_other_pepper_knows_nobody(self, store: Store) -> None:
        text, _ = await make_key(store)
        with pytest.raises(AuthenticationFailed, match="unknown"):
            await Authenticator(store, b"another pepper, as long").authenticate(text)

    async def test_short_pepper_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="pepper"):
            Authenticator(MemoryStore(), b"short")

    async def test_only_the_holder_learns_of_revocation(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        await store.revoke_key(principal.key.public_id)
        authenticator = build(store, clock)
        with pytest.raises(AuthenticationFailed, match=f"{principal.key.public_id} was revoked"):
            await authenticator.authenticate(text)
        with pytest.raises(AuthenticationFailed, match="unknown"):
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
        with pytest.raises(AuthenticationFailed, match=f"{principal.key.public_id} was revoked"):
            await authenticator.authenticate(text)

    async def test_the_moment_of_its_end_is_after_a_keys_life(
        self, watched: WatchedStore, clock: Clock
    ) -> None:
        _, principal = await make_key(watched)
        authenticator = build(watched, clock)
        ends = {"revoke_at": "was revoked", "expires_at": "has expired"}
        for field, said in ends.items():
            for seconds, is_over in ((0, True), (1, False)):
                end = clock.now() + timedelta(seconds=seconds)
                key = msgspec.structs.replace(principal.key, **{field: end})
                refused = pytest.raises(AuthenticationFailed, match=said)
                with refused if is_over else contextlib.nullcontext():
                    authenticator._judge(msgspec.structs.replace(principal, key=key))

    async def test_a_key_that_was_proven_is_checked_by_its_id(
        self, store: Store, clock: Clock
    ) -> None:
        _, principal = await make_key(store)
        public_id = principal.key.public_id
        assert await build(store, clock).check(public_id) == principal
        with pytest.raises(AuthenticationFailed, match="unknown"):
            await build(store, clock).check("A" * 12)
        await store.revoke_key(public_id)
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await build(store, clock).check(public_id)

    async def test_disabled_tenant(self, store: Store, clock: Clock) -> None:
        text, principal = await make_key(store)
        await store.update_tenant(principal.tenant.id, disabled=True)
        with pytest.raises(AuthenticationFailed, match=f"{principal.key.public_id} is disabled"):
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
        with pytest.raises(AuthenticationFailed, match=f"{principal.key.public_id} has expired"):
            await authenticator.authenticate(text)


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
        with pytest.raises(AuthenticationFailed, match="is disabled"):
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
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(text)

    @pytest.mark.parametrize("told", ["of the key", "of all", "to forget"])
    async def test_a_key_that_was_unknown_works_as_soon_as_it_is_told_of(
        self, watched: WatchedStore, clock: Clock, told: str
    ) -> None:
        text, principal = await make_key(watched)
        record = watched._keys.pop(principal.key.public_id)
        authenticator = build(watched, clock)
        with pytest.raises(AuthenticationFailed, match="unknown"):
            await authenticator.authenticate(text)
        watched._keys[principal.key.public_id] = record
        with pytest.raises(AuthenticationFailed, match="unknown"):
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
        with pytest.raises(AuthenticationFailed, match="was revoked"):
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
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            await authenticator.authenticate(text)
        watched.lookups.clear()
        assert authenticator.has_ended(principal)
        authenticator.forget()
        assert not authenticator.has_ended(principal)
        clock.elapsed_s += 10
        assert authenticator.has_ended(principal), "it expires by itself"
        assert watched.lookups == []


async def test_each_use_is_noted_and_no_refusal(watched: WatchedStore, clock: Clock) -> None:
    last_used = LastUsed(watched, now=clock.now)
    authenticator = build(watched, clock, last_used=last_used)
    text, principal = await make_key(watched)
    revoked, other = await make_key(watched, "other")
    await watched.revoke_key(other.key.public_id)
    clock.elapsed_s += 5
    await authenticator.authenticate(text)
    with pytest.raises(AuthenticationFailed, match="was revoked"):
        await authenticator.authenticate(revoked)
    await last_used.flush()
    (key,) = await watched.list_keys(principal.tenant.id)
    assert key.last_used_at == clock.now()
    (key,) = await watched.list_keys(other.tenant.id)
    assert key.last_used_at is None
