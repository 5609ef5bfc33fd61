"""What the admin surface asks of a store: one contract for both twins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from tenants import keys
from tenants.audit import NOBODY, acting_as, actor
from tenants.errors import (
    InvalidValue,
    ObjectExists,
    ObjectNotFound,
)
from tenants.limits import Limits
from tenants.store import Store
from tests.postgres import execute
from tests.tenants.reserving import ask
from tests.tenants.samples import PEPPER, make_event, make_key

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)
ALWAYS = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC))


async def test_who_acts_is_known_in_the_block_and_its_tasks() -> None:
    assert actor() == NOBODY
    with acting_as("key abc"):
        assert await asyncio.create_task(asyncio.sleep(0, actor())) == "key abc"
    assert actor() == NOBODY


class TestAuditLog:
    async def test_every_change_with_before_and_after(self, store: Store) -> None:
        with acting_as("key of the boss"):
            tenant = await store.create_tenant("acme")
            await store.update_tenant(tenant.id, weight=2.0)
            project = await store.create_project(tenant.id, "search")
            await store.rename_project(tenant.id, project.id, "research")
            minted, other = keys.mint(PEPPER), keys.mint(PEPPER)
            await store.create_key(
                tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name="laptop",
                scopes=["chat"],
            )
            await store.rotate_key(
                minted.public_id,
                new_public_id=other.public_id,
                key_hash=other.key_hash,
                grace=timedelta(hours=1),
            )
            await store.put_limits(tenant.id, "tenant", tenant.id, Limits(max_concurrent=3))
            await store.put_limits(tenant.id, "tenant", tenant.id, Limits(max_concurrent=4))
            await store.revoke_key(other.public_id)
        entries = list(await store.list_audit(tenant.id))
        assert [entry.id for entry in entries] == sorted((e.id for e in entries), reverse=True)
        assert {entry.actor for entry in entries} == {"key of the boss"}
        by_action = {entry.action: entry for entry in entries}
        assert sorted(entry.action for entry in entries) == [
            "key.create",
            "key.create",
            "key.revoke",
            "key.rotate",
            "limits.create",
            "limits.update",
            "project.create",
            "project.create",
            "project.update",
            "tenant.create",
            "tenant.update",
        ]
        changed = by_action["tenant.update"]
        assert changed.before is not None
        assert changed.after is not None
        assert (changed.before["weight"], changed.after["weight"]) == (1.0, 2.0)
        assert changed.object_id == str(tenant.id)
        renamed = by_action["project.update"]
        assert renamed.after is not None
        assert (renamed.object_id, renamed.after["name"]) == (str(project.id), "research")
        assert by_action["key.rotate"].object_id == minted.public_id
        assert by_action["key.revoke"].object_id == other.public_id
        limits = by_action["limits.update"]
        assert limits.before is not None
        assert limits.after is not None
        assert (limits.before["max_concurrent"], limits.after["max_concurrent"]) == (3, 4)
        assert set(limits.after) == {
            "scope_id",
            "scope_kind",
            "tenant_id",
            *Limits.__struct_fields__,
        }
        texts = repr(entries)
        assert minted.key_hash.hex() not in texts
        assert "key_hash" not in texts

    async def test_what_changes_nothing_is_no_change(self, store: Store) -> None:
        _, who = await make_key(store)
        await store.put_limits(who.tenant.id, "key", who.key.id, Limits(weight=2.0))
        num_before = len(await store.list_audit(who.tenant.id))
        await store.touch_keys({who.key.id: datetime.now(UTC)})
        await store.update_tenant(who.tenant.id)
        await store.put_limits(who.tenant.id, "key", who.key.id, Limits(weight=2.0))
        await store.record_usage(make_event(who.key))
        assert len(await store.list_audit(who.tenant.id)) == num_before

    async def test_pages_and_tenants(self, store: Store) -> None:
        _, one = await make_key(store, "one")
        _, two = await make_key(store, "two")
        everything = await store.list_audit()
        assert {entry.tenant_id for entry in everything} == {one.tenant.id, two.tenant.id}
        first = await store.list_audit(limit=2)
        rest = await store.list_audit(after=first[-1].id)
        assert [*first, *rest] == everything
        assert {entry.tenant_id for entry in await store.list_audit(one.tenant.id)} == {
            one.tenant.id
        }

    async def test_nobody_named_is_the_server_itself(self, store: Store) -> None:
        _, who = await make_key(store)
        assert {entry.actor for entry in await store.list_audit(who.tenant.id)} == {NOBODY}

    @pytest.mark.pg
    async def test_what_is_typed_into_the_database_is_there_too(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        _, who = await make_key(pg_store)
        await execute(pg_dsn, "UPDATE tenant SET priority = 7", "DELETE FROM limit_policy")
        (entry, *_) = await pg_store.list_audit(who.tenant.id)
        assert (entry.action, entry.actor) == ("tenant.update", "postgres")

    @pytest.mark.pg
    async def test_no_entry_without_its_change(self, pg_dsn: str, pg_store: Store) -> None:
        _, who = await make_key(pg_store)
        before = await pg_store.list_audit()
        connection = await asyncpg.connect(pg_dsn)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("UPDATE tenant SET priority = 7")
        await transaction.rollback()
        await connection.close()
        assert await pg_store.list_audit(who.tenant.id) == before

    @pytest.mark.pg
    async def test_it_is_append_only(self, pg_dsn: str, pg_store: Store) -> None:
        await make_key(pg_store)
        for statement in ("UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log"):
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await execute(pg_dsn, statement)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await pg_store._connections._pool.execute(statement)


class TestFirstAdminKey:
    async def test_it_is_made_once(self, store: Store) -> None:
        minted = keys.mint(PEPPER)
        await store.create_first_admin_key(
            "ops", public_id=minted.public_id, key_hash=minted.key_hash, name="first"
        )
        found = await store.find_key(minted.public_id)
        assert found is not None
        assert found.principal.key.scopes == ("owner",)
        assert found.principal.tenant.name == "ops"
        await store.revoke_key(minted.public_id)
        again = keys.mint(PEPPER)
        with pytest.raises(ObjectExists, match="only once"):
            await store.create_first_admin_key(
                "ops", public_id=again.public_id, key_hash=again.key_hash, name="second"
            )

    async def test_of_many_at_once_one_gets_it(self, store: Store) -> None:
        await store.create_tenant("ops")

        async def ask_for_it() -> bool:
            minted = keys.mint(PEPPER)
            try:
                await store.create_first_admin_key(
                    "ops", public_id=minted.public_id, key_hash=minted.key_hash, name="first"
                )
            except ObjectExists:
                return False
            return True

        assert sum(await asyncio.gather(*(ask_for_it() for _ in range(8)))) == 1


class TestTenantsAndProjects:
    async def test_a_tenant_by_its_id(self, store: Store) -> None:
        tenant = await store.create_tenant("acme")
        assert await store.get_tenant(tenant.id) == tenant
        for wrong in (uuid4(), "acme2"):
            with pytest.raises(ObjectNotFound, match="tenant"):
                await store.get_tenant(wrong)

    async def test_projects_are_renamed(self, store: Store) -> None:
        one, two = await store.create_tenant("one"), await store.create_tenant("two")
        project = await store.create_project(one.id, "a")
        with pytest.raises(ObjectNotFound, match="project"):
            await store.rename_project(two.id, project.id, "b")
        with pytest.raises(ObjectExists, match="project"):
            await store.rename_project(one.id, project.id, "default")
        with pytest.raises(InvalidValue):
            await store.rename_project(one.id, project.id, "")
        assert (await store.rename_project(one.id, project.id, "b")).name == "b"


class TestUsage:
    async def test_by_whatever_is_asked_for(self, store: Store) -> None:
        _, one = await make_key(store, "one")
        _, two = await make_key(store, "two")
        for who, at, model in (
            (one, NOON, "a"),
            (one, NOON + timedelta(hours=1), "a"),
            (one, NOON + timedelta(days=1), "b"),
            (two, NOON, "a"),
        ):
            await store.record_usage(make_event(who.key, created_at=at, model=model))
        (total,) = await store.sum_usage(None, ALWAYS)
        assert (total.requests, total.prompt_tokens, total.start) == (4, 400, None)
        (own,) = await store.sum_usage(one.tenant.id, ALWAYS)
        assert (own.requests, own.tenant_id) == (3, None)
        by_model = await store.sum_usage(one.tenant.id, ALWAYS, group_by=["model"])
        assert [(row.model, row.requests) for row in by_model] == [("a", 2), ("b", 1)]
        by_tenant = await store.sum_usage(None, ALWAYS, group_by=["tenant"])
        assert {row.tenant_id: row.requests for row in by_tenant} == {
            one.tenant.id: 3,
            two.tenant.id: 1,
        }
        by_day = await store.sum_usage(one.tenant.id, ALWAYS, bucket="day")
        midnight = NOON.replace(hour=0, minute=0)
        assert [(row.start, row.requests) for row in by_day] == [
            (midnight, 2),
            (midnight + timedelta(days=1), 1),
        ]
        everything = await store.sum_usage(
            one.tenant.id, ALWAYS, group_by=["tenant", "project", "key", "model"], bucket="hour"
        )
        assert len(everything) == 3
        assert everything[0].project_id == one.key.project_id
        assert everything[0].key_id == one.key.id
        assert everything[0].start == NOON.replace(minute=0)
        assert len(await store.sum_usage(None, ALWAYS, bucket="hour", limit=2)) == 2
        most = sorted(by_tenant, key=lambda row: row.prompt_tokens, reverse=True)
        for limit in (1, 9):
            found = await store.sum_usage(
                None, ALWAYS, group_by=["tenant"], by_tokens=True, limit=limit
            )
            assert list(found) == most[:limit]
        assert await store.sum_usage(uuid4(), ALWAYS) in ([], [type(total)()])

    async def test_what_cannot_be_asked_for(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="group_by"):
            await store.sum_usage(None, ALWAYS, group_by=["colour"])  # type: ignore[list-item]
        with pytest.raises(InvalidValue, match="bucket"):
            await store.sum_usage(None, ALWAYS, bucket="week")  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="end"):
            await store.sum_usage(None, ALWAYS[::-1])


class TestRunning:
    async def test_reservations_of_one_and_of_all(self, store: Store) -> None:
        _, one = await make_key(store, "one")
        _, two = await make_key(store, "two")
        requests = [ask(one.key, 10), ask(two.key, 20)]
        for request in requests:
            assert (await store.reserve(request)).state == "running"
        await store.renew(requests[0].owner, {requests[0].request_id: 5}, requests[0].lease)
        assert [row.request_id for row in await store.list_running()] == [
            request.request_id for request in requests
        ]
        (row,) = await store.list_running(one.tenant.id)
        assert (row.prompt_tokens, row.generated_tokens, row.state) == (10, 5, "running")
        assert (row.key_id, row.owner) == (one.key.id, requests[0].owner)

    async def test_killing_is_noted(self, store: Store) -> None:
        _, who = await make_key(store)
        request_id = uuid4()
        await store.kill_request(who.tenant.id, request_id)
        (entry, *_) = await store.list_audit(who.tenant.id)
        assert (entry.action, entry.object_id) == ("stream.kill", str(request_id))
