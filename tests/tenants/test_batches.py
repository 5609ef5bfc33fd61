from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenants.batches import Batcher, send_each
from tenants.connections import Connections
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.limits import Price
from tenants.queries import Query
from tenants.shared import ArchivedStream
from tenants.store import Store
from tenants.types import Tenant
from tests.ledger import usage_totals
from tests.tenants.reserving import Clock, ask, put, settle
from tests.tenants.samples import make_event, make_key

T = TypeVar("T")

pytestmark = pytest.mark.asyncio


class Line:
    """What a batcher sends to: doubles numbers, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        await self.open.wait()
        if 13 in items:
            raise ConnectionError("the line broke")
        return [ValueError(f"no {item}") if item == 7 else 2 * item for item in items]


def batcher(line: Line, **options: int) -> Batcher[int, int]:
    return Batcher(line.send, identity=lambda item: item, **options)


class TestSendEach:
    async def test_each_has_its_own_answer(self) -> None:
        async def send_one(item: int) -> int:
            await asyncio.sleep(0.001 * item)
            if item == 2:
                raise ValueError("no 2")
            return 2 * item

        first, second, third = await send_each(send_one, [3, 2, 1])
        assert (first, third) == (6, 2)
        assert isinstance(second, ValueError)

    async def test_a_cancelled_one_is_no_answer(self) -> None:
        async def send_one(item: int) -> int:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await send_each(send_one, [1])


class TestBatcher:
    async def test_alone_it_goes_at_once(self) -> None:
        line = Line()
        assert await batcher(line).submit(4) == 8
        assert line.batches == [[4]]

    async def test_what_comes_meanwhile_goes_together(self) -> None:
        line = Line()
        line.open.clear()
        sender = batcher(line, max_items=3, max_running=1)
        calls = [asyncio.create_task(sender.submit(item)) for item in range(6)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert line.batches == [[0, 1, 2]]
        calls.append(asyncio.create_task(sender.submit(6)))
        await asyncio.sleep(0)
        line.open.set()
        assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8, 10, 12]
        assert line.batches == [[0, 1, 2], [3, 4, 5], [6]]

    async def test_each_gets_its_own_failure_or_all_the_same(self) -> None:
        line = Line()
        line.open.clear()
        sender = batcher(line, max_running=1)
        calls = [asyncio.create_task(sender.submit(item)) for item in (1, 2, 7, 3)]
        await asyncio.sleep(0)
        line.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["2", "4", "no 7", "6"]
        with pytest.raises(ConnectionError):
            await sender.submit(13)
        assert await sender.submit(1) == 2

    async def test_who_has_time_waits_for_others(self) -> None:
        line = Line()
        work = batcher(line)
        began = asyncio.get_running_loop().time()
        patient = [asyncio.create_task(work.submit(i, patience_s=60.0)) for i in (1, 2)]
        await asyncio.sleep(0.02)
        assert line.batches == []
        less = asyncio.create_task(work.submit(3, patience_s=0.05))
        assert [*await asyncio.gather(*patient, less)] == [2, 4, 6]
        assert line.batches == [[1, 2, 3]]
        assert 0.05 <= asyncio.get_running_loop().time() - began < 30
        patient = [asyncio.create_task(work.submit(4, patience_s=60.0))]
        await asyncio.sleep(0)
        assert await work.submit(5) == 10
        assert await patient[0] == 8
        assert line.batches[1:] == [[4, 5]], "it goes with who has none"

    async def test_the_end_of_a_batch_hurries_nobody_who_has_time(self) -> None:
        line = Line()
        work = batcher(line, max_running=1)
        line.open.clear()
        first = asyncio.create_task(work.submit(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        patient = asyncio.create_task(work.submit(2, patience_s=0.1))
        line.open.set()
        await first
        await asyncio.sleep(0.01)
        assert line.batches == [[1]]
        line.open.clear()
        blocking = asyncio.create_task(work.submit(3))
        pressed = asyncio.create_task(work.submit(13 - 9))
        assert await asyncio.wait([patient, blocking, pressed], timeout=0.02)
        late = asyncio.create_task(work.submit(5))
        line.open.set()
        assert [*await asyncio.gather(patient, blocking, pressed, late)] == [4, 6, 8, 10]
        assert line.batches[1:] == [[2, 3, 4], [5]]

    async def test_equals_never_travel_together(self) -> None:
        line = Line()
        line.open.clear()
        sender = batcher(line, max_running=1)
        calls = [asyncio.create_task(sender.submit(item)) for item in (1, 5, 5, 6, 5)]
        await asyncio.sleep(0)
        line.open.set()
        assert await asyncio.gather(*calls) == [2, 10, 10, 12, 10]
        assert all(len(batch) == len(set(batch)) for batch in line.batches)

    async def test_cancelled_before_it_is_sent_it_never_is(self) -> None:
        line = Line()
        line.open.clear()
        sender = batcher(line, max_running=1)
        first = asyncio.create_task(sender.submit(1))
        await asyncio.sleep(0)
        second = asyncio.create_task(sender.submit(2))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        line.open.set()
        assert await first == 2
        assert line.batches == [[1]]

    async def test_cancelled_later_it_waits_for_the_end(self) -> None:
        line = Line()
        line.open.clear()
        sender = batcher(line)
        call = asyncio.create_task(sender.submit(1))
        for _ in range(3):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()
        line.open.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def test_its_own_end_is_that_of_those_who_wait(self) -> None:
        """As when a loop shuts down: nobody is left waiting, and nothing is left under way."""
        line = Line()
        line.open.clear()
        sender = batcher(line, max_running=1)
        calls = [asyncio.create_task(sender.submit(item)) for item in (1, 2)]
        while not line.batches:  # noqa: ASYNC110 - another object
            await asyncio.sleep(0)
        (batch,) = (task for task in asyncio.all_tasks() if task.get_name() == "batch of 2")
        batch.cancel()
        async with asyncio.timeout(30):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        line.open.set()
        assert await sender.submit(3) == 6


async def scopes(dsn: str) -> list[tuple[object, ...]]:
    """All counters of all scopes, and what is held."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.fetch("SELECT usage_roll_up(1000000)")
        rows = await connection.fetch(
            "SELECT t.name, p.scope_kind, s.requests_used, s.tokens_used, s.num_running, "
            "s.num_queued, s.month, s.month_tokens, s.month_cost_micro FROM limit_state s "
            "JOIN limit_policy p USING (scope_id) JOIN tenant t ON t.id = p.tenant_id "
            "UNION ALL SELECT t.name, 'usage', u.requests, u.prompt_tokens, "
            "u.completion_tokens::int, 0, NULL, u.cached_tokens, u.cost_micro "
            "FROM usage_rollup u JOIN tenant t ON t.id = u.tenant_id ORDER BY 1, 2"
        )
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


@pytest.mark.pg
class TestInTheDatabase:
    @settings(
        max_examples=8,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans(), st.booleans()),
            min_size=2,
            max_size=20,
        )
    )
    async def test_together_as_one_by_one(
        self, pg_dsn: str, steps: list[tuple[int, int, bool, bool]]
    ) -> None:
        """Two worlds of three tenants: what one does request by request, the other does at once."""
        clock = Clock()
        store = await Store.connect(pg_dsn, now=clock)
        price = Price(prompt=700_000, completion=1_300_000)
        states = []
        try:
            for together in (False, True):
                name = str(uuid4())
                people = [(await make_key(store, f"{name} {n}"))[1] for n in range(3)]
                for who in people:
                    await put(store, who, "tenant", tokens_per_minute=10**6, max_concurrent=100)
                await put(store, people[0], "key", monthly_tokens=10**9, requests_per_minute=900)
                await put(store, people[1], "project", monthly_cost_micro=10**9)
                requests = [ask(people[n].key, 10, 40, price=price) for n, *_ in steps]
                held = [
                    request
                    for request, step in zip(requests, steps, strict=True)
                    if step[2]  # others are charged without a reservation
                ]
                work = [store.reserve(request) for request in held]
                answers = await _do(work, together=together)
                assert all(answer.state == "running" for answer in answers)
                settled = [
                    settle(store, request, used, cost_micro=price.cost(10, 0, used))
                    for request, (_, used, _, ends) in zip(requests, steps, strict=True)
                    if ends
                ]
                assert all(await _do(settled, together=together))
                again = [
                    settle(store, request, 99)
                    for request, (_, _, _, ends) in zip(requests, steps, strict=True)
                    if ends
                ]
                assert not any(await _do(again, together=together))
                found = [row for row in await scopes(pg_dsn) if str(row[0]).startswith(name)]
                states.append([(str(row[0])[-1], *row[1:]) for row in found])
            assert states[0] == states[1]
        finally:
            await store.close()

    @settings(
        max_examples=12,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        limits=st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "requests_per_minute": st.integers(1, 8),
                    "tokens_per_minute": st.integers(40, 400),
                    "monthly_tokens": st.integers(40, 400),
                    "monthly_cost_micro": st.integers(1, 60),
                    "max_concurrent": st.integers(1, 8),
                    "max_queued": st.integers(0, 3),
                },
            ),
            min_size=2,
            max_size=2,
        ),
        whose=st.lists(st.integers(0, 1), min_size=2, max_size=16),
        first=st.integers(0, 4),
    )
    @example([{"requests_per_minute": 4}, {}], [0] * 6, 1)
    @example([{"tokens_per_minute": 100}, {}], [0] * 6, 1)
    @example([{"monthly_tokens": 100}, {}], [0] * 6, 1)
    @example([{"monthly_cost_micro": 17}, {}], [0] * 6, 1)
    @example([{"max_concurrent": 3}, {}], [0] * 6, 1)
    async def test_a_block_is_taken_as_a_whole_or_one_by_one(
        self,
        pg_dsn: str,
        limits: list[dict[str, int]],
        whose: list[int],
        first: int,
    ) -> None:
        """Whoever is near a limit gets what he would alone; his neighbour in the batch notices
        nothing. ``first`` requests are held before.
        """
        clock = Clock()
        store = await Store.connect(pg_dsn, now=clock)
        price = Price(prompt=100_000, completion=200_000)
        worlds = []
        try:
            for together in (False, True):
                people = [(await make_key(store, str(uuid4())))[1] for _ in range(2)]
                for who, some in zip(people, limits, strict=True):
                    await put(store, who, "tenant", **some)
                    await put(store, who, "key", requests_per_minute=10)
                for number in range(first):
                    await store.reserve(ask(people[number % 2].key, 10, 20, price=price))
                requests = [ask(people[n].key, 10, 20, price=price) for n in whose]
                answers = await _do([store.reserve(one) for one in requests], together=together)
                connection = await asyncpg.connect(pg_dsn)
                states = [
                    tuple(
                        await connection.fetchrow(
                            "SELECT requests_used, tokens_used, num_running, num_queued, "
                            "month_tokens, month_cost_micro FROM limit_state WHERE scope_id = $1",
                            scope_id,
                        )
                    )
                    for who in people
                    for scope_id in (who.tenant.id, who.key.id)
                ]
                held = await connection.fetch(
                    "SELECT tenant_id, state, prompt_tokens, completion_tokens, prompt_price, "
                    "completion_price, model, month, cardinality(scope_ids) FROM reservation "
                    "WHERE tenant_id = ANY ($1)",
                    [who.tenant.id for who in people],
                )
                await connection.close()
                tenants = [who.tenant.id for who in people]
                # All are alike, and travel in more than one batch: who is first is left open.
                outcomes = sorted(
                    (
                        tenants.index(request.tenant_id),
                        answer.state,
                        answer.completion_tokens,
                        str(answer.refused_by),
                    )
                    for answer, request in zip(answers, requests, strict=True)
                )
                rows = sorted((tenants.index(row[0]), *map(str, row[1:])) for row in held)
                worlds.append((outcomes, states, rows))
            assert worlds[0] == worlds[1]
        finally:
            await store.close()

    @settings(
        max_examples=12,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        limits=st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "tokens_per_minute": st.integers(1000, 2000),
                    "monthly_tokens": st.integers(100, 300),
                    "monthly_cost_micro": st.integers(20, 50),
                },
            ),
            min_size=2,
            max_size=2,
        ),
        asked=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.integers(1, 60),
                st.sampled_from(["held", "held", "held", "unknown"]),
            ),
            min_size=6,
            max_size=14,
        ),
        month_later=st.booleans(),
    )
    @example([{"monthly_tokens": 200}, {}], [(n % 2, 50, "held") for n in range(12)], False)
    @example([{"monthly_cost_micro": 30}, {}], [(n % 2, 41, "held") for n in range(12)], False)
    @example([{"monthly_cost_micro": 37}, {}], [(0, 31, "held") for n in range(6)], False)
    @example([{"monthly_cost_micro": 30}, {}], [(0, 38, "held") for n in range(6)], False)
    async def test_running_requests_get_more_together_as_one_by_one(
        self,
        pg_dsn: str,
        limits: list[dict[str, int]],
        asked: list[tuple[int, int, str]],
        month_later: bool,
    ) -> None:
        """All in all; who gets what is left at a limit is the first one, of whichever order."""
        clock = Clock()
        store = await Store.connect(pg_dsn, now=clock)
        price = Price(prompt=100_000, completion=150_000)
        worlds = []
        try:
            for together in (False, True):
                people = [(await make_key(store, str(uuid4())))[1] for _ in range(2)]
                requests = [ask(people[who].key, 3, 5, price=price) for who, _, _ in asked]
                for who, some in zip(people, limits, strict=True):
                    await put(store, who, "tenant", **some)
                    await put(store, who, "key", tokens_per_minute=10_000)
                for request, (_, _, state) in zip(requests, asked, strict=True):
                    if state == "held":
                        await store.reserve(request)
                if month_later:
                    clock.advance(days=40)
                granted = await _do(
                    [
                        store.extend(
                            request.tenant_id,
                            request.request_id,
                            tokens=tokens,
                            generated=4,
                            lease=timedelta(days=50),
                        )
                        for request, (_, tokens, _) in zip(requests, asked, strict=True)
                    ],
                    together=together,
                )
                connection = await asyncpg.connect(pg_dsn)
                states = [
                    tuple(row)
                    for who in people
                    for row in await connection.fetch(
                        "SELECT scope_id = tenant_id, tokens_used, num_running, month_tokens, "
                        "month_cost_micro FROM limit_state WHERE tenant_id = $1 ORDER BY 1",
                        who.tenant.id,
                    )
                ]
                held = [
                    await connection.fetchrow(
                        "SELECT completion_tokens, generated_tokens, expires_at - $2::timestamptz "
                        "FROM reservation WHERE request_id = $1",
                        request.request_id,
                        clock(),
                    )
                    for request in requests
                ]
                await connection.close()
                for request in requests:
                    await store.release(request.tenant_id, request.request_id)
                worlds.append((granted, states, [row and tuple(row) for row in held]))
            assert worlds[0] == worlds[1]
        finally:
            await store.close()

    async def test_windows_of_a_block_are_those_after_all_of_it(self, pg_dsn: str) -> None:
        store = await Store.connect(pg_dsn, now=Clock())
        _, who = await make_key(store)
        _, other = await make_key(store, "unlimited")
        await put(store, who, "tenant", requests_per_minute=100, tokens_per_minute=10_000)
        await put(store, who, "key", requests_per_minute=50)
        requests = [ask(who.key, 10, 20) for _ in range(20)]
        answers = await asyncio.gather(*(store.reserve(one) for one in [*requests, ask(other.key)]))
        await store.close()
        assert {answer.state for answer in answers} == {"running"}
        assert (answers[-1].requests, answers[-1].tokens) == (None, None)
        seen = {(answer.requests.limit, answer.requests.remaining) for answer in answers[:-1]}  # type: ignore[union-attr]
        assert min(remaining for _, remaining in seen) == 30
        assert {limit for limit, _ in seen} == {50}
        assert min(answer.tokens.remaining for answer in answers[:-1]) == 9400  # type: ignore[union-attr]

    async def test_a_stranger_in_the_batch_harms_nobody(self, pg_store: Store) -> None:
        _, who = await make_key(pg_store)
        await put(pg_store, who, "tenant", max_concurrent=100)
        _, other = await make_key(pg_store, "other")
        strange = ask(who.key, tenant_id=other.tenant.id)
        requests = [ask(who.key) for _ in range(6)]
        answers = await asyncio.gather(
            *(pg_store.reserve(request) for request in [*requests, strange]),
            return_exceptions=True,
        )
        assert isinstance(answers[-1], ObjectNotFound)
        assert {answer.state for answer in answers[:-1]} == {"running"}  # type: ignore[union-attr]
        events = [
            make_event(who.key),
            make_event(who.key, tenant_id=other.tenant.id),
            make_event(who.key, model="x" * 201),
            make_event(who.key),
        ]
        written = await asyncio.gather(
            *(pg_store.record_usage(event) for event in events), return_exceptions=True
        )
        assert written[0] is written[3] is True
        assert isinstance(written[1], ObjectNotFound)
        assert isinstance(written[2], InvalidValue)
        assert (await usage_totals(pg_store, who.tenant.id)).requests == 2

    async def test_streams_that_end_together_are_kept_as_they_were(
        self, pg_store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = [(await make_key(pg_store, f"tenant {n}"))[1].tenant for n in range(3)]
        nobody = msgspec.structs.replace(people[0], id=uuid4())
        statements: list[str] = []
        fetch = Connections.fetch

        async def noted(self: Connections, query: Query, *args: Any, **kwargs: Any) -> Any:
            statements.append(query.sql)
            return await fetch(self, query, *args, **kwargs)

        monkeypatch.setattr(Connections, "fetch", noted)

        def ended(tenant: Tenant, number: int) -> ArchivedStream:
            return ArchivedStream(
                id=f"stream_{number % 7}",  # each tenant has every one twice
                tenant_id=tenant.id,
                kind="sse",
                num_dropped=number,
                items=bytes([number]) * number,
            )

        async def put(streams: Sequence[ArchivedStream]) -> list[BaseException | None]:
            return await asyncio.gather(
                *(pg_store.shared.put_stream(stream, timedelta(days=1)) for stream in streams),
                return_exceptions=True,
            )

        streams = [ended(people[number % 3], number) for number in range(42)]
        for some in (streams[:21], streams[21:]):
            assert await put(some) == [None] * 21
        assert len(statements) < 10
        for first in streams[:21]:
            assert await pg_store.shared.find_stream(first.tenant_id, first.id) == first
        # One of a tenant that is gone takes no other with it.
        others = [ended(tenant, 100 + number) for number, tenant in enumerate(people)]
        others = [msgspec.structs.replace(one, id="late") for one in others]
        answers = await put([others[0], ended(nobody, 1), *others[1:]])
        assert isinstance(answers.pop(1), ObjectNotFound)
        assert answers == [None] * 3
        for other in others:
            assert await pg_store.shared.find_stream(other.tenant_id, "late") == other

    async def test_batches_of_many_workers_do_not_deadlock(self, pg_dsn: str) -> None:
        """The same tenants in all orders: reserving, extending and settling at once."""
        clock = Clock()
        workers = [await Store.connect(pg_dsn, now=clock) for _ in range(3)]
        people = [(await make_key(workers[0], f"tenant {n}"))[1] for n in range(8)]
        for who in people:
            await put(workers[0], who, "tenant", max_concurrent=1000)
            await put(workers[0], who, "key", tokens_per_minute=10**8)

        async def client(number: int) -> None:
            worker = workers[number % 3]
            request = ask(people[(number * 5) % 8].key, 2, 3, lease=timedelta(hours=1))
            assert (await worker.reserve(request)).state == "running"
            if number % 3:
                more = await worker.extend(
                    request.tenant_id,
                    request.request_id,
                    tokens=4,
                    generated=1,
                    lease=timedelta(hours=1),
                    patience_s=0.02,
                )
                assert more == 4
            if number % 5:
                assert await settle(worker, request, 2)
            else:
                await worker.release(request.tenant_id, request.request_id)

        async with asyncio.timeout(100):
            await asyncio.gather(*(client(number) for number in range(300)))
        totals = [await usage_totals(workers[0], who.tenant.id) for who in people]
        assert sum(total.requests for total in totals) == 240
        assert await workers[0].list_running() == []
        for worker in workers:
            await worker.close()


async def _do(work: Sequence[Coroutine[Any, Any, T]], *, together: bool) -> list[T]:
    if together:
        return list(await asyncio.gather(*work))
    return [await one for one in work]
