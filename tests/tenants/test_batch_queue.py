"""Batches in PostgreSQL, whatever their workers do: each line has one result, and one row of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenants.batch_queue import Batch, Line, NewBatch, NewLine, Result
from tenants.limits import Limits
from tenants.request_ids import new_request_id
from tenants.store import Store
from tenants.types import ApiKey, Principal
from tests.ledger import usage_totals
from tests.postgres import execute
from tests.tenants.reserving import ask
from tests.tenants.samples import make_event, make_key

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

LEASE = timedelta(minutes=5)
INPUT = b"".join(b"line %05d\n" % number for number in range(60))


async def begin(store: Store, who: Principal, num_lines: int, *, lasts: timedelta = LEASE) -> Batch:
    """A batch of the key's tenant, of which all lines can run."""
    tenant_id, files, queue = who.tenant.id, store.files, store.batch_queue
    file_id = f"file-{uuid4().hex}"
    await files.begin(tenant_id, file_id)
    await files.append(tenant_id, file_id, INPUT, max_bytes=10**9)
    await files.complete(tenant_id, file_id, "a", "batch", None)
    new = NewBatch(
        f"batch_{new_request_id().hex}",
        who.key.public_id,
        "/v1/x",
        file_id,
        "24h",
        lasts,
        b"{}",
        LEASE,
    )
    assert await queue.create(tenant_id, new) is not None
    batch = await queue.step(LEASE)
    assert batch is not None
    assert batch.id == new.id
    lines = [NewLine(n, str(n), 11 * (n - 1), 10, None) for n in range(1, num_lines + 1)]
    await queue.put_lines(batch, lines)
    await queue.put_lines(batch, lines)  # A worker that begins once more finds them.
    await queue.begin(batch, num_lines, 0, b"[]")
    return batch


def result(line: Line, key: ApiKey, **changes: Any) -> Result:
    event = make_event(key, request_id=line.request_id, completion_tokens=line.attempts)
    fields: dict[str, Any] = {
        "tenant_id": line.tenant_id, "batch_id": line.batch_id, "number": line.number,
        "attempts": line.attempts, "data": b"%d by %d\n" % (line.number, line.attempts),
        "is_failed": False, "event": event,
    }  # fmt: skip
    return Result(**fields | changes)


async def claim(store: Store, owner: UUID, count: int, **options: Any) -> list[Line]:
    ids = [new_request_id() for _ in range(count)]
    return [*await store.batch_queue.claim(owner, ids, LEASE, **options)]


async def end(store: Store, batch: Batch, *, crashes: bool = False) -> Batch:
    """What a worker does to end it."""
    queue, files, tenant_id = store.batch_queue, store.files, batch.tenant_id
    while rest := await queue.open_lines(batch, 7):
        await queue.finish(
            [
                Result(
                    tenant_id=tenant_id, batch_id=batch.id, number=one.number,
                    attempts=one.attempts, data=b"%d not\n" % one.number, is_failed=True,
                    event=None,
                )
                for one in rest
            ]
        )  # fmt: skip
    names = [f"file-{uuid4().hex}", f"file-{uuid4().hex}"]
    for file_id, is_failed in zip(names, (False, True), strict=True):
        await files.begin(tenant_id, file_id)
        after: int | None = 0
        while after is not None:
            after = await queue.pack(batch, file_id, is_failed=is_failed, after=after)
            if crashes:
                return batch
    await queue.end(batch, *names)
    found = await queue.find(tenant_id, batch.id)
    assert found is not None
    return found


async def read(store: Store, tenant_id: UUID, *names: str | None) -> list[str]:
    """The lines of files."""
    data = b""
    for name in names:
        if name is not None:
            data += b"".join([piece async for piece in store.files.content(tenant_id, name)])
    return data.decode().splitlines()


async def test_only_the_last_lease_of_a_line_is_heard(pg_store: Store, pg_dsn: str) -> None:
    _, who = await make_key(pg_store)
    await pg_store.put_limits(who.tenant.id, "tenant", who.tenant.id, Limits(max_concurrent=9))
    await begin(pg_store, who, 1)
    queue, one, two = pg_store.batch_queue, uuid4(), uuid4()
    (first,) = await claim(pg_store, one, 5)
    assert await queue.read(first) == b"line 00000"
    await pg_store.reserve(ask(who.key, request_id=first.request_id))
    assert await claim(pg_store, two, 5) == [], "it is leased"
    await execute(pg_dsn, "UPDATE batch_line SET free_at = now()")
    (second,) = await claim(pg_store, two, 5)
    assert (second.attempts, second.num_lost) == (2, 1)
    assert second.request_id != first.request_id
    assert await pg_store.list_running() == [], "what was reserved for it is given back"
    assert await queue.renew(one, [first], LEASE) == {}
    assert await queue.finish([result(first, who.key)]) == [False]
    await queue.give_back(first, timedelta())
    assert await queue.renew(two, [second], LEASE) == {second.key: "in_progress"}
    assert await queue.finish([result(second, who.key)] * 2) == [True, False]
    totals = await usage_totals(pg_store, who.tenant.id)
    assert (totals.requests, totals.completion_tokens) == (1, 2)
    found = await queue.find(who.tenant.id, second.batch_id)
    assert found is not None
    assert (found.status, found.num_completed) == ("finalizing", 1)


async def test_a_line_whose_reservation_runs_out_is_not_settled_for_its_owner(
    pg_store: Store, pg_dsn: str
) -> None:
    _, who = await make_key(pg_store)
    await pg_store.put_limits(who.tenant.id, "tenant", who.tenant.id, Limits(max_concurrent=9))
    await begin(pg_store, who, 1)
    (line,) = await claim(pg_store, uuid4(), 1)
    now = timedelta()
    for request_id in (line.request_id, new_request_id()):
        await pg_store.reserve(ask(who.key, request_id=request_id, lease=now))
    assert await pg_store.reap() is not None
    assert await pg_store.reap() is not None
    assert (await usage_totals(pg_store, who.tenant.id)).requests == 1, "only of the other one"
    assert await pg_store.batch_queue.finish([result(line, who.key)]) == [True]
    assert (await usage_totals(pg_store, who.tenant.id)).requests == 2


async def test_tenants_get_as_many_lines_at_once(pg_store: Store) -> None:
    (_, one), (_, two), (_, three) = [await make_key(pg_store, name) for name in "abc"]
    for who, count in ((one, 50), (one, 50), (two, 50), (three, 2)):
        await begin(pg_store, who, count)
    owners = Counter(line.tenant_id for line in await claim(pg_store, uuid4(), 9))
    owners += Counter(line.tenant_id for line in await claim(pg_store, uuid4(), 9))
    assert owners[three.tenant.id] == 2
    assert abs(owners[one.tenant.id] - owners[two.tenant.id]) <= 4
    rest = await claim(pg_store, uuid4(), 9, but_of=[one.tenant.id])
    assert {line.tenant_id for line in rest} == {two.tenant.id}
    numbers = [line.number for line in rest]
    assert len(set(numbers)) == len(numbers)


async def test_two_workers_never_lease_the_same(pg_store: Store) -> None:
    _, who = await make_key(pg_store)
    await begin(pg_store, who, 40)
    found = await asyncio.gather(*(claim(pg_store, uuid4(), 10) for _ in range(8)))
    numbers = [line.number for lines in found for line in lines]
    assert len(set(numbers)) == len(numbers)


async def step(store: Store, batch: Batch, rng: random.Random) -> Batch:
    """Have it ended, perhaps by a worker that dies while it does."""
    if (leased := await store.batch_queue.step(LEASE)) is not None:
        assert leased.id == batch.id
        return await end(store, leased, crashes=rng.random() < 0.5)
    return batch


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_workers_do_each_line_has_one_result_and_one_row(
    pg_store: Store, pg_dsn: str, seed: int
) -> None:
    rng, queue = random.Random(seed), pg_store.batch_queue
    _, who = await make_key(pg_store)
    num_lines = rng.randint(1, 40)
    batch = await begin(pg_store, who, num_lines)
    workers: list[tuple[UUID, list[Line]]] = [(uuid4(), []) for _ in range(3)]
    billed: Counter[int] = Counter()
    for turn in range(200):
        owner, held = rng.choice(workers)
        what = rng.choice(["claim", "claim", "finish", "finish", "back", "die", "leases", "step"])
        if what == "claim":
            held += await claim(pg_store, owner, rng.randint(1, 6))
        elif what == "finish" and held:
            taken = [held.pop() for _ in range(rng.randint(1, len(held)))]
            kept = await queue.finish([result(line, who.key) for line in taken])
            billed.update(
                line.attempts for line, is_kept in zip(taken, kept, strict=True) if is_kept
            )
        elif what == "back" and held:
            await queue.give_back(held.pop(), timedelta())
        elif what == "die" and rng.random() < 0.5:
            held.clear()
        elif what == "leases":
            await execute(pg_dsn, "UPDATE batch_line SET free_at = now() WHERE NOT is_done")
            await execute(pg_dsn, "UPDATE batch SET free_at = now()")
        elif what == "step":
            await step(pg_store, batch, rng)
        if turn == 150 and seed % 2:  # In time or not, it comes to an end.
            await queue.cancel(who.tenant.id, batch.id)
    while True:
        found = await queue.find(who.tenant.id, batch.id)
        assert found is not None
        if found.ended_at is not None:
            break
        await execute(pg_dsn, "UPDATE batch_line SET free_at = now() WHERE NOT is_done")
        await execute(pg_dsn, "UPDATE batch SET free_at = now()")
        lines = await claim(pg_store, uuid4(), 10)
        if lines:
            assert all(await queue.finish([result(line, who.key) for line in lines]))
            billed.update(line.attempts for line in lines)
        await step(pg_store, batch, rng)
    texts = await read(pg_store, who.tenant.id, found.output_file_id, found.error_file_id)
    assert sorted(int(text.split()[0]) for text in texts) == list(range(1, num_lines + 1))
    done = [text for text in texts if not text.endswith("not")]
    assert (found.num_completed, found.num_failed) == (len(done), num_lines - len(done))
    assert Counter(int(text.split()[2]) for text in done) == billed
    totals = await usage_totals(pg_store, who.tenant.id)
    assert totals.requests == len(done)
    assert totals.completion_tokens == sum(int(text.split()[2]) for text in done)
    names = [file.purpose for file in await pg_store.files.list(who.tenant.id, limit=99)]
    assert names.count("batch_output") == sum(
        name is not None for name in (found.output_file_id, found.error_file_id)
    )
