from __future__ import annotations

from uuid import uuid4

import pytest
from msgspec.structs import replace

from tenants.attempts import MAX_SCOPES, Attempts, with_less
from tenants.errors import QuotaExceeded
from tenants.limits import Limits, QuotaAnswer, ScopePolicy, Window
from tenants.types import Principal
from tests.tenants.quotas import WatchedStore, make

pytestmark = pytest.mark.asyncio


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(attempts: Attempts, who: Principal) -> QuotaAnswer:
    with pytest.raises(QuotaExceeded) as caught:
        attempts.begin(who)
    return caught.value.answer


async def test_as_many_are_read_in_vain_as_may_be_admitted() -> None:
    time, who = Time(), await make(WatchedStore(), requests_per_minute=2)
    attempts = Attempts(time)
    attempts.begin(who)
    attempts.begin(who)
    answer = refused(attempts, who)
    assert (answer.refused_by, answer.scope_kind, answer.wait_us) == (
        *("requests", who.policies[0].scope_kind),
        30_000_000,
    )
    assert answer.requests == Window(limit=2, remaining=0, reset_us=60_000_000)
    time.now += 29.9
    assert refused(attempts, who).wait_us == 100_000
    time.now += 0.1
    attempts.begin(who)
    refused(attempts, who)


async def test_one_that_ends_counts_no_more_and_is_given_back_once() -> None:
    attempts, who = Attempts(Time()), await make(WatchedStore(), requests_per_minute=2)
    first, _ = attempts.begin(who), attempts.begin(who)
    first.end()
    first.end()
    first.failed(ValueError(), is_ours=True)
    attempts.begin(who)
    refused(attempts, who)


async def test_what_is_refused_goes_on_counting_unless_the_rate_refused_it() -> None:
    attempts, who = Attempts(Time()), await make(WatchedStore(), requests_per_minute=1)
    attempt = attempts.begin(who)
    answer = refused(attempts, who)
    attempt.failed(ValueError(), is_ours=False)
    attempt.failed(QuotaExceeded(replace(answer, refused_by="concurrent")), is_ours=False)
    assert attempt.wait_us == 60_000_000
    attempt.failed(QuotaExceeded(answer), is_ours=False)
    assert attempt.wait_us == 0
    attempts.begin(who).failed(ValueError(), is_ours=True)
    attempts.begin(who)


async def test_all_scopes_count_or_none() -> None:
    who = await make(WatchedStore(), requests_per_minute=3)
    narrow = ScopePolicy(scope_kind="key", scope_id=uuid4(), limits=Limits(requests_per_minute=1))
    attempts, both = Attempts(Time()), replace(who, policies=(narrow, *who.policies))
    attempts.begin(both)
    for _ in range(5):
        assert refused(attempts, both).scope_kind == "key"
    attempts.begin(who)
    attempts.begin(who)
    refused(attempts, who)


async def test_a_changed_limit_refills_at_the_old_rate_until_now() -> None:
    time, who = Time(), await make(WatchedStore(), requests_per_minute=1)
    attempts = Attempts(time)
    attempts.begin(who)
    (policy,) = who.policies
    faster = replace(who, policies=(replace(policy, limits=Limits(requests_per_minute=60)),))
    time.now += 30
    attempts.begin(faster)
    time.now += 0.5
    window = attempts.begin(faster).window
    assert window == Window(limit=60, remaining=58, reset_us=2_000_000)


async def test_who_has_no_rate_is_not_counted() -> None:
    attempts, who = Attempts(Time()), await make(WatchedStore(), tokens_per_minute=1)
    for _ in range(100):
        attempt = attempts.begin(who)
    assert len(attempts) == 0
    assert attempt.window is None


async def test_the_scopes_that_are_remembered_are_bounded() -> None:
    attempts, who = Attempts(Time()), await make(WatchedStore(), requests_per_minute=1)
    (policy,) = who.policies
    for _ in range(MAX_SCOPES + 10):
        attempts.begin(replace(who, policies=(replace(policy, scope_id=uuid4()),)))
    assert len(attempts) == MAX_SCOPES


async def test_an_answer_tells_what_refused_requests_leave() -> None:
    attempts, who = Attempts(Time()), await make(WatchedStore(), requests_per_minute=5)
    attempts.begin(who)
    attempt = attempts.begin(who)
    for remaining, left in ((4, 3), (3, 3), (1, 1)):
        window = Window(limit=5, remaining=remaining, reset_us=7)
        told = with_less(QuotaAnswer(state="running", requests=window), attempt.window).requests
        assert told is not None
        assert told.remaining == left
    plain = QuotaAnswer(state="running")
    assert with_less(plain, attempt.window) == plain
