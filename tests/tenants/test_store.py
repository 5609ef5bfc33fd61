"""One contract, two stores."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import pytest

from tenants import keys
from tenants.errors import (
    InvalidValue,
    ObjectExists,
    ObjectNotFound,
)
from tenants.store import Store
from tenants.types import USAGE_STATUSES, UsageSum
from tests.ledger import usage_totals
from tests.tenants.samples import PEPPER, make_event, make_key, random_hash

pytestmark = pytest.mark.asyncio

INJECTIONS = [
    "'; DROP TABLE tenant; --",
    "' OR '1'='1",
    '" OR ""="',
    "Robert'); DELETE FROM usage_event; --",
    "$1",
    "$$; SELECT pg_sleep(10); $$",
    "%s %(name)s {0} {name}",
    "\\'; SELECT 1; --",
    "1; COPY tenant TO PROGRAM 'id'",
    "' UNION SELECT key_hash::text FROM api_key --",
    "/* */ -- #",
    "E'\\x27'",
    "naïve 名前 🚰",
]
UNSTORABLE = {
    "empty": "",
    "blank": "   ",
    "padded": " acme",
    "nul": "ac\0me",
    "newline": "ac\nme",
    "escape": "\x1b[31macme",
    "lone surrogate": "ac\ud800me",
    "right-to-left override": "ac\u202eme",
    "zero width": "ac\u200bme",
    "line separator": "ac\u2028me",
    "too long": "x" * 201,
}


class TestTenants:
    async def test_created_tenant_is_found_as_it_was_returned(self, store: Store) -> None:
        created = await store.create_tenant("acme", weight=2.5, priority=-3)

        assert (created.name, created.weight, created.priority) == ("acme", 2.5, -3)
        assert isinstance(created.id, UUID)
        assert abs(created.created_at - datetime.now(UTC)) < timedelta(minutes=1)
        assert await store.get_tenant("acme") == created
        assert await store.list_tenants() == [created]

    async def test_name_is_unique(self, store: Store) -> None:
        created = await store.create_tenant("acme")
        with pytest.raises(ObjectExists, match="'acme'"):
            await store.create_tenant("acme", weight=3)
        assert await store.list_tenants() == [created]

    async def test_one_of_many_concurrent_creations_wins(self, store: Store) -> None:
        results = await asyncio.gather(
            *(store.create_tenant("acme") for _ in range(8)), return_exceptions=True
        )
        assert sum(isinstance(result, ObjectExists) for result in results) == 7
        assert len(await store.list_tenants()) == 1

    async def test_unknown_name(self, store: Store) -> None:
        with pytest.raises(ObjectNotFound, match="'nobody'"):
            await store.get_tenant("nobody")

    async def test_list_is_by_code_point(self, store: Store) -> None:
        for name in ("b", "Z", "ä", "a", "_"):
            await store.create_tenant(name)
        assert [tenant.name for tenant in await store.list_tenants()] == ["Z", "_", "a", "b", "ä"]

    async def test_names_are_one_in_any_normal_form(self, store: Store) -> None:
        created = await store.create_tenant("cafe\u0301")
        assert created.name == "caf\u00e9"
        assert await store.get_tenant("caf\u00e9") == await store.get_tenant("cafe\u0301")
        with pytest.raises(ObjectExists, match="tenant"):
            await store.create_tenant("caf\u00e9")

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
    async def test_weight_must_be_positive(self, store: Store, weight: float) -> None:
        with pytest.raises(InvalidValue, match="weight"):
            await store.create_tenant("acme", weight=weight)

    async def test_extreme_weights_and_priorities_survive(self, store: Store) -> None:
        for index, (weight, priority) in enumerate([(5e-324, 32767), (1.7e308, -32767)]):
            created = await store.create_tenant(f"t{index}", weight=weight, priority=priority)
            assert await store.get_tenant(created.name) == created
            assert (created.weight, created.priority) == (weight, priority)

    @pytest.mark.parametrize("priority", [-32768, 32768, 2**40])
    async def test_priority_is_bounded(self, store: Store, priority: int) -> None:
        with pytest.raises(InvalidValue, match="priority"):
            await store.create_tenant("acme", priority=priority)

    async def test_update_changes_what_is_given(self, store: Store) -> None:
        created = await store.create_tenant("acme", weight=2.0, priority=1)
        assert await store.update_tenant(created.id) == created
        changed = await store.update_tenant(created.id, name="beta", weight=3.5, priority=-1)
        assert (changed.name, changed.weight, changed.priority) == ("beta", 3.5, -1)
        assert await store.list_tenants() == [changed]
        assert (changed.id, changed.created_at) == (created.id, created.created_at)

    async def test_update_refuses_what_create_refuses(self, store: Store) -> None:
        await store.create_tenant("acme")
        other = await store.create_tenant("other")
        with pytest.raises(ObjectExists, match="tenant"):
            await store.update_tenant(other.id, name="acme")
        with pytest.raises(InvalidValue, match="weight"):
            await store.update_tenant(other.id, weight=0.0)
        with pytest.raises(InvalidValue, match="priority"):
            await store.update_tenant(other.id, priority=2**15)
        with pytest.raises(ObjectNotFound, match="tenant"):
            await store.update_tenant(uuid4(), name="x")
        assert await store.get_tenant("other") == other

    async def test_disabling_is_idempotent_and_seen_with_the_key(self, store: Store) -> None:
        _, principal = await make_key(store)
        disabled = await store.update_tenant(principal.tenant.id, disabled=True)
        assert disabled.disabled_at is not None
        assert await store.update_tenant(principal.tenant.id, disabled=True) == disabled
        record = await store.find_key(principal.key.public_id)
        assert record is not None
        assert record.principal.tenant == disabled
        enabled = await store.update_tenant(principal.tenant.id, disabled=False)
        assert enabled == principal.tenant


class TestProjects:
    async def test_tenant_is_born_with_its_default_one(self, store: Store) -> None:
        tenant = await store.create_tenant("acme")
        (project,) = await store.list_projects(tenant.id)
        assert (project.name, project.tenant_id, project.is_default) == ("default", tenant.id, True)

    async def test_keys_belong_to_the_default_or_the_named_one(self, store: Store) -> None:
        _, principal = await make_key(store)
        tenant_id = principal.tenant.id
        web = await store.create_project(tenant_id, "web")
        assert not web.is_default
        default, listed = await store.list_projects(tenant_id)
        assert listed == web
        assert principal.key.project_id == default.id
        key = await store.create_key(
            tenant_id,
            public_id="A" * 12,
            key_hash=random_hash(),
            name="x",
            scopes=["usage"],
            project_id=web.id,
        )
        assert key.project_id == web.id

    async def test_name_is_unique_in_its_tenant(self, store: Store) -> None:
        one, two = [await store.create_tenant(name) for name in ("one", "two")]
        await store.create_project(one.id, "web")
        await store.create_project(two.id, "web")
        for name in ("web", "default"):
            with pytest.raises(ObjectExists, match=name):
                await store.create_project(one.id, name)
        with pytest.raises(ObjectNotFound, match="tenant"):
            await store.create_project(uuid4(), "web")
        assert await store.list_projects(uuid4()) == []

    async def test_of_another_tenant_takes_no_key(self, store: Store) -> None:
        one, two = [await store.create_tenant(name) for name in ("one", "two")]
        foreign = await store.create_project(two.id, "web")
        for project_id in (foreign.id, uuid4()):
            with pytest.raises(ObjectNotFound, match=str(project_id)):
                await store.create_key(
                    one.id,
                    public_id="A" * 12,
                    key_hash=random_hash(),
                    name="x",
                    scopes=["chat"],
                    project_id=project_id,
                )
        assert await store.list_keys(one.id) == []


class TestRotation:
    async def test_new_key_may_do_what_the_old_one_may(self, store: Store) -> None:
        _, principal = await make_key(store)
        project = await store.create_project(principal.tenant.id, "web")
        old = await store.create_key(
            principal.tenant.id,
            public_id="A" * 12,
            key_hash=random_hash(),
            name="web",
            scopes=["chat", "responses"],
            expires_at=datetime(2040, 1, 1, tzinfo=UTC),
            project_id=project.id,
            allowed_models=["demo", "other", "demo"],
            model_aliases={"gpt-4o": "demo"},
        )
        assert old.allowed_models == ("demo", "other")
        new_hash = random_hash()
        new = await store.rotate_key(
            old.public_id, new_public_id="B" * 12, key_hash=new_hash, grace=timedelta(hours=24)
        )
        assert new.replaces_key_id == old.id
        own = {"id": old.id, "public_id": old.public_id, "replaces_key_id": None}
        assert msgspec.structs.replace(new, created_at=old.created_at, **own) == old
        record = await store.find_key("B" * 12)
        assert record is not None
        assert (record.principal.key, record.key_hash) == (new, new_hash)
        replaced = await store.find_key(old.public_id)
        assert replaced is not None
        revoke_at = replaced.principal.key.revoke_at
        assert revoke_at is not None
        assert abs(revoke_at - datetime.now(UTC) - timedelta(hours=24)) < timedelta(minutes=1)

    async def test_later_rotation_does_not_lengthen_the_grace(self, store: Store) -> None:
        _, principal = await make_key(store)
        public_id = principal.key.public_id
        ends = []
        for hours, new_id in ((1, "B" * 12), (24, "C" * 12)):
            await store.rotate_key(
                public_id,
                new_public_id=new_id,
                key_hash=random_hash(),
                grace=timedelta(hours=hours),
            )
            record = await store.find_key(public_id)
            assert record is not None
            ends.append(record.principal.key.revoke_at)
        assert ends[0] == ends[1]

    async def test_what_has_ended_is_not_rotated(self, store: Store) -> None:
        _, ended = await make_key(store, "one")
        _, revoked = await make_key(store, "two")
        await store.revoke_key(revoked.key.public_id)
        rotation = {"key_hash": random_hash(), "grace": timedelta()}
        await store.rotate_key(ended.key.public_id, new_public_id="B" * 12, **rotation)  # type: ignore[arg-type]
        for public_id in (ended.key.public_id, revoked.key.public_id, "Z" * 12, "\0"):
            with pytest.raises(ObjectNotFound, match="key"):
                await store.rotate_key(public_id, new_public_id="C" * 12, **rotation)  # type: ignore[arg-type]
        assert await store.find_key("C" * 12) is None

    async def test_refused_rotation_leaves_the_old_key_alone(self, store: Store) -> None:
        _, principal = await make_key(store, "one")
        _, other = await make_key(store, "two")
        with pytest.raises(ObjectExists, match="key"):
            await store.rotate_key(
                principal.key.public_id,
                new_public_id=other.key.public_id,
                key_hash=random_hash(),
                grace=timedelta(),
            )
        for grace in (timedelta(seconds=-1), timedelta(days=367)):
            with pytest.raises(InvalidValue, match="grace"):
                await store.rotate_key(
                    principal.key.public_id,
                    new_public_id="B" * 12,
                    key_hash=random_hash(),
                    grace=grace,
                )
        record = await store.find_key(principal.key.public_id)
        assert record is not None
        assert record.principal == principal


class TestLastUsed:
    async def test_later_wins_in_any_order(self, store: Store) -> None:
        _, principal = await make_key(store)
        public_id, key_id = principal.key.public_id, principal.key.id
        for day in (2, 3, 1):
            used_at = datetime(2031, 1, day, tzinfo=UTC)
            await store.touch_keys({key_id: used_at, uuid4(): used_at})
        await store.touch_keys({})
        record = await store.find_key(public_id)
        assert record is not None
        assert record.principal.key.last_used_at == datetime(2031, 1, 3, tzinfo=UTC)

    async def test_many_writers_do_not_deadlock(self, store: Store) -> None:
        keys = [(await make_key(store, f"tenant {index}"))[1].key.id for index in range(8)]
        now = datetime.now(UTC)
        async with asyncio.timeout(30):
            await asyncio.gather(
                *(
                    store.touch_keys(
                        {
                            key: now + timedelta(seconds=round_)
                            for key in (keys, keys[::-1])[round_ % 2]
                        }
                    )
                    for round_ in range(30)
                )
            )


class TestKeys:
    async def test_created_key_is_found_with_tenant_and_hash(self, store: Store) -> None:
        tenant = await store.create_tenant("acme")
        expires_at = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
        minted = keys.mint(PEPPER)
        key = await store.create_key(
            tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="laptop",
            scopes=["admin", "chat", "admin"],
            expires_at=expires_at,
        )

        assert key.scopes == ("admin", "chat")
        assert (key.tenant_id, key.expires_at, key.revoked_at) == (tenant.id, expires_at, None)
        record = await store.find_key(minted.public_id)
        assert record is not None
        assert record.principal.key == key
        assert record.principal.tenant == tenant
        assert record.key_hash == minted.key_hash
        assert await store.list_keys(tenant.id) == [key]

    @pytest.mark.parametrize("public_id", ["A" * 12, "", "x", "a\0b", "\ud800", "A" * 12 + "\n"])
    async def test_unknown_public_id_is_none(self, store: Store, public_id: str) -> None:
        assert await store.find_key(public_id) is None
        with pytest.raises(ObjectNotFound, match="key"):
            await store.revoke_key(public_id)

    async def test_public_id_is_unique_over_tenants(self, store: Store) -> None:
        _, first = await make_key(store, "one")
        other = await store.create_tenant("two")
        with pytest.raises(ObjectExists, match=first.key.public_id):
            await store.create_key(
                other.id,
                public_id=first.key.public_id,
                key_hash=random_hash(),
                name="thief",
                scopes=["chat"],
            )
        assert await store.list_keys(other.id) == []

    async def test_key_needs_its_tenant(self, store: Store) -> None:
        nobody = uuid4()
        with pytest.raises(ObjectNotFound, match=str(nobody)):
            await store.create_key(
                nobody, public_id="A" * 12, key_hash=random_hash(), name="x", scopes=["chat"]
            )
        assert await store.list_keys(nobody) == []

    async def test_keys_are_listed_oldest_first_and_by_tenant(self, store: Store) -> None:
        tenants = [await store.create_tenant(name) for name in ("one", "two")]
        created = [
            await store.create_key(
                tenants[index % 2].id,
                public_id=f"{9 - index:012d}",
                key_hash=random_hash(),
                name=f"key {index}",
                scopes=["chat"],
            )
            for index in range(6)
        ]
        assert await store.list_keys(tenants[0].id) == created[0::2]
        assert await store.list_keys(tenants[1].id) == created[1::2]

    async def test_revoking_twice_keeps_the_first_time(self, store: Store) -> None:
        _, principal = await make_key(store)
        revoked = await store.revoke_key(principal.key.public_id)

        assert revoked.revoked_at is not None
        assert await store.revoke_key(principal.key.public_id) == revoked
        record = await store.find_key(principal.key.public_id)
        assert record is not None
        assert record.principal.key == revoked

    @pytest.mark.parametrize(
        ("field", "change"),
        [
            ("public_id", {"public_id": "short"}),
            ("public_id", {"public_id": "with space!!"}),
            ("key_hash", {"key_hash": b"short"}),
            ("key_hash", {"key_hash": bytes(33)}),
            ("scopes", {"scopes": []}),
            ("scopes", {"scopes": ["chat", "root"]}),
            ("expires_at", {"expires_at": datetime(2031, 1, 1)}),
            ("allowed_models", {"allowed_models": ["a\0b"]}),
            ("allowed_models", {"allowed_models": [f"m{number}" for number in range(101)]}),
            ("model_aliases", {"model_aliases": {"a": ""}}),
            ("model_aliases", {"model_aliases": {"\ud800": "demo"}}),
            ("model_aliases", {"model_aliases": {f"m{number}": "x" for number in range(101)}}),
        ],
    )
    async def test_what_is_no_key_is_refused_by_field(
        self, store: Store, field: str, change: dict[str, object]
    ) -> None:
        tenant = await store.create_tenant("acme")
        values = {"public_id": "A" * 12, "key_hash": bytes(32), "name": "x", "scopes": ["chat"]}
        with pytest.raises(InvalidValue) as caught:
            await store.create_key(tenant.id, **{**values, **change})  # type: ignore[arg-type]
        assert caught.value.field == field
        assert await store.list_keys(tenant.id) == []


DAY = timedelta(days=1)


class TestUsage:
    async def test_totals_are_the_sums(self, store: Store) -> None:
        _, principal = await make_key(store)
        tenant_id = principal.tenant.id
        assert await usage_totals(store, tenant_id) == UsageSum()
        for status in USAGE_STATUSES:
            assert await store.record_usage(make_event(principal.key, status=status))
        assert await usage_totals(store, tenant_id) == UsageSum(
            requests=6, prompt_tokens=600, cached_tokens=384, completion_tokens=120
        )

    async def test_second_event_of_a_request_changes_nothing(self, store: Store) -> None:
        _, principal = await make_key(store)
        event = make_event(principal.key)
        assert await store.record_usage(event)
        before = await usage_totals(store, principal.tenant.id)

        assert not await store.record_usage(event)
        other = make_event(principal.key, request_id=event.request_id, completion_tokens=9999)
        assert not await store.record_usage(other)
        assert await usage_totals(store, principal.tenant.id) == before

    async def test_one_of_many_concurrent_events_of_a_request_wins(self, store: Store) -> None:
        _, principal = await make_key(store)
        event = make_event(principal.key)
        written = await asyncio.gather(*(store.record_usage(event) for _ in range(8)))
        assert sorted(written) == [False] * 7 + [True]

    async def test_key_of_another_tenant_is_refused(self, store: Store) -> None:
        _, one = await make_key(store, "one")
        _, two = await make_key(store, "two")
        for event in (make_event(one.key, tenant_id=two.tenant.id), make_event()):
            with pytest.raises(ObjectNotFound, match="key"):
                await store.record_usage(event)
        assert await usage_totals(store, two.tenant.id) == UsageSum()

    async def test_span_of_hours_is_checked(self, store: Store) -> None:
        now = datetime.now(UTC)
        with pytest.raises(InvalidValue, match="start"):
            await store.sum_usage(uuid4(), (now.replace(tzinfo=None), now))
        with pytest.raises(InvalidValue, match="end"):
            await store.sum_usage(uuid4(), (now, now - timedelta(seconds=1)))

    async def test_end_user_is_optional_and_checked(self, store: Store) -> None:
        _, principal = await make_key(store)
        assert await store.record_usage(make_event(principal.key, end_user="user-17"))
        with pytest.raises(InvalidValue, match="end_user"):
            await store.record_usage(make_event(principal.key, end_user="a\0b"))

    async def test_sums_are_wider_than_their_parts(self, store: Store) -> None:
        _, principal = await make_key(store)
        most = 2**31 - 1
        for _ in range(3):
            event = make_event(principal.key, prompt_tokens=most, completion_tokens=most)
            assert await store.record_usage(event)
        totals = await usage_totals(store, principal.tenant.id)
        assert (totals.prompt_tokens, totals.completion_tokens) == (3 * most, 3 * most)


class TestText:
    @pytest.mark.parametrize("text", INJECTIONS)
    async def test_sql_in_any_field_is_only_text(self, store: Store, text: str) -> None:
        tenant = await store.create_tenant(text)
        key = await store.create_key(
            tenant.id, public_id="A" * 12, key_hash=random_hash(), name=text, scopes=["chat"]
        )
        assert await store.record_usage(make_event(key, model=text))

        assert (await store.get_tenant(text)).name == text
        assert [found.name for found in await store.list_keys(tenant.id)] == [text]
        assert await store.find_key(text) is None
        with pytest.raises(ObjectNotFound, match="key"):
            await store.revoke_key(text)
        assert (await usage_totals(store, tenant.id)).requests == 1
        assert len(await store.list_tenants()) == 1

    @pytest.mark.parametrize("text", UNSTORABLE.values(), ids=UNSTORABLE.keys())
    async def test_unstorable_text_is_refused_in_every_field(self, store: Store, text: str) -> None:
        tenant = await store.create_tenant("acme")
        with pytest.raises(InvalidValue, match="name"):
            await store.create_tenant(text)
        with pytest.raises(InvalidValue, match="name"):
            await store.get_tenant(text)
        with pytest.raises(InvalidValue, match="name"):
            await store.create_key(
                tenant.id, public_id="A" * 12, key_hash=bytes(32), name=text, scopes=["chat"]
            )
        with pytest.raises(InvalidValue, match="model"):
            await store.record_usage(make_event(model=text))
        assert await store.list_tenants() == [tenant]


async def test_ping_answers(store: Store) -> None:
    await store.ping()


async def test_close_is_idempotent(store: Store) -> None:
    await store.close()
    await store.close()


async def test_maintenance_is_idempotent(store: Store) -> None:
    await store.maintain()
    await store.maintain()
