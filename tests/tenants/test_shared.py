"""What workers share: the contract, on both twins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from tenants.errors import ObjectNotFound
from tenants.shared import (
    ArchivedStream,
    Claim,
    EngineRecord,
    Scaling,
    SharedState,
    StoredResponse,
    WorkerAddress,
)
from tenants.store import Store
from tenants.types import Tenant

pytestmark = pytest.mark.asyncio

DAY = timedelta(days=1)
NOTHING = timedelta(0)
MIB = 2**20


@pytest.fixture
def shared(store: Store) -> SharedState:
    return store.shared


async def make_tenant(store: Store, name: str = "acme") -> Tenant:
    return await store.create_tenant(name)


def make_response(tenant: Tenant, name: str = "resp_1", **changes: object) -> StoredResponse:
    response = StoredResponse(
        id=name,
        tenant_id=tenant.id,
        status="completed",
        body=b'{"id":"\\u0000"}',
        input=b"[]",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return msgspec.structs.replace(response, **changes)


def make_stream(tenant: Tenant, name: str = "stream_1", **changes: object) -> ArchivedStream:
    stream = ArchivedStream(
        id=name, tenant_id=tenant.id, kind="sse", num_dropped=3, items=b"\0packed"
    )
    return msgspec.structs.replace(stream, **changes)


async def test_responses_come_back_as_they_were(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    response = make_response(tenant, previous_response_id="resp_0")
    await shared.put_response(response, DAY)
    assert await shared.find_response(tenant.id, response.id) == response
    ended = msgspec.structs.replace(response, status="failed", body=b"{}")
    await shared.put_response(ended, DAY)
    assert await shared.find_response(tenant.id, response.id) == ended
    assert await shared.find_response(tenant.id, "resp_\0") is None
    assert await shared.delete_response(tenant.id, response.id)
    assert not await shared.delete_response(tenant.id, response.id)
    assert await shared.find_response(tenant.id, response.id) is None


async def test_nothing_is_shared_with_another_tenant(store: Store, shared: SharedState) -> None:
    mine, other = await make_tenant(store), await make_tenant(store, "other")
    await shared.put_response(make_response(mine), DAY)
    await shared.put_stream(make_stream(mine), DAY)
    await shared.claim(mine.id, b"k", body_hash=b"b", answer_id="a", retention=DAY)
    assert await shared.find_response(other.id, "resp_1") is None
    assert (
        await shared.lineage(other.id, "resp_1", max_length=5, max_bytes=MIB, retention=DAY) == []
    )
    assert not await shared.delete_response(other.id, "resp_1")
    assert await shared.find_stream(other.id, "stream_1") is None
    assert not await shared.delete_stream(other.id, "stream_1")
    assert not await shared.release_claim(other.id, b"k", "a")
    assert await shared.find_claim(other.id, b"k") is None
    theirs = await shared.claim(other.id, b"k", body_hash=b"c", answer_id="d", retention=DAY)
    assert theirs.answer_id == "d"
    for trim in (shared.trim_responses, shared.trim_streams, shared.trim_claims):
        assert await trim(other.id, 1) == 0
    assert await shared.find_response(mine.id, "resp_1") is not None
    # An id is a tenant's own: another may have the same.
    await shared.put_response(make_response(other, body=b"theirs"), DAY)
    found = await shared.find_response(mine.id, "resp_1")
    assert found is not None
    assert found.body != b"theirs"


async def test_a_tenant_must_exist(shared: SharedState) -> None:
    nobody = Tenant(id=uuid4(), name="nobody", created_at=datetime.now(UTC))
    with pytest.raises(ObjectNotFound, match="tenant"):
        await shared.put_response(make_response(nobody), DAY)
    with pytest.raises(ObjectNotFound, match="tenant"):
        await shared.put_stream(make_stream(nobody), DAY)
    with pytest.raises(ObjectNotFound, match="tenant"):
        await shared.claim(nobody.id, b"k", body_hash=b"b", answer_id="a", retention=DAY)


async def test_a_lineage_is_followed_to_its_beginning(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    for number in range(5):
        previous = f"resp_{number - 1}" if number else None
        response = make_response(tenant, f"resp_{number}", previous_response_id=previous)
        await shared.put_response(response, DAY)

    async def names(max_length: int, max_bytes: int = MIB) -> list[str]:
        line = await shared.lineage(
            tenant.id, "resp_4", max_length=max_length, max_bytes=max_bytes, retention=DAY
        )
        return [response.id for response in line]

    assert await names(10) == [f"resp_{number}" for number in range(5)]
    assert await names(2) == ["resp_3", "resp_4"]
    each = len(response.body) + len(response.input)
    assert await names(10, 5 * each) == [f"resp_{number}" for number in range(5)]
    assert await names(10, 2 * each) == ["resp_2", "resp_3", "resp_4"]  # one above the bound
    assert await names(10, 0) == ["resp_4"]
    await shared.delete_response(tenant.id, "resp_1")
    assert await names(10) == ["resp_2", "resp_3", "resp_4"]
    assert (
        await shared.lineage(tenant.id, "resp_1", max_length=9, max_bytes=MIB, retention=DAY) == []
    )


async def test_what_is_in_use_is_kept(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    await shared.put_response(make_response(tenant), timedelta(seconds=0.3))
    for _ in range(2):
        line = await shared.lineage(tenant.id, "resp_1", max_length=9, max_bytes=MIB, retention=DAY)
        assert len(line) == 1
    await shared.delete_expired()
    assert await shared.find_response(tenant.id, "resp_1") is not None


async def test_everything_has_an_end(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    await shared.put_response(make_response(tenant), NOTHING)
    await shared.put_stream(make_stream(tenant), NOTHING)
    await shared.claim(tenant.id, b"k", body_hash=b"b", answer_id="a", retention=NOTHING)
    await shared.register_worker("w", "here", -DAY)
    assert await shared.find_response(tenant.id, "resp_1") is None
    assert (
        await shared.lineage(tenant.id, "resp_1", max_length=9, max_bytes=MIB, retention=DAY) == []
    )
    assert await shared.find_stream(tenant.id, "stream_1") is None
    assert await shared.find_claim(tenant.id, b"k") is None
    found = await shared.find_worker("w")
    assert found == WorkerAddress(address="here", is_leased=False)
    assert await shared.delete_expired() == 4
    assert await shared.find_worker("w") is None
    assert await shared.delete_expired() == 0
    await shared.put_response(make_response(tenant), DAY)
    assert await shared.delete_expired() == 0


async def test_the_oldest_make_room(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    for number in range(4):
        at = datetime(2026, 1, 1 + number, tzinfo=UTC)
        response = make_response(tenant, f"resp_{number}", body=bytes(98), created_at=at)
        await shared.put_response(response, DAY)
        await shared.put_stream(make_stream(tenant, f"stream_{number}", items=bytes(100)), DAY)
    assert await shared.trim_responses(tenant.id, 400) == 0
    assert await shared.trim_responses(tenant.id, 399) == 1
    assert await shared.find_response(tenant.id, "resp_0") is None
    assert await shared.find_response(tenant.id, "resp_1") is not None
    assert await shared.trim_streams(tenant.id, 200) == 2
    assert await shared.find_stream(tenant.id, "stream_1") is None
    assert await shared.find_stream(tenant.id, "stream_2") is not None


async def test_streams_come_back_as_they_were(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)
    stream = make_stream(tenant)
    await shared.put_stream(stream, DAY)
    await shared.put_stream(msgspec.structs.replace(stream, items=b"later"), DAY)
    assert await shared.find_stream(tenant.id, stream.id) == stream
    assert await shared.delete_stream(tenant.id, stream.id)
    assert not await shared.delete_stream(tenant.id, stream.id)


async def test_a_key_has_one_owner(store: Store, shared: SharedState) -> None:
    tenant = await make_tenant(store)

    async def claim(answer_id: str, retention: timedelta = DAY) -> str:
        found = await shared.claim(
            tenant.id, b"k", body_hash=b"b", answer_id=answer_id, retention=retention
        )
        return found.answer_id

    assert await shared.find_claim(tenant.id, b"k") is None
    assert await claim("one") == "one"
    assert await claim("two") == "one"
    found = await shared.find_claim(tenant.id, b"k")
    assert found == Claim(body_hash=b"b", answer_id="one")
    assert not await shared.release_claim(tenant.id, b"k", "two")
    assert await shared.release_claim(tenant.id, b"k", "one")
    assert await claim("three", NOTHING) == "three"
    assert await claim("four") == "four"  # the third one's time was over
    for number in range(3):
        await shared.claim(tenant.id, b"%d" % number, body_hash=b"b", answer_id="x", retention=DAY)
    assert await shared.trim_claims(tenant.id, 3) == 1
    assert await shared.trim_claims(tenant.id, 3) == 0


async def test_keys_are_looked_up_together(store: Store, shared: SharedState) -> None:
    mine, other = await make_tenant(store), await make_tenant(store, "other")
    for tenant in (mine, other):
        for key in (b"1", b"2"):
            name = f"{tenant.name} {key.decode()}"
            await shared.claim(tenant.id, key, body_hash=key, answer_id=name, retention=DAY)
    wanted = [(tenant, key) for key in (b"2", b"0", b"1", b"2") for tenant in (mine, other)]
    found = await asyncio.gather(*(shared.find_claim(tenant.id, key) for tenant, key in wanted))
    assert [claim and (claim.answer_id, claim.body_hash) for claim in found] == [
        None if key == b"0" else (f"{tenant.name} {key.decode()}", key) for tenant, key in wanted
    ]


async def test_workers_come_and_go(shared: SharedState) -> None:
    assert await shared.find_worker("w") is None
    await shared.register_worker("w", "here", DAY)
    await shared.register_worker("w", "there", DAY)
    found = await shared.find_worker("w")
    assert found == WorkerAddress(address="there", is_leased=True)
    await shared.register_worker("w", "there", NOTHING)
    assert await shared.delete_expired() == 0
    found = await shared.find_worker("w")
    assert found == WorkerAddress(address="there", is_leased=False)
    await shared.forget_worker("w")
    assert await shared.find_worker("w") is None


def make_engine(name: str = "host:1", **changes: object) -> EngineRecord:
    engine = EngineRecord(
        id=name,
        model="demo",
        config_hash="weights",
        text_hash="tokenizer",
        address="tcp://host:1",
        public_key="key",
        protocol=1,
        version="0.1.0",
        capacity=8,
        epoch=10,
        state="ready",
    )
    return msgspec.structs.replace(engine, **changes)


async def test_engines_come_and_go(shared: SharedState) -> None:
    loading = make_engine(state="loading")
    assert await shared.register_engine(loading, DAY) == "ok"
    (found,) = await shared.list_engines()
    started_at = found.started_at
    assert started_at is not None
    assert found == msgspec.structs.replace(loading, started_at=started_at)
    assert found.condition == "loading"

    busy = make_engine(
        num_running=3, num_waiting=4, num_admitted=2**40, queue_time_s=0.5, node="gpu7"
    )
    assert await shared.register_engine(busy, DAY) == "ok"
    assert await shared.list_engines() == [msgspec.structs.replace(busy, started_at=started_at)]
    assert await shared.drain_engine("host:1", is_drained=True)
    assert not await shared.drain_engine("host:\0", is_drained=True)
    assert await shared.register_engine(busy, DAY) == "ok"
    (found,) = await shared.list_engines()
    assert found.condition == "drained"  # which a renewal does not end

    other = msgspec.structs.replace(busy, id="other")
    assert await shared.register_engine(other, DAY) == "ok"
    assert not await shared.restart_engine("other", 9)
    assert await shared.restart_engine("other", 10)
    for epoch in (10, 11):
        renewed = msgspec.structs.replace(other, epoch=epoch)
        assert await shared.register_engine(renewed, DAY) == "ok"
        assert (await shared.list_engines())[-1].is_to_restart is (epoch == 10)
    await shared.forget_engine("other", 11)

    assert await shared.register_engine(make_engine(epoch=11), DAY) == "ok"
    assert await shared.register_engine(busy, DAY) == "epoch over"
    await shared.forget_engine("host:1", 10)
    assert len(await shared.list_engines()) == 1
    await shared.forget_engine("host:1", 11)
    assert not await shared.list_engines()


async def test_an_engine_is_given_up_once_its_lease_is_over(shared: SharedState) -> None:
    assert await shared.register_engine(make_engine(), DAY) == "ok"
    assert not await shared.lose_engine("host:1", 10)
    assert await shared.register_engine(make_engine(), NOTHING) == "ok"
    (found,) = await shared.list_engines()
    assert not found.is_leased
    assert found.condition == "lost"
    assert not await shared.lose_engine("host:1", 9)
    assert await shared.lose_engine("host:1", 10)
    assert await shared.register_engine(make_engine(), DAY) == "epoch over"
    assert await shared.register_engine(make_engine(epoch=11), DAY) == "ok"
    (found,) = await shared.list_engines()
    assert found.condition == "ready"


async def test_one_controller_leads_a_model(shared: SharedState) -> None:
    assert not await shared.want_model("demo")  # nobody is there yet
    scaling = await shared.lead_model("demo", "one", DAY, 2)
    assert scaling is not None
    assert scaling.num_replicas == 2
    assert scaling.wanted_s is not None
    assert 0 <= scaling.wanted_s < 60
    assert await shared.want_model("demo")
    assert await shared.lead_model("demo", "two", DAY) is None
    assert await shared.lead_model("another", "two", DAY) == Scaling(
        wanted_s=None, num_replicas=None
    )
    # Its lease ends, or it leaves: the next one knows what was decided.
    assert await shared.lead_model("demo", "one", NOTHING, 3) is not None
    assert not await shared.want_model("demo")
    scaling = await shared.lead_model("demo", "two", DAY)
    assert scaling is not None
    assert scaling.num_replicas == 3
    assert await shared.lead_model("demo", "one", DAY) is None
    assert await shared.want_model("demo")


async def test_engines_of_a_model_have_the_same_weights(shared: SharedState) -> None:
    assert await shared.register_engine(make_engine(), DAY) == "ok"
    other = make_engine("other:1", config_hash="others")
    assert await shared.register_engine(other, DAY) == "other weights"
    assert await shared.register_engine(make_engine("third:1"), DAY) == "ok"
    another_model = make_engine("other:1", config_hash="others", model="another")
    assert await shared.register_engine(another_model, DAY) == "ok"
    # When those that had them are gone, others may come.
    await shared.register_engine(make_engine(), NOTHING)
    await shared.register_engine(make_engine("third:1"), NOTHING)
    fresh = make_engine("other:2", config_hash="others")
    assert await shared.register_engine(fresh, DAY) == "ok"
