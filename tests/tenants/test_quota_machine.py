"""Requests in any order, with a store that comes and goes: budgets hold, and what was generated is
what is charged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.quota import Hold, Quota
from tenants.standby import Standby
from tenants.types import Principal, UsageEvent
from tenants.usage import Ledger
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore
from tests.tenants.quotas import make, seconds_of, take
from tests.tenants.reserving import Clock
from tests.tenants.samples import make_event

T = TypeVar("T")

MONTHLY_TOKENS, SLICE_TOKENS, MAX_CONCURRENT = 600, 50, 4
PROMPT = 10


class FickleStore(MemoryStore):
    """Is away at times: then it takes nothing and answers nothing."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(now=self.time)
        self.away = False

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("away")

    async def reserve(self, request: Any) -> Any:
        self._answer()
        return await super().reserve(request)

    async def balances(self, scope_ids: Any) -> Any:
        self._answer()
        return await super().balances(scope_ids)

    async def extend(self, *args: Any, **kwargs: Any) -> Any:
        self._answer()
        return await super().extend(*args, **kwargs)

    async def release(self, tenant_id: UUID, request_id: UUID) -> bool:
        self._answer()
        return await super().release(tenant_id, request_id)

    async def renew(self, *args: Any, **kwargs: Any) -> Any:
        self._answer()
        return await super().renew(*args, **kwargs)

    async def reap(self, **kwargs: Any) -> Any:
        self._answer()
        return await super().reap(**kwargs)

    async def record_usage(self, event: UsageEvent) -> bool:
        self._answer()
        return await super().record_usage(event)


class QuotaMachine(RuleBasedStateMachine):
    """One process and one tenant, on a clock moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = FickleStore()
        self.who: Principal
        self.holds: list[Hold] = []
        self.generated: dict[UUID, int] = {}
        self.num_outages = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it, and whatever began meanwhile as far as it goes."""

        async def all_of_it() -> T:
            result = await work
            for _ in range(5):
                await asyncio.sleep(0)
            return result

        return self.runner.run(all_of_it())

    @initialize()
    def begin(self) -> None:
        async def begun() -> None:
            self.who = await make(
                self.store, monthly_tokens=MONTHLY_TOKENS, max_concurrent=MAX_CONCURRENT
            )
            self.ledger = Ledger(self.store, backoff_s=0.0001, max_backoff_s=0.0001)
            clock = seconds_of(self.store)
            self.quota = Quota(
                self.store,
                slice_tokens=SLICE_TOKENS,
                standby=Standby(is_pending=self.ledger.is_pending, keep_s=3600.0, clock=clock),
                clock=clock,
            )
            await self.quota.release(await take(self.quota, self.who))
            await self.quota.refresh()

        self.do(begun())

    @property
    def month_tokens(self) -> int:
        """As the store counts them."""
        return self.store._quota._scopes[self.who.tenant.id].month_tokens

    @rule()
    def go_or_come_back(self) -> None:
        self.store.away = not self.store.away
        self.num_outages += self.store.away

    @rule(max_tokens=st.integers(1, 400))
    def reserve(self, max_tokens: int) -> None:
        left = MONTHLY_TOKENS - self.month_tokens

        async def reserved() -> None:
            request_id = uuid4()
            try:
                hold = await self.quota.reserve(
                    self.who,
                    request_id=request_id,
                    model="demo",
                    prompt_tokens=PROMPT,
                    max_tokens=max_tokens,
                )
            except QuotaExceeded:
                assert len(self.holds) >= MAX_CONCURRENT or left <= PROMPT or self.num_outages
                return
            assert len(self.holds) < MAX_CONCURRENT
            assert self.num_outages or left > PROMPT
            assert 0 < hold.allowed <= min(max_tokens, SLICE_TOKENS)
            self.generated[request_id] = 0
            hold.watch(lambda: self.generated[request_id])
            self.holds.append(hold)

        self.do(reserved())

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99), tokens=st.integers(1, 120))
    def ask(self, which: int, tokens: int) -> None:
        hold = self.holds[which % len(self.holds)]
        before, was_last = hold.allowed, hold.is_last
        wanted = min(tokens, hold._max_tokens - before)
        left = MONTHLY_TOKENS - self.month_tokens

        async def asked() -> None:
            hold.ask(tokens)
            hold.ask(tokens)  # one question at a time

        self.do(asked())
        granted = hold.allowed - before
        if was_last or wanted == 0:
            assert granted == 0
        elif self.num_outages == 0:
            assert granted == min(wanted, left)
        assert 0 <= granted <= wanted
        assert hold.is_last == (was_last or granted < wanted)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99), share=st.floats(0, 1))
    def generate(self, which: int, share: float) -> None:
        hold = self.holds[which % len(self.holds)]
        left = hold.allowed - self.generated[hold.request_id]
        self.generated[hold.request_id] += int(left * share)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99), asks=st.booleans())
    def settle(self, which: int, asks: bool) -> None:
        hold = self.holds.pop(which % len(self.holds))

        async def settled() -> None:
            if asks:  # its answer comes too late
                hold.ask(SLICE_TOKENS)
            await hold.stop()
            await self.ledger.settle(
                make_event(
                    self.who.key,
                    request_id=hold.request_id,
                    prompt_tokens=PROMPT,
                    cached_tokens=0,
                    completion_tokens=hold.generated,
                )
            )
            await hold.close()

        self.do(settled())

    @precondition(lambda self: any(not self.generated[h.request_id] for h in self.holds))
    @precondition(lambda self: not self.store.away)
    @rule()
    def give_up(self) -> None:
        """One that the engine refused."""
        hold = next(h for h in self.holds if not self.generated[h.request_id])
        self.holds.remove(hold)
        self.do(self.quota.release(hold))
        del self.generated[hold.request_id]

    @precondition(lambda self: not self.store.away)
    @rule()
    def beat(self) -> None:
        self.store.time.advance(seconds=9)
        self.do(self.quota.beat())

    @rule()
    def refresh(self) -> None:
        async def refreshed() -> None:
            with contextlib.suppress(StoreUnavailable):
                await self.quota.refresh()

        self.do(refreshed())

    @invariant()
    def leases_are_those_of_what_runs(self) -> None:
        if hasattr(self, "quota"):
            assert self.quota.num_held <= len(self.holds)
            assert self.quota.num_held == len(self.holds) <= MAX_CONCURRENT

    @invariant()
    def nobody_is_given_more_than_there_is(self) -> None:
        """Whether the store is there or not: one process alone knows all."""
        ended = self.generated.keys() - {hold.request_id for hold in self.holds}
        given = sum(PROMPT + hold.allowed for hold in self.holds)
        given += sum(PROMPT + self.generated[request_id] for request_id in ended)
        assert given <= MONTHLY_TOKENS

    def teardown(self) -> None:
        if not hasattr(self, "quota"):
            self.runner.close()
            return
        self.store.away = False
        while self.holds:
            self.settle(0, asks=True)
        assert self.do(self.ledger.drain(10)) == 0
        self.do(asyncio.sleep(0))
        # What could not be released while the store was away ends with its lease.
        self.store.time.advance(minutes=10)

        async def reaped() -> None:
            while await self.store.reap(patience=timedelta()) is not None:
                pass

        self.do(reaped())
        totals = self.do(usage_totals(self.store, self.who.tenant.id))
        state = self.store._quota._scopes[self.who.tenant.id]
        assert state.month_tokens == totals.prompt_tokens + totals.completion_tokens
        assert totals.completion_tokens == sum(self.generated.values())
        assert (state.num_running, state.num_queued, self.quota.num_held) == (0, 0, 0)
        assert self.store._quota.reservations == {}
        assert self.do(_num_tasks()) == 1, "only the one that asks"
        self.runner.close()


async def _num_tasks() -> int:
    return len(asyncio.all_tasks())


def test_any_order_of_requests_and_outages() -> None:
    run_state_machine_as_test(
        QuotaMachine, settings=settings(max_examples=40, stateful_step_count=40)
    )
